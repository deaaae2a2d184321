"""Scenarios: one request each, taken through a plugin to one of the endings, with snapshots of what the plugin keeps.

What the plugin takes is whatever changes in `on_request` and changes back by `on_end` when the answer is complete. Every other
ending must give the same back. There is also a scenario for each `await` of `on_request`, from which on the store's replies
are lost.

A snapshot is of the plugin's memory and of the store, as numbers that can be compared.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Generator, Mapping, Sequence, Sized
from contextlib import suppress
from typing import Any, Final

import msgspec

from gateway.base.errors import GatewayError, Refused, StoreAway, StoreError, as_refused
from gateway.chain.entry import PLUGIN_ERRORS, Entry
from gateway.chain.plugin import Plugin
from gateway.chain.request_hooks import RequestHooks
from gateway.chat.usage import Usage
from gateway.domain.exchange import Attempt, Exchange, Outcome
from gateway.domain.reply import Reply
from gateway.operations.operation import Operation
from gateway.plugin_kit.finding import CHUNKS, MODEL, Ending, in_vain, limited, raised
from gateway.proxy.caller import InvalidHeader, render_head
from gateway.store.client.client import Client
from gateway.store.client.steps import error_in, run_steps
from gateway.testing import exchange as new_exchange

HOOK_TIMEOUT_S: Final = 5

Snapshot = dict[str, float]
"""Sizes and numbers by their names, which are fit for a sentence."""


class ScenarioRunner:
    """A started plugin with the providers above it. `headers` and `body` are those of every request.

    With `store=False`, snapshots are of the plugin's memory only.
    """

    def __init__(
        self,
        plugin: Plugin,
        providers: Sequence[Plugin],
        client: Client,
        headers: Mapping[str, str],
        body: Mapping[str, object],
        *,
        store: bool = True,
    ) -> None:
        self.plugin = plugin
        self.providers = providers
        self.client = client
        self.entry = Entry("check", plugin)
        self.request_hook = "request_step" if self.entry.plans_request else "on_request"
        self._headers = headers
        self._body = body
        self._with_store = store

    async def run(self, ending: Ending) -> ScenarioResult:
        """Run one scenario. Errors that the plugin raises are in the result."""
        exchange = await self.arrived(ending)
        result = ScenarioResult(ending, await self.snapshot(exchange))
        reply = await self._request(exchange, result)
        result.during = await self.snapshot(exchange)
        if result.refused is None and reply is None and not result.problems:
            problem = await self._fail_over(exchange, ending) or await self._responded(exchange, ending)
            result.problems += [problem] if problem else []
        exchange.ended = time.monotonic()
        hook = "end_step" if self.entry.plans_end else "on_end"
        try:
            result.problems += await limited(hook, self.end(self.plugin, exchange), HOOK_TIMEOUT_S)
        except PLUGIN_ERRORS as error:
            result.problems.append(raised(hook, error, ending))
        result.after = await self.snapshot(exchange)
        await self.left(exchange)
        return result

    async def arrived(self, ending: Ending) -> Exchange:
        """Return an exchange that the providers have let pass."""
        body = b"" if ending.method == "GET" else self._body
        exchange = new_exchange(body, method=ending.method, path=ending.path, headers=self._headers)
        for plugin in self._providers(exchange):
            await self.request(plugin, exchange)
        return exchange

    async def left(self, exchange: Exchange) -> None:
        """Run the end hooks of the providers."""
        for plugin in reversed(self._providers(exchange)):
            await self.end(plugin, exchange)

    def _providers(self, exchange: Exchange) -> list[Plugin]:
        misdirected = exchange.request.operation is Operation.MISDIRECTED
        return [plugin for plugin in self.providers if plugin.sees_misdirected or not misdirected]

    async def request(self, plugin: Plugin, exchange: Exchange) -> Reply | None:
        """Run the request hook of a plugin, and its step."""
        return await RequestHooks(exchange, [Entry("check", plugin)], [], self.client).run()

    async def end(self, plugin: Plugin, exchange: Exchange) -> list[str]:
        """Run the end hook of a plugin, and its step. Raises what they raise. Return what it returned in vain, in words."""
        problems = in_vain(plugin, "on_end", await plugin.on_end(exchange))  # type: ignore[func-returns-value]
        step = await plugin.end_step(exchange)
        if step is None:
            return problems
        ((status, value),) = await run_steps(self.client, [step])
        error = error_in(status, value)
        if error is not None and step.failed is not None:
            await step.failed(error)
        elif error is None and step.read is not None and (reading := step.read(value)) is not None:
            await reading
        return problems

    async def _request(self, exchange: Exchange, result: ScenarioResult) -> Reply | None:
        hook = LostReplies(self.request(self.plugin, exchange), result.ending.lost_from)
        reply: Reply | None = None
        try:
            reply = await limited(self.request_hook, _settled(hook, exchange), HOOK_TIMEOUT_S)
        except GatewayError as error:
            if type(error) is GatewayError:  # the plugin changes the request as it may not
                result.problems.append(raised(self.request_hook, error, result.ending))
            result.refused = exchange.error = as_refused(error)
            result.failure = error if isinstance(error, StoreError) else None
            exchange.status, exchange.outcome = exchange.error.status, Outcome.REFUSED
        except PLUGIN_ERRORS as error:
            result.problems.append(raised(self.request_hook, error, result.ending))
            exchange.outcome = Outcome.INTERNAL_ERROR
        else:
            accepted = exchange.request.operation is Operation.CHAT and reply is None
            provides = type(self.plugin).provides if accepted else ()
            result.missing = [fact.__name__ for fact in provides if not isinstance(exchange.get(fact), fact)]
        with suppress(*PLUGIN_ERRORS):
            await exchange.settle_pending()
        result.waits = hook.waits
        result.problems += unsendable(exchange, reply)
        return reply

    async def _fail_over(self, exchange: Exchange, ending: Ending) -> str:
        """Let a first upstream fail, if that is part of this ending. Return what the hook raised, in words, or nothing."""
        if not ending.fails_over:
            return ""
        exchange.attempts.append(Attempt("broken", MODEL, error="upstream_error", usage=Usage(10, 0, "estimated")))
        try:
            work = self.plugin.on_failover(exchange)
            returned = await limited("on_failover", work, HOOK_TIMEOUT_S)  # type: ignore[func-returns-value]
        except PLUGIN_ERRORS as error:
            return "" if isinstance(error, Refused) else raised("on_failover", error, ending)
        return "".join(in_vain(self.plugin, "on_failover", returned))

    async def _responded(self, exchange: Exchange, ending: Ending) -> str:
        """Do as `respond`, in a step of the event loop of its own."""

        async def respond() -> str:
            return self.respond(exchange, ending)

        return await limited("on_response or on_chunk", respond(), HOOK_TIMEOUT_S)

    def respond(self, exchange: Exchange, ending: Ending) -> str:
        """Do what the upstream and the caller do in this ending. Return what a hook raised, in words, or nothing."""
        problem = ""
        exchange.outcome, exchange.status = ending.outcome, 200
        if ending.outcome in (Outcome.REFUSED, Outcome.UPSTREAM_FAILED):
            exchange.error = Refused(403, "token_restricted", "Not this model.")
            exchange.status = 403
        if ending.chunks is None:
            return problem
        exchange.channel = "check"
        attempt = Attempt("check", MODEL, 200)
        exchange.attempts.append(attempt)
        exchange.first_byte = time.monotonic()
        hook = "on_response"
        try:
            problems = in_vain(self.plugin, hook, self.plugin.on_response(exchange))  # type: ignore[func-returns-value]
            problems += unsendable(exchange)
            hook = "on_chunk"
            for chunk in CHUNKS[: ending.chunks]:
                exchange.bytes += len(chunk)
                exchange.events += chunk.count(b"data:")
                returned = self.plugin.on_chunk(exchange, chunk)  # type: ignore[func-returns-value]
                problems = problems or in_vain(self.plugin, hook, returned)
                if exchange.stopped is not None:
                    exchange.outcome, exchange.error = Outcome.STOPPED, exchange.stopped
                    problems += unsendable(exchange)
                    break
            problem = "; ".join(problems)
        except Refused as refused:
            exchange.outcome, exchange.error = Outcome.STOPPED, refused
            problem = "" if hook == "on_chunk" else raised(hook, refused, ending)
        except PLUGIN_ERRORS as error:
            problem = raised(hook, error, ending)
            exchange.outcome = Outcome.INTERNAL_ERROR
        attempt.usage = Usage(10, 10, "upstream")
        return problem

    async def snapshot(self, exchange: Exchange) -> Snapshot:
        """Return a snapshot of what the plugin keeps."""
        memory = memory_snapshot(self.plugin)
        return memory | await store_snapshot(self.client, exchange.id) if self._with_store else memory


async def _settled(hook: LostReplies, exchange: Exchange) -> Reply | None:
    reply: Reply | None = await hook
    await exchange.settle_pending()
    return reply


class ScenarioResult(msgspec.Struct):
    """What was seen in one scenario: a snapshot before, in the middle and after, and what went wrong."""

    ending: Ending
    before: Snapshot
    during: Snapshot = {}
    after: Snapshot = {}
    problems: list[str] = []
    refused: Refused | None = None
    """What `on_request` refused the request with, which it may."""
    failure: GatewayError | None = None
    """The error of the store for which the request was refused."""
    missing: list[str] = []
    """Facts that the plugin provides by its declaration and did not set."""
    waits: int = 0
    """How often `on_request` waited."""

    def taken(self) -> set[str]:
        """Return the names of what `on_request` changed and `on_end` changed back."""
        names = self.before.keys() | self.during.keys()
        return {name for name in names if self.before.get(name, 0) != self.during.get(name, 0)} - self.left(names)

    def left(self, names: set[str]) -> set[str]:
        """Return which of `names` differ from what they were before."""
        return {name for name in names if self.before.get(name, 0) != self.after.get(name, 0)}


def unsendable(exchange: Exchange, reply: Reply | None = None) -> list[str]:
    """Return what is wrong with each header for the caller that cannot be sent."""
    error, problems = exchange.error, list[str]()
    for headers in (exchange.response_headers, reply.headers if reply else {}, error.extra_headers if error else {}):
        if not isinstance(headers, Mapping):
            problems.append(f"`response_headers` is no mapping, but {headers!r}")
            continue
        for name, value in headers.items():
            if not (isinstance(name, str) and isinstance(value, str)):
                problems.append(f"the response header {name!r} is not text: {value!r}")
                continue
            try:
                render_head(200, {name: value}, "")
            except InvalidHeader as wrong:
                problems.append(str(wrong))
    return problems


class LostReplies:
    """An awaitable that runs a coroutine and loses replies on the way.

    Each `await` inside the coroutine runs to its end. From the one numbered `lost_from` on, counted from 0, its result is
    replaced by `StoreAway`: the store has executed a command, but its reply never arrives. None loses nothing. `waits` counts them.
    """

    def __init__(self, work: Awaitable[Any], lost_from: int | None) -> None:
        self.waits = 0
        self._work = work
        self._lost_from = lost_from

    def __await__(self) -> Generator[Any, Any, Any]:
        inner = self._work.__await__()
        error: BaseException | None = None
        while True:
            try:
                future = inner.send(None) if error is None else inner.throw(error)
            except StopIteration as done:
                return done.value
            lost = self._lost_from is not None and self.waits >= self._lost_from
            self.waits += 1
            try:
                yield future
                error = StoreAway("the reply was lost") if lost else None
            except BaseException as raised:
                error = raised


def memory_snapshot(plugin: Plugin) -> Snapshot:
    """Return the numbers, sizes of containers and free slots of semaphores in a plugin's attributes.

    Attributes that are objects of a class of the plugin's own module are looked into, one level deep.
    """
    snapshot: Snapshot = {}
    _add_attributes(vars(plugin), "", type(plugin).__module__, snapshot)
    return snapshot


def _add_attributes(attributes: Mapping[str, object], prefix: str, module: str, snapshot: Snapshot) -> None:
    for name, value in attributes.items():
        path = prefix + name
        if isinstance(value, asyncio.Semaphore):
            snapshot[f"free slots of `{path}`"] = value._value
        elif isinstance(value, int | float):
            snapshot[f"`{path}`"] = value
        elif isinstance(value, deque) and value.maxlen is not None:
            continue
        elif isinstance(value, Sized) and not isinstance(value, str | bytes):
            snapshot[f"the size of `{path}`"] = len(value)
            if isinstance(value, Mapping):
                snapshot[f"the sum of `{path}`"] = sum(item for item in value.values() if isinstance(item, int | float))
        elif type(value).__module__ == module and hasattr(value, "__dict__") and not prefix:
            _add_attributes(vars(value), f"{path}.", module, snapshot)


async def store_snapshot(client: Client, request_id: str) -> Snapshot:
    """Return every key of the store with its fields or members: numbers as they are, anything else as 1.

    The request's id is replaced by `<id>`, so that snapshots of different requests can be compared.
    """
    snapshot: Snapshot = {}
    for key in await client.call("KEYS", "*"):
        for member, number in await _members(client, key):
            name = f"`{_text(key)}`" + (f" {_text(member)}" if member else "")
            name = name.replace(request_id, "<id>")
            snapshot[name] = snapshot.get(name, 0) + number
    return snapshot


async def _members(client: Client, key: Any) -> list[tuple[Any, float]]:
    match _text(await client.call("TYPE", key)):
        case "string":
            return [("", _number(await client.call("GET", key)))]
        case "hash":
            fields = await client.call("HGETALL", key)
            return [(field, _number(value)) for field, value in fields.items()]
        case "set":
            return [(member, 1) for member in await client.call("SMEMBERS", key)]
        case "zset":
            return [(member, 1) for member in await client.call("ZRANGE", key, 0, -1)]
        case "list":
            return [("", await client.call("LLEN", key))]
        case "stream":
            return [("", await client.call("XLEN", key))]
    return [("", 1)]


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _number(value: Any) -> float:
    try:
        return float(_text(value))
    except ValueError:
        return 1
