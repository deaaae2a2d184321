"""Channels cool down, are probed and have limits, for all workers that share the store."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.base.errors import Refused, StoreAway
from gateway.config.channel import Channel
from gateway.domain.facts import Candidate
from gateway.store import channels as module
from gateway.store import circuit_breaker as channel_breaker_module
from gateway.store.channels import (
    FIRST_EVENT_MS,
    AccountCoolDown,
    AccountReport,
    Admission,
    ChannelFigures,
    ChannelLimits,
    ChannelReport,
    Channels,
    Condition,
    CooldownRules,
    MinuteFigures,
)
from gateway.store.circuit_breaker import ChannelBreaker, merged
from gateway.store.client.client import Client, Script
from gateway.store.embedded import EmbeddedStore
from tests.patience import PATIENCE_S

# Channels cool down, are probed and have limits, for all workers that share the store.
LEASE = 10_000
Pass = Callable[[int], Awaitable[object]]
"""Advances the store's clock by so many ms."""


@pytest.fixture
async def later(client: Client, monkeypatch: pytest.MonkeyPatch) -> Pass:
    """The real script with a clock that is a key of the store, and moves only when the test advances it."""
    real, submit = module._SCRIPT, client.submit
    assert real.text.count("redis.call('TIME')") == 1
    monkeypatch.setattr(
        module, "_SCRIPT", Script("channels", real.text.replace("'TIME'", "'HMGET', 'clock', 's', 'us'"))
    )

    def submit_with_test_clock(*command: Any) -> asyncio.Future[Any]:
        return submit(*(("HMGET", "clock", "s", "us") if command == ("TIME",) else command))

    monkeypatch.setattr(client, "submit", submit_with_test_clock)
    await client.call("HSET", "clock", "s", 1_800_000_000, "us", 0)
    return lambda ms: client.call("HINCRBY", "clock", "us", ms * 1000)


@pytest.fixture
async def channels(client: Client, later: Pass) -> Channels:
    return Channels(client, CooldownRules(first_ms=60, max_ms=200, window_ms=10_000, min_failures=3))


def limits(channel: str = "a", *, concurrent: int = 0, per_minute: int = 0, lease_ms: int = LEASE) -> ChannelLimits:
    return ChannelLimits(channel, concurrent, per_minute, lease_ms, 100)


async def reported(channels: Channels, **report: object) -> Condition:
    """Return the condition of the channel after a worker has sent this report."""
    return (await channels.sync("w", {"a": ChannelReport(**report)}))["a"].condition  # type: ignore[arg-type]


async def cool_ms(channels: Channels) -> int:
    return (await channels.sync("w", {"a": ChannelReport()}))["a"].cool_ms


async def test_it_cools_after_enough_failures_that_are_half_of_all(channels: Channels) -> None:
    assert await reported(channels, failed=2) is Condition.HEALTHY
    assert await reported(channels, ok=4) is Condition.HEALTHY
    assert await reported(channels, failed=1) is Condition.HEALTHY
    assert await reported(channels, failed=1, error="upstream_timeout") is Condition.COOLING
    assert await cool_ms(channels) == 60
    answer = await channels.admit("r", [limits(), limits("b")])
    assert (answer.index, answer.probe) == (1, False)
    assert (await channels.admit("r", [limits()])).index is None


async def test_a_channel_that_worked_until_now_cools_at_the_first_report_of_nothing_but_failures(
    channels: Channels,
) -> None:
    assert await reported(channels, ok=1000) is Condition.HEALTHY
    assert await reported(channels, failed=2) is Condition.HEALTHY
    assert await reported(channels, ok=1, failed=3) is Condition.HEALTHY
    assert await reported(channels, failed=3) is Condition.COOLING


async def test_a_channel_that_worked_until_now_cools_after_reports_of_one_failure_each_without_a_success_between(
    channels: Channels, later: Pass
) -> None:
    assert await reported(channels, ok=1000, failed=1) is Condition.HEALTHY
    for before in ({"ok": 1}, {"ok": 1, "failed": 1}):
        assert await reported(channels, failed=1) is await reported(channels, failed=1) is Condition.HEALTHY
        assert await reported(channels, **before) is Condition.HEALTHY
    for _ in range(3):
        assert await reported(channels, accounts={"alice": AccountReport(failed=1)}) is Condition.HEALTHY
    assert await reported(channels, failed=1) is await reported(channels, failed=1) is Condition.HEALTHY
    await later(10_000)
    assert await reported(channels, failed=1) is Condition.COOLING


async def test_look_returns_what_admit_would_and_takes_no_slot(channels: Channels, later: Pass) -> None:
    limited = limits(concurrent=1, per_minute=1)
    assert await reported(channels, failed=3) is Condition.COOLING
    assert (await channels.look([limited])).index is None
    await later(60)
    assert await channels.look([limited]) == await channels.look([limited]) == Admission(0, probe=True, wait_ms=0)
    assert await channels.admit("r", [limited]) == Admission(0, probe=True, wait_ms=0)
    assert (await channels.look([limited])).index is None


async def test_old_failures_do_not_count(client: Client, later: Pass) -> None:
    channels = Channels(client, CooldownRules(window_ms=40, min_failures=3))
    assert await reported(channels, failed=2) is Condition.HEALTHY
    await later(80)
    assert await reported(channels, failed=2) is Condition.HEALTHY


async def test_a_cool_down_that_the_upstream_asks_for_is_kept_up_to_the_maximum(channels: Channels) -> None:
    assert await reported(channels, failed=1, cool_ms=150) is Condition.COOLING
    assert await cool_ms(channels) == 150
    await reported(channels, failed=1, cool_ms=100)
    assert await cool_ms(channels) == 150, "it is not made shorter"
    await reported(channels, failed=1, cool_ms=3_600_000)
    assert await cool_ms(channels) == 200


async def test_one_call_probes_it_when_it_has_cooled(channels: Channels, later: Pass) -> None:
    await reported(channels, failed=3)
    await later(60)
    assert (await reported(channels), await cool_ms(channels)) == (Condition.COOLING, 0)
    answers = await asyncio.gather(*(channels.admit(f"r{n}", [limits(), limits("b")]) for n in range(20)))
    assert sorted(answer.index or 0 for answer in answers) == [0] + [1] * 19
    assert [answer.probe for answer in answers if answer.index == 0] == [True]
    alone = await channels.admit("s", [limits()])
    assert alone == Admission(0, probe=False, wait_ms=0), (
        "a call that no other channel admits need not wait for the probe"
    )


async def test_a_failed_probe_cools_it_for_longer_and_a_successful_one_makes_it_healthy(
    channels: Channels, later: Pass
) -> None:
    await reported(channels, failed=3)
    for before, after in ((60, 120), (120, 200), (200, 200)):
        await later(before)
        assert (await channels.admit("r", [limits()])).probe
        assert await reported(channels, failed=1, probe="failed") is Condition.COOLING
        assert await cool_ms(channels) == after
    await later(200)
    assert (await channels.admit("r", [limits()])).probe
    assert await reported(channels, ok=1, probe="ok") is Condition.HEALTHY
    assert not (await channels.admit("r", [limits()])).probe
    await reported(channels, failed=3)
    assert await cool_ms(channels) == 60, "the next cool-down is a first one again"


async def test_a_long_outage_makes_cool_downs_no_longer_than_half_a_minute(client: Client, later: Pass) -> None:
    channels = Channels(client, CooldownRules())
    assert await reported(channels, failed=3) is Condition.COOLING
    for _ in range(8):
        await later(await cool_ms(channels))
        assert await reported(channels, failed=1, probe="failed") is Condition.COOLING
    assert await cool_ms(channels) == 32_000
    await reported(channels, failed=1, cool_ms=60_000)
    assert await cool_ms(channels) == 60_000, "what the upstream asks for is kept"


async def test_calls_in_flight_neither_end_nor_extend_a_cool_down(channels: Channels, later: Pass) -> None:
    await reported(channels, failed=3)
    assert await reported(channels, ok=50) is Condition.COOLING
    await later(20)
    await reported(channels, failed=50)
    assert await cool_ms(channels) == 40
    await later(60)
    assert await reported(channels, failed=50) is Condition.COOLING
    assert await cool_ms(channels) == 0


@pytest.mark.parametrize("lost", [True, False])
async def test_a_probe_without_an_outcome_lets_the_next_one_go(channels: Channels, later: Pass, lost: bool) -> None:
    await reported(channels, failed=3)
    await later(60)
    assert (await channels.admit("r", [limits()])).probe
    if lost:
        assert not (await channels.admit("s", [limits()])).probe
        await later(100)
    else:
        await reported(channels, probe="void")
    assert (await channels.admit("t", [limits()])).probe


async def test_no_more_at_once_than_its_limit_and_slots_come_back(channels: Channels) -> None:
    answers = await asyncio.gather(*(channels.admit(f"r{n}", [limits(concurrent=5)]) for n in range(50)))
    admitted = [f"r{n}" for n, answer in enumerate(answers) if answer.index == 0]
    assert len(admitted) == 5
    await reported(channels, left=[*admitted[:2], "another"])
    answers = await asyncio.gather(*(channels.admit(f"s{n}", [limits(concurrent=5), limits("b")]) for n in range(50)))
    assert [answer.index for answer in answers].count(0) == 2
    assert [answer.index for answer in answers].count(1) == 48


async def test_the_slot_of_a_dead_process_comes_back_by_its_lease(channels: Channels, later: Pass) -> None:
    assert (await channels.admit("r", [limits(concurrent=1)])).index == 0
    await later(LEASE - 1)
    refused = await channels.admit("s", [limits(concurrent=1)])
    assert (refused.index, refused.wait_ms) == (None, 1000)
    await later(1)
    assert (await channels.admit("s", [limits(concurrent=1)])).index == 0


async def test_no_more_a_minute_than_its_limit(channels: Channels, later: Pass) -> None:
    answers = [await channels.admit(f"r{n}", [limits(per_minute=3)]) for n in range(5)]
    assert [answer.index for answer in answers] == [0, 0, 0, None, None]
    assert answers[-1].wait_ms == 60_000
    await later(60_000)
    assert (await channels.admit("s", [limits(per_minute=3)])).index == 0


@pytest.mark.parametrize("back_ms", [1000, 30_000, 3_600_000, 30 * 86_400_000])
class TestClockThatIsSetBack:
    async def test_a_full_minute_is_not_longer(self, channels: Channels, later: Pass, back_ms: int) -> None:
        for number in range(3):
            await channels.admit(f"r{number}", [limits(per_minute=3)])
        await later(-back_ms)
        assert await reported(channels) is Condition.HEALTHY
        assert [(await channels.admit(f"s{number}", [limits(per_minute=3)])).index for number in range(4)] == [
            *(0, 0, 0),
            None,
        ]
        await later(60_000)
        assert (await channels.admit("t", [limits(per_minute=3)])).index == 0

    async def test_a_cool_down_is_over_and_a_call_probes(self, channels: Channels, later: Pass, back_ms: int) -> None:
        assert await reported(channels, failed=3) is Condition.COOLING
        await later(-back_ms)
        assert (await channels.admit("r", [limits()])).probe
        assert await reported(channels, ok=1) is Condition.HEALTHY
        assert await reported(channels, failed=3) is Condition.COOLING
        await later(-back_ms)
        assert (await reported(channels), await cool_ms(channels)) == (Condition.COOLING, 0)
        await later(-back_ms)
        assert (await channels.admit("s", [limits()])).probe

    async def test_a_probe_that_was_lost_and_an_account_that_fails_hold_up_nobody(
        self, channels: Channels, later: Pass, back_ms: int
    ) -> None:
        await reported(channels, failed=3)
        await later(60)
        assert (await channels.admit("r", [limits()])).probe
        await reported(channels, accounts={"alice": AccountReport(failed=3, cool_ms=150)})
        await later(-back_ms)
        await later(200)
        assert (await channels.admit("s", [limits()])).probe
        status = (await channels.sync("w", {"a": ChannelReport()}))["a"]
        assert all(each.cool_ms <= 200 for each in status.accounts.values())

    async def test_a_credential_is_used_again(self, channels: Channels, later: Pass, back_ms: int) -> None:
        refused = {"f00d": "upstream_auth"}
        await channels.sync("w", {"a": ChannelReport(credentials=refused)})
        assert channels.credentials.until("a", "f00d") > 0
        await later(-back_ms)
        await channels.sync("w", {"a": ChannelReport()})
        assert channels.credentials.until("a", "f00d") == 0

    async def test_a_slot_that_was_lost_is_free(self, channels: Channels, later: Pass, back_ms: int) -> None:
        await channels.admit("lost", [limits(concurrent=1)])
        await later(-back_ms)
        await later(2 * LEASE)
        assert (await channels.admit("r", [limits(concurrent=1)])).index == 0


async def test_what_is_not_admitted_takes_nothing(channels: Channels, client: Client) -> None:
    await channels.admit("r", [limits(concurrent=1)])
    await channels.admit("s", [limits(concurrent=1, per_minute=5), limits("b", concurrent=2, per_minute=5)])
    assert await client.call("ZCARD", "gw:{channels}:a:calls") == 0
    assert await client.call("ZCARD", "gw:{channels}:b:slots") == 1


async def test_a_disabled_channel_gets_nothing_until_it_is_enabled(channels: Channels) -> None:
    await reported(channels, failed=3)
    await channels.set_enabled("a", False)
    assert await reported(channels) is Condition.DISABLED
    assert (await channels.admit("r", [limits()])).index is None
    await channels.set_enabled("a", True)
    assert await reported(channels) is Condition.HEALTHY
    assert await channels.admit("r", [limits()]) == Admission(0, probe=False, wait_ms=0)


def first(*waits_ms: int) -> list[int]:
    """Return the times to the first event as a report has them."""
    counted = [0] * (len(FIRST_EVENT_MS) + 1)
    for wait_ms in waits_ms:
        counted[bisect_left(FIRST_EVENT_MS, wait_ms)] += 1
    return counted


async def test_a_snapshot_counts_all_workers(client: Client, channels: Channels, later: Pass) -> None:
    await channels.sync("one", {"a": ChannelReport(ok=2, first=first(40, 900), in_flight=3), "b": ChannelReport()})
    failed = AccountReport(failed=1)
    await channels.sync(
        "two",
        {
            "a": ChannelReport(
                ok=2,
                first=first(50, 60),
                in_flight=4,
                failed=1,
                broken=1,
                limited=1,
                error="upstream_timeout",
                accounts={"one": failed},
            )
        },
    )
    a, b = await channels.show(["a", "b"])
    assert (a.channel, a.condition, a.in_flight) == ("a", Condition.HEALTHY, 7)
    minutes = a.figures.minutes
    assert a.figures == ChannelFigures(5, 2, 1, 0.6, 940, 880, minutes), (
        "one of the two failures was of an answer that had begun"
    )
    assert (sum(each.calls for each in minutes), sum(each.failed for each in minutes), len(minutes)) == (5, 2, 6)
    assert a.last_error == "upstream_timeout"
    assert a.last_error_at_ms is not None
    none = ChannelFigures(minutes=[MinuteFigures(0, 0)] * 6)
    assert (b.condition, b.in_flight, b.figures, b.last_error) == (Condition.HEALTHY, 0, none, "")
    await reported(channels, failed=10)
    assert (await channels.show(["a"]))[0].condition is Condition.COOLING
    assert (await channels.show(["a"]))[0].in_words.startswith("cooling until 20")
    await later(60)
    (a,) = await channels.show(["a"])
    assert (a.condition, a.in_words) == (Condition.COOLING, "cooling until a call succeeds")
    await later(360_000)
    (a,) = await channels.show(["a"])
    assert a.figures.calls == 0, "older than the last minutes"
    await reported(channels)
    assert not any(name.startswith(b"min:") for name in await client.call("HGETALL", "gw:{channels}:a:state"))


async def failed_for(channels: Channels, *accounts: str, cool_ms: int = -1, ok: int = 0) -> Condition:
    """Report one failure of a call of each of these accounts, one after the other. Return the channel's condition."""
    condition = Condition.HEALTHY
    for account in accounts:
        condition = await reported(channels, ok=ok, accounts={account: AccountReport(failed=1, cool_ms=cool_ms)})
    return condition


async def accounts(channels: Channels) -> dict[str, AccountCoolDown]:
    return (await channels.sync("w", {"a": ChannelReport()}))["a"].accounts


async def test_an_account_whose_calls_fail_cools_by_itself(channels: Channels, later: Pass) -> None:
    assert await failed_for(channels, "one", "one") is Condition.HEALTHY
    assert await accounts(channels) == {"one": AccountCoolDown(0, firm=False)}
    assert await failed_for(channels, *["one"] * 50) is Condition.HEALTHY
    assert await accounts(channels) == {"one": AccountCoolDown(60, firm=True, failing=True)}
    assert (await channels.show(["a"]))[0].failing_accounts == 1
    await later(60)
    (shown,) = await channels.show(["a"])
    assert (shown.failing_accounts, shown.in_words) == (1, "failing for 1 account"), "until one of its calls succeeds"
    assert await accounts(channels) == {"one": AccountCoolDown(0, firm=True, failing=True)}
    assert await channels.admit("r", [limits()]) == Admission(0, probe=False, wait_ms=0)
    for longer in (120, 200, 200):
        await later(200)
        await failed_for(channels, "one")
        assert (await accounts(channels))["one"].cool_ms == longer
    await reported(channels, accounts={"one": AccountReport(ok=True)})
    assert await accounts(channels) == {}
    assert (await channels.show(["a"]))[0].in_words == "healthy"
    assert await failed_for(channels, "one", "one") is Condition.HEALTHY
    assert (await accounts(channels))["one"].cool_ms == 0


async def test_one_account_counts_no_more_than_all_others_together(channels: Channels) -> None:
    assert await failed_for(channels, *["one"] * 100, "two") is Condition.HEALTHY
    assert await failed_for(channels, "two") is Condition.COOLING
    assert (await channels.sync("w", {"a": ChannelReport()}))["a"].firm


async def test_failures_of_accounts_are_compared_with_the_successes_of_all(channels: Channels) -> None:
    await reported(channels, ok=7)
    assert await failed_for(channels, *["one"] * 100, "two", "two", "two") is Condition.HEALTHY
    assert await failed_for(channels, "three") is Condition.COOLING


async def test_one_report_of_nothing_but_failures_of_several_accounts_is_enough(channels: Channels) -> None:
    await reported(channels, ok=1000)
    of_two = {"one": AccountReport(failed=9), "two": AccountReport(failed=1)}
    assert await reported(channels, accounts=of_two) is Condition.HEALTHY
    of_two["two"].failed = 2
    assert await reported(channels, accounts=of_two) is Condition.COOLING


async def test_the_channel_waits_only_as_long_as_two_accounts_were_asked_to(channels: Channels, later: Pass) -> None:
    assert await failed_for(channels, "one", "one", cool_ms=180) is Condition.HEALTHY
    status = (await channels.sync("w", {"a": ChannelReport()}))["a"]
    assert (status.condition, status.accounts["one"]) == (
        Condition.HEALTHY,
        AccountCoolDown(180, firm=False, failing=True),
    )
    assert await failed_for(channels, "two", cool_ms=100) is Condition.COOLING
    status = (await channels.sync("w", {"a": ChannelReport()}))["a"]
    assert (status.cool_ms, status.firm) == (100, False)


async def test_a_cool_down_is_firm_after_repeated_failures_and_never_shorter(channels: Channels) -> None:
    await reported(channels, failed=1, cool_ms=150)
    assert not (await channels.sync("w", {"a": ChannelReport()}))["a"].firm
    await reported(channels, failed=1)
    await reported(channels, failed=1)
    status = (await channels.sync("w", {"a": ChannelReport()}))["a"]
    assert (status.firm, status.cool_ms) == (True, 150)


async def test_a_failed_probe_of_one_account_is_followed_by_another_and_of_two_cools_for_longer(
    channels: Channels, later: Pass
) -> None:
    await reported(channels, failed=3)
    await later(60)
    for account, rest_ms in (("one", 0), ("one", 0), ("two", 120)):
        assert (await channels.admit("r", [limits()])).probe
        report = {account: AccountReport(failed=1)}
        assert await reported(channels, probe="void", accounts=report) is Condition.COOLING
        assert await cool_ms(channels) == rest_ms
    assert await cool_ms(channels) == 120


async def test_a_channel_is_called_while_it_cools_only_where_no_other_admits_the_call(channels: Channels) -> None:
    await reported(channels, failed=3)
    assert (await channels.admit("r", [limits(), limits("b")], {"a"})).index == 1
    assert await channels.admit("r", [limits()], {"a"}) == Admission(0, probe=False, wait_ms=60)
    assert (await channels.admit("r", [limits()])).index is None
    await channels.set_enabled("a", False)
    assert (await channels.admit("r", [limits()], {"a"})).index is None


async def test_accounts_are_forgotten_and_bounded(channels: Channels, client: Client, later: Pass) -> None:
    await failed_for(channels, *(f"account{number}" for number in range(100)), ok=1000)
    assert await client.call("HLEN", "gw:{channels}:a:accounts") == 64
    assert 0 < await client.call("PTTL", "gw:{channels}:a:accounts") <= 60_000
    await later(40_000)
    await failed_for(channels, "late", ok=1000)
    assert await client.call("HLEN", "gw:{channels}:a:accounts") == 1
    await channels.set_enabled("a", True)
    assert await accounts(channels) == {}


async def test_the_state_of_a_channel_that_no_gateway_has_expires_except_that_it_is_disabled(
    channels: Channels, client: Client
) -> None:
    state = "gw:{channels}:a:state"
    assert await reported(channels, failed=3) is Condition.COOLING
    week_ms = 7 * 24 * 3600 * 1000
    assert week_ms - 60_000 < await client.call("PTTL", state) <= week_ms
    await client.call("PEXPIRE", state, 1000)
    assert await reported(channels) is Condition.COOLING
    assert await client.call("PTTL", state) > 1000
    await channels.set_enabled("a", False)
    assert await client.call("PTTL", state) == -1
    assert await reported(channels) is Condition.DISABLED
    assert await client.call("PTTL", state) == -1
    await channels.set_enabled("a", True)
    assert await reported(channels, ok=1) is Condition.HEALTHY
    assert await client.call("PTTL", state) > 1000
    assert [key for key in await client.call("KEYS", "gw:*") if await client.call("PTTL", key) < 0] == []


# The circuit breaker of one worker: when it asks the store, and what it reports to it.
FREE, LIMITED = Channel("http://a/v1"), Channel("http://b/v1", concurrent=2)
CHANNELS = {"a": FREE, "b": LIMITED, "c": FREE}
A, B, C = (Candidate(name, channel, "m") for name, channel in CHANNELS.items())


@asynccontextmanager
async def worker(client: Client, channels: Mapping[str, Channel] = CHANNELS) -> AsyncIterator[ChannelBreaker]:
    health = ChannelBreaker(Channels(client, CooldownRules(first_ms=100)), channels)
    await health.start()
    yield health
    await health.stop()


async def commands(client: Client) -> int:
    return int((await client.call("INFO", "stats"))["total_commands_processed"])


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await true():
            await asyncio.sleep(0.005)


async def refusal(health: ChannelBreaker, request_id: str) -> Refused | None:
    """Return the refusal if channel `a` may not be called."""
    try:
        assert await health.admit([A], request_id) is A
    except Refused as refused:
        return refused
    return None


async def test_a_healthy_channel_without_limits_costs_no_round_trip_and_a_limited_one_costs_one(client: Client) -> None:
    async with worker(client) as health:
        before = await commands(client)
        for number in range(100):
            assert await health.admit([A, B], f"r{number}") is A
        assert await commands(client) - before <= 2 + 20, "only the background task sends commands"
        assert health.admit_at_once([A, B]) is A
        assert health.admit_at_once([B, A]) is None, "its limits are the store's to judge"
        assert await health.admit([B, A], "s") is B
        assert await client.call("ZCARD", "gw:{channels}:b:slots") == 1
        assert [health.in_flight(each) for each in (A, B)] == [101, 1]


async def test_a_slot_is_released_at_once(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_breaker_module, "SYNC_INTERVAL_S", 3600)
    async with worker(client) as health:
        assert [await health.admit([B, A], f"r{n}") for n in range(3)] == [B, B, A]
        health.left(B, "r0")

        async def released() -> bool:
            return bool(await client.call("ZCARD", "gw:{channels}:b:slots") == 1)

        await until(released)
        assert await health.admit([B, A], "r4") is B


@pytest.mark.parametrize(("outcome", "streak"), [("ok", None), ("failed", b"2"), ("", b"1")])
async def test_the_outcome_of_a_probe_is_reported(client: Client, outcome: str, streak: bytes | None) -> None:
    async with worker(client) as health:
        for number in range(3):
            await health.admit([A], f"r{number}")
            health.failed(A, f"r{number}", "upstream_error", None)
            health.left(A, f"r{number}")

        async def cooled() -> bool:
            (shown,) = await Channels(client).show(["a"])
            return shown.condition is Condition.COOLING and not shown.cool_ms

        async def admitted() -> bool:
            return await refusal(health, "probe") is None

        await until(cooled)
        await until(admitted)
        assert await health.admit([A, C], "another") is C
        if outcome == "ok":
            health.answered(A, "probe", 0.1)
        elif outcome == "failed":
            health.failed(A, "probe", "upstream_error", None)
        health.left(A, "probe")

        async def reported() -> bool:
            return list(await client.call("HMGET", "gw:{channels}:a:state", "probe", "streak")) == [None, streak]

        await until(reported)
        if outcome != "failed":
            assert await health.admit([A], "next") is A


async def test_without_the_store_only_unlimited_channels_are_called_and_reports_are_kept(tmp_path: Path) -> None:
    store = await asyncio.to_thread(EmbeddedStore.start, tmp_path)
    client = Client.connect(store.url, timeout_s=1)
    async with worker(client) as health:
        assert await health.admit([B], "r") is B
        await asyncio.to_thread(store.stop)
        health.left(B, "r")
        assert await health.admit([A], "s") is A
        with pytest.raises(StoreAway):
            await health.admit([B], "t")
        await asyncio.sleep(0.3)
        store = await asyncio.to_thread(EmbeddedStore.start, tmp_path)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    if await client.call("ZCARD", "gw:{channels}:b:slots") == 0:
                        break
                except StoreAway:
                    pass
                await asyncio.sleep(0.02)
    await client.close()
    await asyncio.to_thread(store.stop)


async def test_the_last_reports_are_sent_at_the_stop(client: Client) -> None:
    async with worker(client) as health:
        await health.admit([B], "r")
        await health.sync()
        assert (await Channels(client).show(["b"]))[0].in_flight == 1
        health.left(B, "r")
    assert await client.call("ZCARD", "gw:{channels}:b:slots") == 0
    assert (await Channels(client).show(["b"]))[0].in_flight == 0


# What is to be reported of a channel, and how two reports become one.
def test_reports_that_were_not_sent_are_merged() -> None:
    earlier = ChannelReport(
        ok=1,
        failed=2,
        cool_ms=5,
        error="x",
        accounts={
            "one": AccountReport(failed=1, cool_ms=7),
            "two": AccountReport(failed=1),
            "three": AccountReport(ok=True),
        },
    )
    later = ChannelReport(
        failed=3,
        in_flight=4,
        accounts={"one": AccountReport(failed=2), "two": AccountReport(ok=True), "three": AccountReport(failed=1)},
    )
    both = merged(earlier, later)
    assert (both.ok, both.failed, both.cool_ms, both.error, both.in_flight) == (1, 5, 5, "x", 4)
    assert both.accounts == {
        "one": AccountReport(failed=3, cool_ms=7),
        "two": AccountReport(ok=True),
        "three": AccountReport(failed=1),
    }
