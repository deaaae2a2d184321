"""Random requests by plans and by hooks, which must do the same: `python -m tests.fuzz.plans --requests N --seed S [--seconds T]`.

Two gateways run in this process, each with a store of its own, which have the same accounts and tokens. One serves a request by its
plan where it has one, the other by its hooks. Compared are the bytes to the caller, the bytes to the upstream, the commands of the
store with the records in them, and at the end of each episode what is left of balances, ledgers and counted refusals.

Nothing hangs on the time: limits are decided by a clock that stands still, in the store's script and in the process. An episode has
fresh accounts and an address of its own, and the clock of the process has moved by an hour.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Final, cast

import hiredis
import msgspec
import pytest
import structlog

from gateway import AccountLimits, AccountStatus, Budgets, Record
from gateway.base.ids import Clock
from gateway.chain.plugin import StalePlan
from gateway.chain.request_hooks import RequestHooks
from gateway.domain.facts import Candidate
from gateway.runtime.worker import new_loop
from gateway.store import limits
from gateway.store.channels import _keys
from gateway.store.circuit_breaker import ChannelBreaker
from gateway.store.client.client import Script
from gateway.store.client.protocol import pack
from gateway.store.tokens import TokenStatus, tokens_key
from gateway.testing import Running, running
from plugins.model_routing import ModelRouting
from plugins.usage_logger import UsageLogger
from tests.fuzz.exchanges import Answer, Upstream, drawn_answers, drawn_request
from tests.patience import PATIENCE_S

EPISODE: Final = 150
"""Requests for the same accounts."""
AT_ONCE: Final = 16_384
"""Bytes of a request that surely arrive together."""
STILL: Final = "{ '1900000000', '0' }"
"""What the script of limits reads in place of the store's clock."""
HOUR_S: Final = 3600.0
TIMES: Final = {"arrived_at": "", "duration_ms": 0, "longest_gap_ms": 0, "first_byte_ms": None}
HEADERS: Final = re.compile(rb"(?i)\r\n(date|x-request-id): [^\r]*")
REQUEST_ID: Final = re.compile(rb"(?i)\r\nx-request-id: ([^\r]*)")
decode_record: Final = msgspec.json.Decoder(Record).decode
ENDS_OF_IDS: Final = re.compile(rb"-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
"""The last 23 bytes of an id, found fifty times as fast as a whole one: they begin with the same two."""
BEGINS: Final = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}")

LIMITS: Final[tuple[dict[str, Any], ...]] = (
    *({}, {}, {}, {}),
    {"limits": AccountLimits(100_000, 900_000, 40)},
    {"limits": AccountLimits(requests_per_minute=9, concurrent=2)},
    {"limits": AccountLimits(50, 3000)},
)
BUDGETS: Final[tuple[dict[str, Any], ...]] = (
    *({}, {}, {}),
    {"budgets": Budgets(day=3_000_000, total=4_000_000)},
    {"budgets": Budgets(day=2000, requests=20)},
    {"budgets": Budgets(month=2_000_000, requests=9)},
)
CREDITS: Final = (5_000_000,) * 6 + (9_000, 2_000, 300, 0)
OF_TOKENS: Final[tuple[dict[str, Any], ...]] = (
    *({}, {}, {}, {}, {}, {}, LIMITS[4], LIMITS[5], LIMITS[6], BUDGETS[3], BUDGETS[4]),
    *({"models": ["words", "tiered"]}, {"addresses": ["127.0.0.0/8"]}),
)


def document(base_url: str, price: int = 1) -> str:
    """Return a configuration of models with prices of all kinds, one of them free, whose plugins allow few refusals."""
    model: dict[str, object] = {"input": price, "output": 2, "max_output_tokens": 100}
    tiers = [{"above": 40, "input": 3, "output": 4}]
    models = {
        "words": {**model, "channels": ["fake"]},
        "tiered": {**model, "tiers": tiers, "channels": [{"use": "fake", "cost": {"input": 0.5, "output": 1}}]},
        "fast": {**model, "service_tiers": {"priority": 2}, "channels": ["fake"]},
        "two": {**model, "request": 0.001, "channels": ["fake", "other"]},
        "helped": {**model, "fallback": ["words"], "channels": ["fake", "other"]},
        "free": {"free": True, "channels": ["fake"]},
        "vectors": {"input": 1, "output": 1, "channels": ["vectors"]},
    }
    channel = {"base_url": base_url, "api_key": "key-of-the-channel"}
    return json.dumps(
        {
            "channels": {"fake": channel, "other": channel, "vectors": {**channel, "operations": ["embeddings"]}},
            "models": models,
            "aliases": {"alias": "words"},
            "groups": {"default": {}, "vip": {"ratio": 3}, "few": {"models": ["tiered"]}, "off": {"enabled": False}},
            "store": {"timeout": PATIENCE_S},
            "port": {"allow_non_streaming": True},
            "plugins": [
                {"use": "usage-logger", "with": {"unknown_per_minute": 3, "refused_per_minute": 6}},
                {"use": "auth", "with": {"wrong_tokens_per_minute": 8}},
                {"use": "rate-limit", "with": {"requests_per_minute": 100_000, "concurrent": 50}},
                {"use": "quota"},
                {"use": "model-routing"},
            ],
        }
    )


@contextmanager
def standing_still() -> Iterator[Callable[[], None]]:
    """Let the clock of limits stand still meanwhile, and no refusal wait. Yield what moves it by an hour."""
    now = [HOUR_S]

    def move() -> None:
        now[0] += HOUR_S

    with pytest.MonkeyPatch.context() as patch:
        one = limits._LIMITS
        still = Script(one.name, one.text.replace("redis.call('TIME')", STILL))
        assert still.text != one.text
        patch.setattr(limits, "_LIMITS", still)
        patch.setattr(limits, "_LIMITS_OF_TOKEN", limits.of_token(still))
        patch.setattr(Clock, "monotonic", lambda _: now[0])
        patch.setattr("plugins.pacing.LONGEST_DELAY_S", 0.0)
        patch.setattr(ChannelBreaker, "_run", lambda _: asyncio.sleep(0))  # told where a request waits for it
        patch.setattr(ChannelBreaker, "wait_s", _wait_s)
        patch.setattr("plugins.pacing.ALL_ADDRESSES", 1_000_000)  # those of another episode count for nobody
        patch.setattr("plugins.usage_logger.REPORT_EVERY_S", 1e9)  # what was counted is compared instead
        patch.setattr("plugins.model_routing._by_chance", lambda each: Random(f"{Way.chosen} {each.name}").random())
        patch.setenv("GATEWAY_PEPPER", "pepper-of-both-gateways-which-is-long-enough")
        yield move


async def _wait_s(health: ChannelBreaker, candidates: Sequence[Candidate], account: str, asked_s: float) -> float:
    await health.sync()
    return health._wait_s(candidates, account, asked_s)


class Caller(asyncio.Protocol):
    """A caller with one connection, which it opens again where the gateway has closed it."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._answered: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # one of uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = bytes(self._received).partition(b"\r\n\r\n")
        if not found:
            return
        length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
        if len(body) >= int(length[1]) if length else body == b"0\r\n\r\n" or body.endswith(b"\r\n0\r\n\r\n"):
            self._done()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._done()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    async def ask(self, gateway: Running, address: str, pieces: Sequence[bytes]) -> bytes:
        """Return an answer as it comes, up to its end or that of the connection."""
        loop = asyncio.get_running_loop()
        if self._transport is None or self._transport.is_closing():
            while self._transport is not None:  # its loss is not to be taken for that of the next one
                await asyncio.sleep(0)
            where = gateway.host, gateway.port
            await loop.create_connection(lambda: self, *where, local_addr=(address, 0))
        assert self._transport is not None
        self._received.clear()
        answered: asyncio.Future[bytes] = loop.create_future()
        self._answered = answered
        for piece in pieces:
            self._transport.write(piece)
            if piece is not pieces[-1]:
                await asyncio.sleep(0)
        return await answered

    def _done(self) -> None:
        if b"\r\nConnection: close\r\n" in self._received:
            self.close()  # else the next request might be on its way before the gateway's end of it arrives
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(bytes(self._received))


def comparable_answer(raw: bytes) -> tuple[bytes, bytes]:
    """Return head and body of an answer, without its framing, the date and the request's id."""
    head, _, body = raw.partition(b"\r\n\r\n")
    if found := REQUEST_ID.search(head):
        body = body.replace(found[1], b"ID")
    if b"\r\ntransfer-encoding: chunked" in head.lower():
        parts = []
        while body:
            size, _, body = body.partition(b"\r\n")
            parts.append(body[: int(size, 16)])
            body = body[int(size, 16) + 2 :]
        body = b"".join(parts)
    return HEADERS.sub(b"", head), body


def without_ids(packed: bytes) -> bytes:
    """Return commands with zeros in place of each id."""
    for found in {packed[max(0, each.end() - 36) : each.end()] for each in ENDS_OF_IDS.finditer(packed)}:
        if BEGINS.match(found):
            packed = packed.replace(found, b"0" * 36)
    return packed


def comparable_commands(packed: Sequence[bytes]) -> list[list[bytes | Record]]:
    """Return the parts of each command, without ids and times."""
    reader = hiredis.Reader()
    reader.feed(without_ids(b"".join(packed)))
    commands: list[list[bytes]] = [reader.gets() for _ in packed]
    return [[comparable_record(part) if part.startswith(b'{"id"') else part for part in parts] for parts in commands]


def comparable_record(line: bytes) -> Record:
    """Return a record without times.

    What is refused before the caller is admitted has a model where the body was read, as it is to find a plan.
    """
    record: Record = msgspec.structs.replace(decode_record(line), **TIMES)
    if record.refused_by in ("usage-logger", "auth"):
        return msgspec.structs.replace(record, model="", requested_model="", changed_by=[])
    return record


def shown(one: Sequence[Any], two: Sequence[Any]) -> str:
    """Return what differs, a line for each part."""
    if len(one) != len(two):
        return "\n".join(f"    {each!r}"[:3000] for each in (*one, "by hooks:", *two))
    pairs = [(a, b) for a, b in zip(one, two, strict=True) if a != b]
    return "\n".join(
        shown(a, b) if isinstance(a, list) and isinstance(b, list) else f"    {a!r}\n    {b!r}" for a, b in pairs
    )


class Keeping:
    """A topology that keeps the commands of requests."""

    def __init__(self, topology: Any, commands: list[bytes]) -> None:
        self._topology, self.redis, self.sharded = topology, topology.redis, False
        self.follow, self.close, self._commands = topology.follow, topology.close, commands

    def submit(self, command: tuple[Any, ...], convert: Any, script: str | None = None) -> Any:
        return self.send(pack(command), convert, script)

    def send(self, packed: bytes, convert: Any, script: str | None) -> Any:
        if (b"\r\nXADD\r\n" in packed[:24] and b'"operation":"counted"' not in packed) or (
            b"\r\nEVALSHA\r\n" in packed[:24] and b"{channels}" not in packed
        ):
            self._commands.append(packed)
        return self._topology.send(packed, convert, script)


class Way:
    """One of the two gateways."""

    chosen: ClassVar = 0
    """What decides which of two channels is called: where a plan declines, a draw would be made again."""

    def __init__(self, gateway: Running, upstream: Upstream, *, by_plans: bool) -> None:
        self.gateway, self.upstream, self.store = gateway, upstream, gateway.store
        self.caller = Caller()
        self.commands: list[bytes] = []
        self.failed = False
        """Whether a call of a channel has failed, since its failures were forgotten."""
        chain = gateway.gateway.chain
        if not by_plans:
            chain.plans = None
        gateway.store.usage.gateway = "the same"
        for client in (gateway.store.client, gateway.store.settling):
            cast(Any, client)._topology = Keeping(client._topology, self.commands)
        found = {type(entry.plugin): entry.plugin for entry in chain.entries}
        routing, logger = found[ModelRouting], found[UsageLogger]
        assert isinstance(routing, ModelRouting)
        assert isinstance(logger, UsageLogger)
        self.routing, self.logger = routing, logger

    async def ask(
        self, number: int, address: str, pieces: Sequence[bytes], answers: Sequence[Answer]
    ) -> tuple[tuple[bytes, bytes], list[list[bytes | Record]], list[bytes]]:
        """Return what the caller, the store and the upstream got."""
        self.upstream.play(answers)
        self.commands.clear()
        Way.chosen = number
        head, body = comparable_answer(await self.caller.ask(self.gateway, address, pieces))
        # A refusal may come before the body or after it; and where a plan is looked for, its media type is found to be wrong first.
        if len(pieces) > 1 or len(pieces[0]) > AT_ONCE or b"\r\nContent-Type: " not in pieces[0]:
            head = head.replace(b"\r\nConnection: close", b"")
        answer = head, body
        await self.gateway.gateway.runner.wait_idle(PATIENCE_S)
        return answer, comparable_commands(self.commands), self.upstream.received

    async def open_channels(self) -> None:
        """Let all channels be healthy again, whatever their upstream has answered."""
        health, client = self.routing.health, self.store.client
        await asyncio.gather(health.sync(), client.call("DEL", *_keys(list(health._channels))), health.sync())

    async def left(self, account: str) -> object:
        """Return what an account has at the end, without ids and times."""
        has, page = await self.store.accounts.get(account), await self.store.wallet.ledger(account, 1000)
        lines = [(line.kind, line.amount_micros) for line in page.lines]
        numbers = has and (has.balance_micros, has.held_micros, has.holds)
        tallies = {key: tally.count for key, tally in self.logger._counted._tallies.items()}
        return numbers, lines, await self.store.wallet.verify(account), tallies


NO_LIMITS_LEFT: Final = {"requests_per_minute": None, "tokens_per_minute": None, "concurrent": None}


async def _as_at_first(way: Way, account: str, token: str) -> None:
    await way.store.accounts.change(
        account, status=AccountStatus.ACTIVE, group="default", models=(), limits=AccountLimits(), budgets=Budgets()
    )
    await way.store.wallet.credit(account, f"again-{token}", 5_000_000)
    await way.store.tokens.set_status(token, TokenStatus.ACTIVE)
    await way.store.tokens.change(token, models=[], addresses=[], budgets={"day": None}, limits=NO_LIMITS_LEFT)


async def _slots(way: Way, account: str, _: str) -> None:
    rules = AccountLimits(concurrent=50)
    for number in range(50):
        await way.store.limits.take(
            account, f"other-{number}", scope="rate-limit", rules=rules, tokens=0, lease_ms=10**7
        )


Change = Callable[[Way, str, str], Awaitable[object]]
CHANGES: Final[dict[str, Change]] = {
    "token disabled": lambda way, _, token: way.store.tokens.set_status(token, TokenStatus.DISABLED),
    "token enabled": lambda way, _, token: way.store.tokens.set_status(token, TokenStatus.ACTIVE),
    "token deleted": lambda way, _, token: way.store.tokens.delete(token),
    "token expired": lambda way, _, token: way.store.tokens.change(token, expires_at=1),
    "models of token": lambda way, _, token: way.store.tokens.change(token, models=["tiered"]),
    "addresses of token": lambda way, _, token: way.store.tokens.change(token, addresses=["10.0.0.0/8"]),
    "budget of token": lambda way, _, token: way.store.tokens.change(token, budgets={"day": 1}),
    "limits of token": lambda way, _, token: way.store.tokens.change(token, limits={"requests_per_minute": 5}),
    "suspended": lambda way, account, _: way.store.accounts.change(account, status=AccountStatus.SUSPENDED),
    "resumed": lambda way, account, _: way.store.accounts.change(account, status=AccountStatus.ACTIVE),
    "group vip": lambda way, account, _: way.store.accounts.change(account, group="vip"),
    "group few": lambda way, account, _: way.store.accounts.change(account, group="few"),
    "group off": lambda way, account, _: way.store.accounts.change(account, group="off"),
    "budget": lambda way, account, _: way.store.accounts.change(account, budgets=Budgets(requests=6)),
    "limits": lambda way, account, _: way.store.accounts.change(account, limits=AccountLimits(tokens_per_minute=400)),
    "models": lambda way, account, _: way.store.accounts.change(account, models=["words", "free"]),
    "credit": lambda way, account, _: way.store.wallet.credit(account, "later", 1000),
    "as at first": _as_at_first,
    "all slots taken": _slots,
}


class Comparison:
    """What was compared."""

    def __init__(self, ways: tuple[Way, Way], seed: int, move: Callable[[], None]) -> None:
        self.ways, self.seed, self._move = ways, seed, move
        self.requests = 0
        self.counts: Counter[str] = Counter()
        """Requests by what became of their plan, and by status and error code."""
        self.differences: list[str] = []

    async def episode(self, number: int, requests: int) -> None:
        """Compare some requests of fresh accounts. `number` and the seed say which."""
        chance = Random(f"{self.seed} {number}")
        self._move()
        address = f"127.{1 + number // 250 % 250}.{1 + number % 250}.{1 + number // 62_500 % 250}"
        accounts = {f"acc{number}x{each}": await self._made(chance, f"acc{number}x{each}") for each in range(3)}
        tokens = [(account, *pair) for account, pairs in accounts.items() for pair in pairs]
        for index in range(requests):
            if chance.random() < 0.05:
                name, (account, token_id, _) = chance.choice(tuple(CHANGES)), chance.choice(tokens)
                name = "as at first" if chance.random() < 0.6 else name
                await self._change(name, account, token_id)
            account, _, text = chance.choice(tokens)
            pieces = drawn_request(chance, text)
            answers = drawn_answers(chance, pieces)
            await self._compare(f"{number}.{index}", chance.getrandbits(32), address, pieces, answers)
        for account in accounts:
            one, two = [await way.left(account) for way in self.ways]
            if one != two:
                self._differ(f"{number}.end", f"{account}: {one} != {two}")
        for way in self.ways:
            way.caller.close()
            way.logger._counted.take()
            await way.store.client.call("XTRIM", way.store.usage.streams[0], "MAXLEN", 0)
            for account in accounts:
                async for key in way.store.client.keys(f"gw:{{{account}}}*"):
                    await way.store.client.call("DEL", key)

    async def _made(self, chance: Random, account: str) -> list[tuple[str, str]]:
        """Make an account in both stores. Return the ids and the texts of its tokens."""
        of_account = {**chance.choice(LIMITS), **chance.choice(BUDGETS)}
        credit, of_tokens = chance.choice(CREDITS), [chance.choice(OF_TOKENS) for _ in range(chance.choice((1, 1, 2)))]
        made = []
        for way in self.ways:
            await way.store.accounts.create(account, **of_account)
            if credit:
                await way.store.wallet.credit(account, "opening", credit)
        one, two = self.ways
        for each in of_tokens:
            created = await one.store.tokens.create(account, **each)
            made.append((created.id, created.token))
        dumped = await one.store.client.call("DUMP", tokens_key(account))
        await two.store.client.call("RESTORE", tokens_key(account), 0, dumped)
        return made

    async def _change(self, name: str, account: str, token_id: str) -> None:
        results = []
        for way in self.ways:
            try:
                await CHANGES[name](way, account, token_id)
                results.append("")
            except Exception as error:
                results.append(type(error).__name__)
        assert results[0] == results[1], (self.seed, name, results)

    async def _compare(
        self, place: str, draw: int, address: str, pieces: Sequence[bytes], answers: Sequence[Answer]
    ) -> None:
        seen = await asyncio.gather(*(way.ask(draw, address, pieces, answers) for way in self.ways))
        self.requests += 1
        status = seen[0][0][0][9:12].decode()
        code = re.search(rb'"code": ?"(\w+)"', seen[0][0][1]) if status != "200" else None
        self.counts[f"{status} {code[1].decode() if code else ''}".strip()] += 1
        if seen[0] != seen[1]:
            for what, one, two in zip(("answer", "store", "upstream"), *seen, strict=True):
                if one != two:
                    self._differ(place, f"{what} of {b''.join(pieces)[:600]!r}\n{shown(one, two)}")
        for way in self.ways:
            if way.failed:
                await way.open_channels()
                way.failed = False

    def _differ(self, place: str, what: str) -> None:
        self.differences.append(f"seed {self.seed}, {place}: {what}")


@asynccontextmanager
async def compared(folder: Path, seed: int) -> AsyncIterator[Comparison]:
    """Yield a comparison, with two gateways that serve meanwhile."""
    async with AsyncExitStack() as stack:
        move = stack.enter_context(standing_still())
        ways = []
        for name in ("plans", "hooks"):
            own = folder / name
            own.mkdir()
            upstream = await stack.enter_async_context(Upstream.listening())
            gateway = await stack.enter_async_context(running(document(upstream.base_url), own))
            ways.append(Way(gateway, upstream, by_plans=name == "plans"))
        comparison = Comparison((ways[0], ways[1]), seed, move)
        with counted(comparison):
            yield comparison


@contextmanager
def counted(comparison: Comparison) -> Iterator[None]:
    """Keep the commands of requests, and count what becomes of plans."""
    run, ways = RequestHooks.run_plan, {way.routing.health: way for way in comparison.ways}

    def noting(tell: Callable[..., None]) -> Callable[..., None]:
        def telling(health: ChannelBreaker, *given: Any, **named: Any) -> None:
            ways[health].failed = True
            tell(health, *given, **named)

        return telling

    async def running_plan(hooks: RequestHooks, plan: Any, body: Any) -> int:
        try:
            place = await run(hooks, plan, body)
        except StalePlan:
            comparison.counts["plan stale"] += 1
            raise
        except Exception:
            comparison.counts["plan refused"] += 1
            raise
        comparison.counts["plan" if place == len(plan.entries) else "plan left"] += 1
        return place

    with pytest.MonkeyPatch.context() as patch:
        for name in ("failed", "starting"):
            patch.setattr(ChannelBreaker, name, noting(getattr(ChannelBreaker, name)))
        patch.setattr(RequestHooks, "run_plan", running_plan)
        yield


async def compare(folder: Path, requests: int, seed: int, seconds: float = float("inf")) -> Comparison:
    """Compare so many requests, or as many as these seconds allow."""
    ends = time.monotonic() + seconds
    async with compared(folder, seed) as comparison:
        number = 0
        while comparison.requests < requests and time.monotonic() < ends and not comparison.differences:
            await comparison.episode(number, min(EPISODE, requests - comparison.requests))
            number += 1
            if number % 20 == 0:
                print(f"{comparison.requests} requests", file=sys.stderr, flush=True)
    return comparison


def main() -> int:
    """Compare, and print what was."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**9)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    given = parser.parse_args()
    began = time.monotonic()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner(loop_factory=new_loop()) as runner:
        comparison = runner.run(compare(Path(folder), given.requests, given.seed, given.seconds))
    took = time.monotonic() - began
    print(
        f"seed {given.seed}: {comparison.requests} requests in {took:.0f} s, {comparison.requests / took:.0f} a second"
    )
    print(", ".join(f"{name}: {count}" for name, count in sorted(comparison.counts.items())))
    print("\n".join(comparison.differences) or "no difference")
    return bool(comparison.differences)


if __name__ == "__main__":
    sys.exit(main())
