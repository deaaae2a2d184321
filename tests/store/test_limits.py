"""Limits are decided atomically, exactly, all or nothing; a slot is never lost and never taken twice."""

from __future__ import annotations

import asyncio
import time
from fractions import Fraction
from itertools import count
from math import ceil

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gateway.config.schema import LARGEST_RATE
from gateway.domain.facts import AccountLimits
from gateway.store import limits
from gateway.store.client.client import Argument, Client, Script
from gateway.store.limits import Limited, Rate, RateLimiter, Taken, TokenLimits

MINUTE_US = 60_000_000
SLOTS = "gw:{alice}:limits:rate-limit:slots"


class ScopedLimits:
    """The limits of one account in one scope."""

    def __init__(self, client: Client, scope: str = "rate-limit") -> None:
        self.limits = RateLimiter(client)
        self.scope = scope

    async def take(
        self,
        request_id: str,
        rules: AccountLimits,
        tokens: int = 0,
        lease_ms: int = 60_000,
        token: TokenLimits | None = None,
    ) -> Taken | Limited:
        return await self.limits.take(
            "alice", request_id, scope=self.scope, rules=rules, tokens=tokens, lease_ms=lease_ms, token=token
        )

    async def give_back(self, request_id: str, tokens: int = 0, token_id: str | None = None) -> None:
        declared = self.limits.giving_back("alice", self.scope, token_id)
        await self.limits.run(declared.step(request_id, (self.limits.counted(tokens),)))


@pytest.fixture
def scoped(client: Client) -> ScopedLimits:
    return ScopedLimits(client)


class VirtualSchedule:
    """GCRA by its definition (ITU-T I.371): the theoretical arrival time moves on by an interval for each unit."""

    def __init__(self, per_minute: int) -> None:
        self.interval = Fraction(MINUTE_US, per_minute)
        self.arrival = Fraction(0)

    def wait_ms(self, now: int, units: int) -> int:
        early = max(self.arrival, Fraction(now)) + units * self.interval - MINUTE_US - now
        return ceil(Fraction(max(0, ceil(early)), 1000))

    def add(self, now: int, units: int) -> None:
        self.arrival = max(Fraction(now), max(self.arrival, Fraction(now)) + units * self.interval)

    def level(self, now: int) -> Fraction:
        return (max(self.arrival, Fraction(now)) - now) / self.interval * MINUTE_US


class Model:
    """The limits of one account, in exact fractions."""

    def __init__(self, requests: int, tokens: int, concurrent: int, lease_ms: int) -> None:
        self.requests = VirtualSchedule(requests)
        self.tokens = VirtualSchedule(tokens)
        self.concurrent = concurrent
        self.lease_ms = lease_ms
        self.slots: dict[str, int] = {}
        self.taken: dict[str, int | None] = {}

    def look(self, now: int, request_id: str, tokens: int) -> list[object]:
        return [*self._decide(now, request_id, tokens), self.requests.level(now), self.tokens.level(now)]

    def take(self, now: int, request_id: str, tokens: int) -> list[object]:
        kind, wait_ms = self._decide(now, request_id, tokens)
        if not kind and request_id not in self.taken:
            self.requests.add(now, 1)
            self.tokens.add(now, tokens)
            self.slots[request_id] = now // 1000 + self.lease_ms
            self.taken[request_id] = tokens
        return [kind, wait_ms, self.requests.level(now), self.tokens.level(now)]

    def give_back(self, now: int, request_id: str, tokens: int) -> None:
        self.slots.pop(request_id, None)
        estimate = self.taken.get(request_id)
        if estimate is not None:
            self.tokens.add(now, tokens - estimate)
        self.taken[request_id] = None

    def _decide(self, now: int, request_id: str, tokens: int) -> tuple[bytes, int]:
        if request_id in self.taken:
            return b"", 0
        requests, rate = self.requests.wait_ms(now, 1), self.tokens.wait_ms(now, tokens)
        if max(requests, rate) > 0:
            return (b"requests", requests) if requests >= rate else (b"tokens", rate)
        live = [request_id for request_id, expiry in self.slots.items() if expiry > now // 1000]
        return (b"concurrent", 1000) if len(live) >= self.concurrent else (b"", 0)


GIVEN_TIME = "local NOW = ARGV[#ARGV]\n"


def at_a_given_time() -> tuple[Script, Script]:
    """Return the real scripts for an account, and for an account and a token, with the time as their last argument."""
    real = limits._LIMITS
    clock = "local time = redis.call('TIME')\nlocal now = time[1] * 1000000 + time[2]\n"
    assert real.text.count(clock) == 1
    assert real.text.count("'TIME'") == 1
    given = Script("limits", real.text.replace(clock, "local now = NOW + 0\n"))
    return Script("limits", GIVEN_TIME + given.text), Script("both", GIVEN_TIME + limits.of_token(given).text)


steps = st.tuples(
    st.sampled_from(["take", "take", "take", "give_back"]),
    st.sampled_from([0, 1, 999, 1000, 12_345, 1_000_000]) | st.integers(0, 2 * MINUTE_US),
    st.integers(0, 30),
    st.integers(0, 2**27),
)
rates = st.integers(1, 50) | st.sampled_from([60, 997, LARGEST_RATE - 1, LARGEST_RATE])
serial = count()


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rates, rates, st.integers(1, 4), st.integers(30_000, 90_000), st.lists(steps, min_size=10, max_size=40))
@example(1, 1, 1, 30_000, [("take", 0, 0, 1), ("take", 0, 1, 1)])
@example(60, 1, 1, 30_000, [("take", 0, 0, 0), ("take", 29_999_999, 1, 0), ("take", 1, 2, 0)])
async def test_every_decision_is_that_of_gcra_by_its_definition(
    client: Client, requests: int, tokens: int, concurrent: int, lease_ms: int, story: list[tuple[str, int, int, int]]
) -> None:
    script, _ = at_a_given_time()
    prefix = f"gw:{{model{next(serial)}}}:limits:"
    model = Model(requests, tokens, concurrent, lease_ms)
    now = 1_800_000_000_000_000
    for operation, elapsed, number, wanted in story:
        now += elapsed
        request_id = f"r{number}"
        units = wanted % (tokens + 1)
        keys = [f"{prefix}rates", f"{prefix}slots", f"{prefix}{request_id}"]
        if operation == "take":
            reply = await client.run(
                script, keys, ["take", request_id, units, lease_ms, requests, tokens, concurrent, now]
            )
            assert reply == model.take(now, request_id, units)
        else:
            await client.run(script, keys, ["give_back", request_id, units, now])
            model.give_back(now, request_id, units)


@pytest.mark.parametrize("back_s", [1, 30, 3600, 30 * 86_400])
@pytest.mark.parametrize("units", [0, 10])
async def test_nobody_waits_longer_than_announced_where_the_clock_is_set_back(
    client: Client, back_s: int, units: int
) -> None:
    script, _ = at_a_given_time()
    prefix = f"gw:{{back{next(serial)}}}:limits:"

    async def take(now: int, request_id: str, concurrent: int = 0) -> list[object]:
        keys = [f"{prefix}rates", f"{prefix}slots", f"{prefix}{request_id}"]
        reply = await client.run(script, keys, ["take", request_id, units, 500, 3, 20, concurrent, now])
        return list(reply)

    now = 1_800_000_000_000_000
    while not (limit := (await take(now, f"r{next(serial)}", 9))[0]):
        pass
    now -= back_s * 1_000_000
    again, wait_ms, *_ = await take(now, "late")
    assert (again, isinstance(wait_ms, int) and 0 < wait_ms <= 60_000) == (limit, True)
    assert isinstance(wait_ms, int)
    assert (await take(now + 1000 * wait_ms, "late"))[0] == b""
    assert (await take(now + 60_000_000, "dead", 1))[0] == b"", "a slot of the clock that was ahead"
    assert (await take(now + 120_000_000, "next", 1))[0] == b""


few = st.tuples(st.integers(1, 50), st.integers(1, 50), st.integers(1, 4))


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(few, few, st.integers(30_000, 90_000), st.lists(steps, min_size=10, max_size=40))
@example(
    (9, 9, 9), (1, 9, 9), 30_000, [("take", 0, 0, 0), ("take", 0, 1, 0), ("give_back", 0, 1, 0), ("take", 0, 2, 0)]
)
@example(
    (9, 9, 1), (9, 9, 9), 30_000, [("take", 0, 0, 9), ("take", 0, 1, 0), ("give_back", 0, 0, 1), ("take", 0, 1, 9)]
)
async def test_a_request_is_allowed_where_account_and_token_allow_it_and_else_takes_from_neither(
    client: Client,
    of_account: tuple[int, int, int],
    of_token: tuple[int, int, int],
    lease_ms: int,
    story: list[tuple[str, int, int, int]],
) -> None:
    _, script = at_a_given_time()
    prefix = f"gw:{{both{next(serial)}}}:limits:"
    account, token = Model(*of_account, lease_ms), Model(*of_token, lease_ms)
    now = 1_800_000_000_000_000
    for operation, elapsed, number, wanted in story:
        now += elapsed
        request_id = f"r{number}"
        units = wanted % (min(of_account[1], of_token[1]) + 1)
        keys = [f"{prefix}{of}{name}" for of in ("", "t:") for name in ("rates", "slots", request_id)]
        if operation == "give_back":
            await client.run(script, keys, ["give_back", request_id, units, now])
            account.give_back(now, request_id, units)
            token.give_back(now, request_id, units)
            continue
        asked: list[Argument] = [request_id, units, lease_ms, *of_account, *of_token, now]
        before = [account.look(now, request_id, units), token.look(now, request_id, units)]
        assert await client.run(script, keys, ["look", *asked]) == before
        reply = await client.run(script, keys, ["take", *asked])
        if before[0][0] or before[1][0]:
            assert reply == before
        else:
            assert reply == [account.take(now, request_id, units), token.take(now, request_id, units)]


async def test_of_a_hundred_concurrent_requests_as_many_as_slots_are_allowed(scoped: ScopedLimits) -> None:
    rules = AccountLimits(concurrent=8)
    answers = await asyncio.gather(*(scoped.take(f"r{n}", rules) for n in range(100)))
    taken = [n for n, answer in enumerate(answers) if isinstance(answer, Taken)]
    assert len(taken) == 8
    assert {answer.kind for answer in answers if isinstance(answer, Limited)} == {"concurrent"}
    await asyncio.gather(*(scoped.give_back(f"r{n}") for n in taken[:3]))
    answers = await asyncio.gather(*(scoped.take(f"s{n}", rules) for n in range(100)))
    assert sum(isinstance(answer, Taken) for answer in answers) == 3


async def test_what_remains_and_when_it_resets_is_returned(scoped: ScopedLimits) -> None:
    taken = await scoped.take("r", AccountLimits(requests_per_minute=60, tokens_per_minute=1000), 30)
    assert taken == Taken(Rate(60, 59, 1000), Rate(1000, 970, 1800))
    assert await scoped.take("s", AccountLimits(concurrent=5)) == Taken(None, None)


async def test_more_tokens_than_a_minute_of_account_or_token_have_no_retry_time(scoped: ScopedLimits) -> None:
    rules = AccountLimits(requests_per_minute=1, tokens_per_minute=100)
    assert await scoped.take("large", rules, 101) == Limited("tokens", None)
    assert isinstance(await scoped.take("fits", rules, 100), Taken)
    token = TokenLimits("alice-one", AccountLimits(tokens_per_minute=100))
    assert await scoped.take("r", AccountLimits(), 101, token=token) == Limited("tokens", None, of_token=True)
    assert isinstance(await scoped.take("s", AccountLimits(), 100, token=token), Taken)


async def test_slots_are_kept_for_their_lease(scoped: ScopedLimits, client: Client) -> None:
    rules, lease_ms = AccountLimits(concurrent=2), 60_000

    async def take(request_id: str) -> int:
        assert isinstance(await scoped.take(request_id, rules, lease_ms=lease_ms), Taken)
        expiry_ms: int = await client.call("PTTL", SLOTS)
        return expiry_ms

    assert lease_ms + 20_000 < await take("a") <= lease_ms + 30_000
    await client.call("PEXPIRE", SLOTS, lease_ms + 10_000)
    assert await take("b") <= lease_ms + 10_000, "renewed before it had to be"
    await scoped.give_back("b")
    await client.call("PEXPIRE", SLOTS, lease_ms - 1)
    assert await take("c") > lease_ms, "gone before its lease"
    assert isinstance(await scoped.take("d", rules), Limited)
    await client.call("ZADD", SLOTS, int(time.time() * 1000) - 1, "c")
    await take("d")
    assert await client.call("ZRANGE", SLOTS, 0, -1) == [b"a", b"d"]


async def test_scopes_have_separate_limits(scoped: ScopedLimits, client: Client) -> None:
    rules = AccountLimits(requests_per_minute=1, tokens_per_minute=10, concurrent=1)
    other = ScopedLimits(client, "other")
    assert isinstance(await scoped.take("r", rules, 10), Taken)
    assert isinstance(await other.take("r", rules, 10), Taken)
    await other.give_back("r", 10)
    assert isinstance(await scoped.take("s", AccountLimits(concurrent=1)), Limited)
    assert isinstance(await other.take("s", AccountLimits(concurrent=1)), Taken)


async def test_accounts_have_separate_limits(client: Client) -> None:
    limits = RateLimiter(client)
    for account in ("alice", "bob"):
        taken = await limits.take(
            account, "r", scope="s", rules=AccountLimits(requests_per_minute=1), tokens=0, lease_ms=1000
        )
        assert isinstance(taken, Taken)


async def test_a_token_and_its_account_are_limited_together(scoped: ScopedLimits) -> None:
    account = AccountLimits(requests_per_minute=100, tokens_per_minute=1000, concurrent=3)
    one, other = (TokenLimits(f"alice-{name}", AccountLimits(concurrent=2)) for name in ("one", "other"))
    for n in range(2):
        assert isinstance(await scoped.take(f"a{n}", account, 100, token=one), Taken)
    refused = await scoped.take("a2", account, 100, token=one)
    assert isinstance(refused, Limited)
    assert (refused.kind, refused.of_token) == ("concurrent", True)
    taken = await scoped.take("b0", account, 100, token=other)
    assert isinstance(taken, Taken)
    assert taken.tokens is not None
    assert 700 <= taken.tokens.remaining < 800, "the refused request took no tokens of the account"
    refused = await scoped.take("b1", account, 100, token=other)
    assert isinstance(refused, Limited)
    assert (refused.kind, refused.of_token) == ("concurrent", False)
    await scoped.give_back("a0", 100, one.token_id)
    assert isinstance(await scoped.take("b1", account, 100, token=other), Taken), "it gave back to both"
    await scoped.give_back("b1", 100, other.token_id)
    assert isinstance(await scoped.take("a2", account, 100, token=one), Taken)


async def test_of_a_hundred_requests_at_once_as_many_as_the_tokens_limit_are_allowed(scoped: ScopedLimits) -> None:
    token = TokenLimits("alice-one", AccountLimits(requests_per_minute=7))
    rules = AccountLimits(requests_per_minute=50)
    answers = await asyncio.gather(*(scoped.take(f"r{n}", rules, token=token) for n in range(100)))
    assert sum(isinstance(answer, Taken) for answer in answers) == 7
    answers = await asyncio.gather(*(scoped.take(f"s{n}", rules) for n in range(100)))
    assert sum(isinstance(answer, Taken) for answer in answers) == 43


async def test_the_rate_of_which_less_is_left_is_returned_and_the_longer_wait(scoped: ScopedLimits) -> None:
    account = AccountLimits(requests_per_minute=2, tokens_per_minute=1000)
    token = TokenLimits("alice-one", AccountLimits(requests_per_minute=60, tokens_per_minute=100))
    taken = await scoped.take("r", account, 10, token=token)
    assert taken == Taken(Rate(2, 1, 30_000), Rate(100, 90, 6000))
    await scoped.take("s", account, 90, token=token)
    refused = await scoped.take("t", account, 100, token=token)
    assert isinstance(refused, Limited)
    assert (refused.kind, refused.of_token, refused.requests and refused.requests.limit) == ("tokens", True, 2)
    assert refused.retry_after_ms is not None
    assert refused.retry_after_ms > 30_000, "longer than the wait for a request of the account"
    refused = await scoped.take("u", account, 1, token=token)
    assert isinstance(refused, Limited)
    assert (refused.kind, refused.of_token) == ("requests", False)


async def test_tokens_are_corrected_for_account_and_token_once(scoped: ScopedLimits) -> None:
    account, token = (
        AccountLimits(tokens_per_minute=1000),
        TokenLimits("alice-one", AccountLimits(tokens_per_minute=500)),
    )
    await scoped.take("r", account, 500, token=token)
    for _ in range(3):
        await scoped.give_back("r", 100, token.token_id)
    taken = await scoped.take("s", account, 400, token=token)
    assert isinstance(taken, Taken)
    assert taken.tokens is not None
    assert (taken.tokens.limit, taken.tokens.remaining < 10) == (500, True)
    assert isinstance(await scoped.take("t", account, 600), Limited)
    assert isinstance(await scoped.take("t", account, 500), Taken)


async def test_a_lower_limit_counts_what_was_taken_under_the_higher(scoped: ScopedLimits) -> None:
    for n in range(10):
        await scoped.take(f"r{n}", AccountLimits(requests_per_minute=100))
    assert isinstance(await scoped.take("s", AccountLimits(requests_per_minute=10)), Limited)
    assert isinstance(await scoped.take("s", AccountLimits(requests_per_minute=100)), Taken)


async def test_cancelled_calls_take_nothing_that_is_not_given_back(scoped: ScopedLimits, client: Client) -> None:
    rules = AccountLimits(concurrent=100)

    async def left(request_id: str, steps: int) -> None:
        task = asyncio.create_task(scoped.take(request_id, rules))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        await scoped.give_back(request_id)

    await asyncio.gather(*(left(f"r{n}", n % 20) for n in range(100)))
    assert await client.call("ZCARD", SLOTS) == 0
    answers = await asyncio.gather(*(scoped.take(f"s{n}", rules) for n in range(101)))
    assert sum(isinstance(answer, Taken) for answer in answers) == 100


async def test_every_key_expires(scoped: ScopedLimits, client: Client) -> None:
    rules = AccountLimits(requests_per_minute=1, tokens_per_minute=10, concurrent=2)
    await scoped.take("a", rules, 5, lease_ms=70_000)
    await scoped.give_back("never taken")
    await scoped.take("b", rules, 5, token=TokenLimits("alice-one", rules), lease_ms=70_000)
    keys = await client.call("KEYS", "*")
    assert len(keys) == 4
    await scoped.take("c", AccountLimits(), 5, token=TokenLimits("alice-one", rules), lease_ms=70_000)
    keys = await client.call("KEYS", "*")
    assert len(keys) == 8
    for key in keys:
        assert 0 < await client.call("PTTL", key) <= 120_000


@pytest.mark.parametrize("number", [0, -1, LARGEST_RATE + 1])
def test_rules_out_of_range_are_refused(number: int) -> None:
    for name in ("requests_per_minute", "tokens_per_minute", "concurrent"):
        with pytest.raises(ValueError, match=f"{name} must be from 1"):
            AccountLimits(**{name: number})
