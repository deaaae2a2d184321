"""An address begins one thing at a time; another address does not wait behind it, unless all together begin too much."""

from __future__ import annotations

import pytest

from gateway.proxy import scheduler as module
from gateway.proxy.scheduler import ADDRESS_BURST_S, ADDRESSES, SHARED_S, AddressTurns
from tests.patience import wait_until


class Time:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def thread_time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    monkeypatch.setattr(module, "time", clock)
    return clock


def shared() -> AddressTurns:
    """Return the turns of a worker at which two addresses have just begun something."""
    turns = AddressTurns()
    turns.admit("an address")
    turns.admit("another")
    return turns


def work(turns: AddressTurns, clock: Time, address: str, seconds: float, more_s: float = 0.0) -> None:
    began = clock.now
    clock.now += seconds
    turns.spend(address, began, more_s)


def test_an_address_does_one_thing_at_a_time_and_others_do_not_wait_for_it(clock: Time) -> None:
    turns = shared()
    assert turns.admit("one")
    work(turns, clock, "one", 0.001, 0.0005)
    assert not turns.admit("one")
    assert turns.admit("two")
    clock.now += 0.0012
    assert not turns.admit("one"), "what it began is not over"
    clock.now += 0.0004
    assert turns.admit("one")


def test_all_addresses_together_use_half_of_the_time_after_a_burst(clock: Time) -> None:
    turns, admitted = shared(), 0
    while turns.admit(f"address {admitted}"):
        work(turns, clock, f"address {admitted}", 0.001)
        admitted += 1
    assert admitted * 0.001 == pytest.approx(ADDRESS_BURST_S, abs=0.0011)
    busy = 0
    for number in range(10_000):
        if turns.admit(f"later {number}"):
            work(turns, clock, f"later {number}", 0.0005)
            busy += 1
        else:
            clock.now += 0.0005
    assert 4900 < busy < 5100


async def test_an_address_that_waits_does_not_overtake_itself(clock: Time) -> None:
    turns, done = shared(), list[str]()
    for number in range(3):
        turns.wait(lambda number=number: done.append(f"one{number}"), "one")  # type: ignore[misc]
    assert not turns.admit("one")
    assert turns.admit("two")
    await wait_until(lambda: len(done) == 3)
    assert turns.admit("one")


def test_an_address_that_is_alone_does_not_wait(clock: Time) -> None:
    turns = AddressTurns()
    for _ in range(100):
        assert turns.admit("one")
        assert turns.admit("open one"), "its connections are its own"
        work(turns, clock, "one", 0.001)
    assert turns.admit("two")
    work(turns, clock, "one", 0.001)
    assert not turns.admit("one")
    clock.now += SHARED_S + 1
    assert turns.admit("one")
    work(turns, clock, "one", 0.001)
    assert turns.admit("one")


def test_few_addresses_are_remembered(clock: Time) -> None:
    turns = AddressTurns()
    for number in range(3 * ADDRESSES):
        work(turns, clock, f"address {number}", 0.0)
    assert len(turns._busy_until) <= ADDRESSES
