"""Which refusals are recorded and which are counted, and the record that stands for those that were counted."""

from __future__ import annotations

import pytest

from gateway import Attempt, Caller, Exchange, Outcome, Refused, arrival_ms
from gateway.testing import FixedClock, exchange
from plugins.pacing import ALL_ADDRESSES, MAX_KEYS, CountedRefusals


def refused(account: str = "", peer: str = "192.0.2.7") -> Exchange:
    of = exchange(peer=peer)
    if account:
        of[Caller] = Caller(account, "token", "default")
    of.status, of.outcome, of.refused_by = 429, Outcome.REFUSED, "auth"
    of.error = Refused(429, "rate_limited", "...")
    return of


def test_an_address_and_an_account_have_their_own_limits() -> None:
    clock = FixedClock()
    counted = CountedRefusals(2, 3, clock)
    assert [counted.exceeds(refused()) for _ in range(4)] == [False, False, True, True]
    assert [counted.exceeds(refused("alice")) for _ in range(4)] == [False, False, False, True]
    assert not counted.exceeds(refused("bob"))
    assert not counted.exceeds(refused(peer="192.0.2.8"))
    clock.move(30)
    assert [counted.exceeds(refused()) for _ in range(2)] == [False, True]


@pytest.mark.parametrize(
    "outcome", [Outcome.COMPLETED, Outcome.UPSTREAM_FAILED, Outcome.STOPPED, Outcome.INTERNAL_ERROR]
)
def test_what_was_served_or_failed_is_always_recorded(outcome: Outcome) -> None:
    counted = CountedRefusals(1, 1, FixedClock())
    counted.exceeds(refused("alice"))
    of = refused("alice")
    of.outcome = outcome
    assert not counted.exceeds(of)
    charged, called = refused("alice"), refused("alice")
    charged.charge("quota", 1)
    called.attempts[:] = [Attempt("c", "m")]
    assert not counted.exceeds(charged)
    assert not counted.exceeds(called)
    assert counted.exceeds(refused("alice"))


def test_arrivals_are_deferred_after_a_counted_refusal_from_their_address() -> None:
    clock = FixedClock()
    counted = CountedRefusals(1, 1, clock)
    assert not counted.defers("192.0.2.7")
    counted.exceeds(refused())
    assert not counted.defers("192.0.2.7")
    counted.exceeds(refused())
    assert counted.defers("192.0.2.7")
    assert not counted.defers("192.0.2.8")
    clock.move(61)
    assert not counted.defers("192.0.2.7")


def test_all_addresses_together_are_limited() -> None:
    counted = CountedRefusals(1, 1, FixedClock())
    peers = [f"192.0.{number // 250}.{number % 250}" for number in range(ALL_ADDRESSES + 1)]
    assert [counted.exceeds(refused(peer=peer)) for peer in peers] == [False] * ALL_ADDRESSES + [True]
    assert counted.defers("198.51.100.1")


def test_one_record_stands_for_those_that_were_counted() -> None:
    counted = CountedRefusals(1, 1, FixedClock())
    first, second, other = refused(), refused(), refused("alice")
    for each in (first, second, other):
        counted.count(each)
    tallies = counted.take()
    record, of_alice = tallies["192.0.2.7"].record(), tallies["alice"].record()
    assert (record.id, record.operation, record.events, record.account) == (first.id, "counted", 2, "")
    assert record.duration_ms == arrival_ms(second.id) - arrival_ms(first.id)
    assert (record.status, record.outcome, record.error_code, record.refused_by) == (
        429,
        "refused",
        "rate_limited",
        "auth",
    )
    assert (of_alice.account, of_alice.events) == ("alice", 1)
    assert counted.take() == {}


def test_the_number_of_callers_that_are_counted_apart_is_bounded() -> None:
    counted = CountedRefusals(1, 1, FixedClock())
    of = refused("alice")
    for number in range(MAX_KEYS + 5):
        of[Caller] = Caller(f"account{number}", "token", "default")
        counted.count(of)
    tallies = counted.take()
    assert len(tallies) == MAX_KEYS + 1
    assert (tallies["others"].count, tallies["others"].record().account) == (5, "")
