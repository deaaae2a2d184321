"""Steps sent together leave the same state and replies as the same steps sent one by one, by random histories.

`STEP_HISTORIES=100000 STEP_SEED=7 pytest tests/store/client/test_step_equivalence.py` runs more of them than the suite does.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Final

from gateway import AccountLimits
from gateway.domain.budgets import NEVER, Budget
from gateway.store.accounts import Accounts, AccountStatus
from gateway.store.client.client import Client, Script
from gateway.store.client.steps import STOPPED, Step, error_in, run_steps
from gateway.store.limits import RateLimiter, TokenLimits
from gateway.store.money.wallet import Settlement, Wallet
from gateway.store.tokens import Authenticated, Tokens
from tests.store.conftest import Pepper, request_id_at
from tests.store.money.wallet_machine import REAL_STAMP

HISTORIES = int(os.environ.get("STEP_HISTORIES", "300"))
SEED = int(os.environ.get("STEP_SEED", random.randrange(1 << 32)))
ROUNDS = 8
AT_ONCE = 25
"""Keys that expire do so by the real clock, after a minute at the earliest: these must be through by then."""
START_MS = 1_800_000_000_000
CLOCK = "gw:clock"
BUDGETS: Final = (
    Budget("account", "total", 150, "T", str(NEVER)),
    Budget("token", "day", 90, "Dits", " ".join(str(START_MS + each) for each in (-9000, 4000, 12_000, 600_000))),
)


@cache
def on_test_clock(script: Script) -> Script:
    """Return the script with a clock that the test sets, so that both accounts see the same times."""
    clock = f"{{ math.floor(redis.call('GET', '{CLOCK}') / 1000), (redis.call('GET', '{CLOCK}') % 1000) * 1000 }}"
    text = script.text.replace('redis.call("TIME")', clock).replace("redis.call('TIME')", clock)
    return Script(script.name, text.replace(REAL_STAMP, '"XADD", ledger, string.format("%d-*", clock())'))


class Account:
    """One account, with what a gateway plans for its requests."""

    def __init__(self, name: str, client: Client) -> None:
        self.name = name
        self.client = client
        self.accounts, self.tokens = Accounts(client), Tokens(client, Pepper(b"a pepper of some length"))
        self.limits, self.wallet = RateLimiter(client), Wallet(client)
        self.known: Authenticated | None = None

    async def open(self) -> None:
        await self.accounts.create(self.name)
        await self.wallet.credit(self.name, "opening", 200)
        self.known = await self.tokens.authenticate((await self.tokens.create(self.name)).token)

    def steps(self, operation: str, request_id: str, numbers: Sequence[int]) -> Iterator[Step]:
        """Yield the steps of an operation, a part of them left out at random."""
        assert self.known is not None
        rules = AccountLimits(3 + numbers[0] % 3, 100, 2)
        if operation == "request":
            yield self.tokens.guard(self.known).step("")
            for scope in ("one", "two"):
                token = TokenLimits("its-token", AccountLimits(4, 90, 1)) if scope == "two" else None
                taking = self.limits.taking(self.name, scope, rules, 600_000, token)
                yield taking.step(request_id, (numbers[1] % 60,))
            values = self.wallet.to_hold(numbers[2] % 120, numbers[3] % 9, f"{numbers[4] % 2}")
            yield self.wallet.holding(self.name, 4000, 3, BUDGETS[: numbers[5] % 3]).step(request_id, values)
        else:
            cost = numbers[1] % 90
            settlement = Settlement(self.name, request_id, cost, "settle" if cost else "release")
            yield self.wallet.settling(self.name).step(request_id, self.wallet.to_settle(settlement))
            for scope in ("two", "one"):
                token_id = "its-token" if scope == "two" else None
                yield self.limits.giving_back(self.name, scope, token_id).step(request_id, (numbers[2] % 60,))

    async def change(self, operation: str) -> None:
        """Change the account as an operator does."""
        if operation == "suspend":
            await self.accounts.change(self.name, status=AccountStatus.SUSPENDED)
        elif operation == "resume":
            await self.accounts.change(self.name, status=AccountStatus.ACTIVE)
        else:
            await self.wallet.credit(self.name, "top-up", 50)


READ: Final = {
    b"hash": ("HGETALL",),
    b"zset": ("ZRANGE", 0, -1, "WITHSCORES"),
    b"stream": ("XRANGE", "-", "+"),
    b"string": ("GET",),
    b"set": ("SMEMBERS",),
}


async def states(client: Client) -> dict[str, dict[str, Any]]:
    """Return all that the store has of each account, without names, the token's digest and the ids of the ledger's lines."""
    keys = sorted({key async for key in client.keys("gw:{*}:*")})
    kinds = await asyncio.gather(*(client.submit("TYPE", key) for key in keys))
    reads = (client.submit(READ[kind][0], key, *READ[kind][1:]) for key, kind in zip(keys, kinds, strict=True))
    found: dict[str, dict[str, Any]] = {}
    for key, kind, value in zip(keys, kinds, await asyncio.gather(*reads), strict=True):
        account, _, name = key.removeprefix("gw:{").partition("}:")
        found.setdefault(account, {})[name] = comparable(name, kind, value)
    return found


def comparable(name: str, kind: bytes, value: Any) -> Any:
    """Return what is the same for two accounts of the value of a key."""
    if kind == b"stream":
        return [fields for _, fields in value]
    if kind != b"hash":
        return value
    value.pop(b"trimmed", None)  # the id of a line
    return len(value) if name == "tokens" else dict(sorted(value.items()))  # a large hash has no order


def without_name(value: Any, name: str) -> str:
    """Return the value as text in which the two accounts do not differ: they have tokens and times of their own."""
    text = re.sub(r'\{"digest".*?\}\}', "TOKEN", repr(value).replace(name, "NAME"))
    return re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", text)


async def one_by_one(client: Client, steps: Sequence[Step]) -> list[Any]:
    """Send each step by itself, as far as none stops or fails."""
    replies: list[Any] = []
    for step in steps:
        ((status, value),) = await run_steps(client, [step])
        replies.append([status, value])
        if status == STOPPED or error_in(status, value) is not None:
            break
    return replies


class History:
    """A random history, lived on two accounts, whose steps are sent one by one and together."""

    def __init__(self, number: int, client: Client, chance: random.Random) -> None:
        self.number = number
        self.client = client
        self.chance = chance
        self.pair = (Account(f"one{number}", client), Account(f"two{number}", client))
        self.ids: list[str] = []

    async def open(self) -> None:
        await asyncio.gather(*(account.open() for account in self.pair))

    async def act(self, now: int) -> None:
        """Do one thing on both accounts. Raises `AssertionError` where the replies differ."""
        chance = self.chance
        operation = chance.choice(("request", "request", "request", "end", "end", "suspend", "resume", "credit"))
        if operation not in ("request", "end"):
            await asyncio.gather(*(account.change(operation) for account in self.pair))
            return
        if not self.ids or (operation == "request" and chance.random() < 0.8):
            self.ids.append(request_id_at(now - chance.choice((0, 10, 400_000))))
        request_id = chance.choice(self.ids[-3:])
        numbers = [chance.randrange(1000) for _ in range(6)]
        kept = [index for index in range(4) if chance.random() < 0.8] or [0]
        sent = []
        for account, send in zip(self.pair, (one_by_one, run_steps), strict=True):
            steps = [step for index, step in enumerate(account.steps(operation, request_id, numbers)) if index in kept]
            if not steps:
                return
            for step in steps:
                step.script = on_test_clock(step.script)
            sent.append(send(self.client, steps))
        replies = await asyncio.gather(*sent)
        self.compare(*replies)

    def compare(self, one: object, two: object) -> None:
        """Raise `AssertionError` if these differ, which are of the first and of the second account."""
        assert without_name(one, self.pair[0].name) == without_name(two, self.pair[1].name)


async def test_together_is_the_same_as_one_by_one(client: Client) -> None:
    chance = random.Random(SEED)
    numbers = range(HISTORIES)
    while numbers:
        at_once, numbers = numbers[:AT_ONCE], numbers[AT_ONCE:]
        now = START_MS
        await client.call("SET", CLOCK, now)
        histories = [History(number, client, random.Random(chance.random())) for number in at_once]
        try:
            await asyncio.gather(*(history.open() for history in histories))
            for _ in range(ROUNDS):
                now += chance.choice((0, 1, 300, 4500, 70_000, 700_000))
                await client.call("SET", CLOCK, now)
                await asyncio.gather(*(history.act(now) for history in histories))
            left = await states(client)
            for history in histories:
                history.compare(*(left[account.name] for account in history.pair))
            await client.call("FLUSHDB")
        except AssertionError as error:
            raise AssertionError(f"STEP_SEED={SEED}, histories {at_once}") from error
