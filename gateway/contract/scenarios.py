"""Scenarios: one request each, taken through a plugin to one of the endings, with snapshots of what the plugin keeps.

What the plugin takes is whatever changes in `on_request` and changes back by `on_end` when the answer is complete. Every other
ending must give the same back. There is also a scenario for each `await` of `on_request`, from which on the store's replies
are lost.
"""

from __future__ import annotations

import time
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import nullcontext, suppress
from contextvars import Context, copy_context
from typing import Any, Final, TypeVar

from gateway.attempt import Attempt
from gateway.chain.entry import Entry
from gateway.chain.failures import PLUGIN_ERRORS
from gateway.chain.request_hooks import RequestHooks
from gateway.chat.usage import Usage
from gateway.contract.blocking import Blocking
from gateway.contract.contained import Ended, contained
from gateway.contract.cost import Cost
from gateway.contract.endings import CHUNKS, MODEL, Ending
from gateway.contract.lost_replies import LostReplies
from gateway.contract.scenario_result import ScenarioResult
from gateway.contract.snapshot import Snapshot, memory_snapshot, store_snapshot
from gateway.contract.watched import Assigned, ChunkSize, Stops, WatchedExchange, WatchedHeaders, shown
from gateway.contract.words import in_vain, raised
from gateway.errors import GatewayError, Refused, StoreError, as_refused
from gateway.exchange import Exchange, Operation, Outcome
from gateway.plugin import Plugin
from gateway.reply import Reply
from gateway.store.client.client import Client
from gateway.store.client.step import error_in, run_steps
from gateway.testing import exchange as new_exchange

HOOK_TIMEOUT_S: Final = 5

Result = TypeVar("Result")


class ScenarioRunner:
    """A started plugin with the providers above it. `headers` are those of every request.

    With `store=False`, snapshots are of the plugin's memory only.
    """

    def __init__(
        self,
        plugin: Plugin,
        providers: Sequence[Plugin],
        client: Client,
        headers: Mapping[str, str],
        *,
        store: bool = True,
    ) -> None:
        self.plugin = plugin
        self.providers = providers
        self.client = client
        self.entry = Entry("check", plugin)
        self.request_hook = "request_step" if self.entry.plans_request else "on_request"
        self._headers = headers
        self._with_store = store
        self.cost = Cost()
        """The cost of `on_chunk` in all scenarios so far."""
        self.blocking = Blocking(type(plugin))
        """What blocks in the scenarios where the whole answer arrives."""
        self.stops = Stops()
        self._context = Context()
        """The variables of the scenario's tasks: what a hook sets, the next one sees."""
        self._hook = ""
        """The hook that `respond` has called last."""

    async def run(self, ending: Ending) -> ScenarioResult:
        """Run one scenario. Errors that the plugin raises are in the result."""
        with self.blocking if ending.outcome is Outcome.COMPLETED else nullcontext():
            return await self._run(ending)

    async def _run(self, ending: Ending) -> ScenarioResult:
        self._context = copy_context()
        exchange = await self.arrived(ending)
        result = ScenarioResult(ending, await self.snapshot(exchange))
        reply = await self._request(exchange, result)
        result.during = await self.snapshot(exchange)
        if result.refused is None and reply is None and not result.problems:
            problem = await self._fail_over(exchange, ending) or await self._responded(exchange, ending)
            result.problems += [problem] if problem else []
        exchange.ended = time.monotonic()
        try:
            result.problems += await self._contained(self.end(self.plugin, exchange))
        except PLUGIN_ERRORS as error:
            hook = "end_step" if self.entry.plans_end else "on_end"
            result.problems.append(raised(hook, error, ending))
        result.problems += dict.fromkeys(exchange[Assigned])
        result.after = await self.snapshot(exchange)
        await self.left(exchange)
        return result

    async def arrived(self, ending: Ending) -> Exchange:
        """Return an exchange that the providers have let pass."""
        body = b"" if ending.method == "GET" else None
        exchange = new_exchange(body, method=ending.method, path=ending.path, headers=self._headers)
        exchange.__class__ = WatchedExchange
        exchange[Stops], exchange[ChunkSize], exchange[Assigned] = self.stops, ChunkSize(0), Assigned()
        exchange.response_headers = WatchedHeaders(exchange.response_headers)
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
        elif error is None and step.read is not None:
            await step.read(value)
        return problems

    async def _request(self, exchange: Exchange, result: ScenarioResult) -> Reply | None:
        hook = LostReplies(self.request(self.plugin, exchange), result.ending.lost_from)
        reply: Reply | None = None
        try:
            reply = await self._contained(_settled(hook, exchange))
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
            await self._contained(exchange.settle_pending())
        result.waits = hook.waits
        result.problems += shown(exchange, self.request_hook, reply)
        return reply

    async def _fail_over(self, exchange: Exchange, ending: Ending) -> str:
        """Let a first upstream fail, if that is part of this ending. Return what the hook raised, in words, or nothing."""
        if not ending.fails_over:
            return ""
        exchange.attempts.append(Attempt("broken", MODEL, error="upstream_error", usage=Usage(10, 0, "estimated")))
        try:
            returned = await self._contained(self.plugin.on_failover(exchange))  # type: ignore[func-returns-value]
        except PLUGIN_ERRORS as error:
            return "" if isinstance(error, Refused) else raised("on_failover", error, ending)
        return "".join(in_vain(self.plugin, "on_failover", returned))

    async def _responded(self, exchange: Exchange, ending: Ending) -> str:
        """Do as `respond`, whatever a hook raises."""

        async def respond() -> str:
            return self.respond(exchange, ending)

        try:
            return await self._contained(respond())
        except Ended as error:
            exchange.outcome = Outcome.INTERNAL_ERROR
            return raised(self._hook, error, ending)

    async def _contained(self, work: Coroutine[Any, Any, Result]) -> Result:
        return await contained(work, HOOK_TIMEOUT_S, context=self._context)

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
        hook = self._hook = "on_response"
        try:
            problems = in_vain(self.plugin, hook, self.plugin.on_response(exchange))  # type: ignore[func-returns-value]
            problems += shown(exchange, hook)
            hook = self._hook = "on_chunk"
            for chunk in CHUNKS[: ending.chunks]:
                exchange.bytes += len(chunk)
                exchange.events += chunk.count(b"data:")
                exchange[ChunkSize] = ChunkSize(len(chunk))
                exchange.deltas(chunk)  # read once for all plugins, and not the cost of one
                with self.cost:
                    returned = self.plugin.on_chunk(exchange, chunk)  # type: ignore[func-returns-value]
                problems = problems or in_vain(self.plugin, hook, returned)
                if exchange.stopped is not None:
                    exchange.outcome, exchange.error = Outcome.STOPPED, exchange.stopped
                    problems += shown(exchange, hook)
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

    async def stored(self, request_id: str) -> Snapshot:
        """Return a snapshot of the store."""
        return await store_snapshot(self.client, request_id)

    async def snapshot(self, exchange: Exchange) -> Snapshot:
        """Return a snapshot of what the plugin keeps."""
        memory = memory_snapshot(self.plugin)
        return memory | await store_snapshot(self.client, exchange.id) if self._with_store else memory


async def _settled(hook: LostReplies, exchange: Exchange) -> Reply | None:
    reply: Reply | None = await hook
    await exchange.settle_pending()
    return reply
