"""The circuit breaker for one account: its own failures refuse it, and not others; what it was told is kept."""

from __future__ import annotations

from gateway.base.errors import Refused
from gateway.store.circuit_breaker import AccountBreaker, digest_of
from gateway.store.client.client import Client
from tests.store.test_channel_health import A, C, commands, until, worker


async def fail(breaker: AccountBreaker, times: int = 1, cool_s: float | None = None) -> float:
    """Let calls of channel `a` fail. Return the wait that is then announced."""
    for _ in range(times):
        assert await breaker.admit([A], "r") is A
        breaker.failed(A, "r", "upstream_error", cool_s)
        breaker.left(A, "r")
    return await breaker.wait_s([A], 0)


async def admitted(breaker: AccountBreaker) -> bool:
    try:
        return await breaker.admit([A], "s") is A
    except Refused:
        return False


async def test_an_account_whose_calls_fail_is_refused_and_no_other(client: Client) -> None:
    async with worker(client) as health, worker(client) as another:
        one, two = AccountBreaker(health, "one"), AccountBreaker(health, "two")
        assert await fail(one, 3, cool_s=100) > 99
        assert not await admitted(one)
        assert await one.admit([A, C], "t") is C
        before = await commands(client)
        assert [await admitted(two) for _ in range(20)] == [True] * 20
        assert await commands(client) - before <= 2 + 20, "only the background task sends commands"
        assert "this account" in await one.why_not(A)
        assert "this account" in await one.why_not_alone(A)
        assert await two.why_not(A) == await two.why_not_alone(A) == ""

        async def known() -> bool:
            return not await admitted(AccountBreaker(another, "one"))

        await until(known)
        assert await admitted(AccountBreaker(another, "two"))
        assert b"one" not in b"".join(await client.call("HKEYS", "gw:{channels}:a:accounts"))


async def test_a_single_failure_refuses_nothing_where_no_other_channel_serves(client: Client) -> None:
    async with worker(client) as health:
        one = AccountBreaker(health, "one")
        assert await fail(one, 1, cool_s=60) == 0
        assert await one.wait_s([A], 7) == 7, "the upstream's own wait is announced"
        assert await admitted(one)
        assert await one.admit([A, C], "t") is C, "another channel is preferred"
        assert "this account" in await one.why_not(A)
        assert await one.why_not_alone(A) == ""


async def test_successes_between_failures_keep_an_account_served(client: Client) -> None:
    async with worker(client) as health:
        one = AccountBreaker(health, "one")
        for _ in range(5):
            await fail(one, 2)
            assert await one.admit([A], "r") is A
            one.answered(A, "r", 0.1)
            one.left(A, "r")
            await health.sync()
        assert await fail(one, 2) == 0


async def test_a_stream_that_breaks_off_is_no_success(client: Client) -> None:
    async with worker(client) as health:
        one = AccountBreaker(health, "one")
        for _ in range(3):
            assert await one.admit([A], "r") is A
            one.answered(A, "r", 0.1)
            one.failed(A, "r", "upstream_truncated", None)
            one.left(A, "r")
        assert await one.wait_s([A], 0) > 0.05


async def test_the_wait_ends_when_the_worker_stops(client: Client) -> None:
    async with worker(client) as health:
        pass
    assert await AccountBreaker(health, "one").wait_s([A], 0) == 0


def test_the_digest_is_short_and_stable() -> None:
    assert digest_of("acme") == digest_of("acme") != digest_of("other")
    assert len(digest_of("acme")) == 16
    assert digest_of("") == ""
