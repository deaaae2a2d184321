"""The answer of a plugin that is a stream of events: it goes to the caller as an upstream's does.

The plugins above see its events, and may end it. The iterator is awaited in a task of its own, and not while the caller does not
read. It is closed after `[DONE]`, when the caller leaves, when the gateway stops, and when it fails: a failure is an error before
the first byte, and an error event after it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any, Final

from gateway.chain.failures import is_cancellation, origin_of
from gateway.chat.deltas import WholeAnswer
from gateway.chat.reply_events import ReplyEvents
from gateway.chat.request import Body
from gateway.errors import Refused, render, unavailable
from gateway.exchange import Exchange, Outcome
from gateway.log import Logger
from gateway.proxy.caller import UNREAD_S, CallerConnection
from gateway.proxy.chunk_hooks import ChunkHooks, Named
from gateway.proxy.end_reason import INCOMPLETE, STREAM_HEADERS, EndReason
from gateway.proxy.failure import CallerGone
from gateway.proxy.gathering import Gathering
from gateway.proxy.reply_usage import usage_of
from gateway.proxy.response_hooks import NamedResponse, run_response_hooks
from gateway.reply import Reply

LONGEST_S: Final = 600.0
"""How long an answer of a plugin may take, as that of an upstream by default."""
CLOSE_S: Final = 3.0
"""How long an iterator may take to close."""

log = Logger("gateway.proxy.reply_stream")

Responses = Sequence[NamedResponse]


class ReplyStream:
    """One answer on its way from a plugin to the caller, until `ended`."""

    def __init__(
        self,
        exchange: Exchange,
        body: Body,
        caller: CallerConnection,
        reply: Reply,
        source: AsyncIterator[bytes],
        responses: Responses,
        hooks: Sequence[Named],
    ) -> None:
        self._source = source
        self._exchange = exchange
        self._body = body
        self._caller = caller
        self._reply = reply
        self._responses = responses
        self._gathering = None if body.stream else Gathering(caller)
        self._hooks = ChunkHooks(exchange, () if self._gathering else hooks)
        self.events = ReplyEvents(drop_usage=body.stream and not body.asked_usage, choices=body.n)
        self._collected = b""
        self._begun = False
        self._flows = asyncio.Event()
        self._flows.set()
        self._stall: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle
        self.failure: BaseException | None = None
        self.ended: asyncio.Future[EndReason] = asyncio.get_running_loop().create_future()

    @property
    def unsent(self) -> int:
        """Bytes for the caller that the kernel has not taken."""
        return self._caller.unsent

    def end(self, reason: EndReason) -> None:
        """End the answer, once."""
        if not self.ended.done():
            self.ended.set_result(reason)

    async def run(self) -> None:
        """Answer the caller, and charge what it got. Raises what failed before the first byte, and `CallerGone`."""
        exchange, caller = self._exchange, self._caller
        exchange.on_stop = partial(self.end, EndReason.STOPPING)
        caller.on_gone, caller.on_flow = partial(self.end, EndReason.CALLER), self._on_flow
        self._timer = asyncio.get_running_loop().call_later(LONGEST_S, self.end, EndReason.TOTAL)
        pump = asyncio.get_running_loop().create_task(self._pump())
        try:
            reason = await self.ended
        finally:
            self._timer.cancel()
            self._on_flow(False)
            exchange.on_stop = caller.on_gone = caller.on_flow = None
            pump.cancel()
            await asyncio.wait([pump], timeout=CLOSE_S)
        await self._conclude(reason)

    async def _pump(self) -> None:
        """Take the events until the answer ends."""
        try:
            async for data in self._source:
                if self.events.done:
                    break  # what follows `[DONE]` is nobody's
                if not isinstance(data, bytes):
                    raise TypeError(f"the events of a reply are bytes, not {type(data).__name__}")
                self._take(self.events.feed(data))
                while self.events.backlog:
                    self._take(self.events.feed(b""))
                if self.ended.done():
                    return
                if self.events.done:  # what the iterator does after its last event is waited for, but not for long
                    self._timer.cancel()
                    self._timer = asyncio.get_running_loop().call_later(CLOSE_S, self.end, EndReason.COMPLETE)
                await asyncio.sleep(0)  # an iterator that waits for nothing leaves the loop to others
                await self._flows.wait()
            self._take(self.events.close())
            if not self.ended.done() and not (self._begun and self.events.complete):
                raise RuntimeError("the events of its reply end before the answer is whole")
            self.end(EndReason.COMPLETE)
        except BaseException as error:
            if is_cancellation(error):
                raise
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """End the answer by what the iterator raised. One that was whole before is not spoiled by it."""
        if self._begun and self.events.done:
            _log(self._exchange, "on_request", error)
            self.end(EndReason.COMPLETE)
        elif isinstance(error, Refused):
            self._exchange.refused_by = self._exchange.answered_by
            self._exchange.stop(error)
        else:
            self.failure = error
            self.end(EndReason.PLUGIN)

    def _take(self, whole: bytes) -> None:
        """Write whole events. Nothing is written before the first event is complete."""
        if self.events.error is not None:
            raise RuntimeError("the events of its reply have an error: raise `Refused` instead")
        if self.ended.done() or not whole:
            return
        if not self._begun:
            self._collected += whole
            if self.events.started:
                self._begin()
            return
        if whole := self._passed(whole):
            (self._gathering or self._caller).write(whole)
            self._note(whole)

    def _begin(self) -> None:
        exchange = self._exchange
        try:
            run_response_hooks(exchange, () if self._gathering else self._responses)
        except Refused:
            return  # the answer has ended
        exchange.drop_body()
        headers = {**STREAM_HEADERS, **exchange.response_headers, **self._reply.headers}
        head = (self._gathering or self._caller).stream_head(headers)
        if first := self._passed(self._collected):
            self._begun = True
            exchange.first_byte = time.monotonic()
            (self._gathering or self._caller).begin(head, first)
            self._note(first)
        self._collected = b""

    def _passed(self, whole: bytes) -> bytes:
        passed = self._hooks.deliverable(whole, self.events)
        if self._hooks.withheld:
            self.failure = self._hooks.failure
            self.end(self._hooks.reason)
        return passed

    def _note(self, written: bytes) -> None:
        self._exchange.bytes += len(written)
        self._exchange.events = self.events.events

    def _on_flow(self, full: bool) -> None:
        """Pause while the caller does not read. End the answer where it does not read for long."""
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        if full:
            self._flows.clear()
            self._stall = asyncio.get_running_loop().call_later(UNREAD_S, self.end, EndReason.CALLER_STALLED)
        else:
            self._flows.set()

    async def _conclude(self, reason: EndReason) -> None:
        """Set the outcome and the usage, and write what the caller still gets."""
        exchange, caller = self._exchange, self._caller
        if self.failure is not None:
            exchange.refused_by = exchange.refused_by or exchange.answered_by
        if self._gathering is not None and reason is EndReason.COMPLETE:
            reason = self._prepare(self._gathering)
        if not self._begun or (self._gathering is not None and reason is not EndReason.COMPLETE):
            exchange.first_byte, exchange.bytes, exchange.events = None, 0, 0
            if caller.gone:
                raise CallerGone
            raise self.failure or exchange.stopped or unavailable()
        if self._reply.charge == "as-upstream":
            whole = reason is EndReason.COMPLETE
            exchange.answer_usage = usage_of(exchange, self._body, self.events, self._reply.usage, whole=whole)
        exchange.status = 200
        if reason is EndReason.COMPLETE:
            exchange.outcome = Outcome.COMPLETED
        elif reason is EndReason.CALLER or caller.gone:
            exchange.outcome = Outcome.CALLER_GONE
        elif reason is EndReason.CALLER_STALLED:
            exchange.outcome = Outcome.STOPPED
            caller.abort()
        else:
            if self.failure is not None and self._hooks.failure is None:
                _log(exchange, "on_request", self.failure)
            stopped = exchange.stopped if reason is EndReason.STOPPING else None
            exchange.error = stopped or INCOMPLETE[reason].error()
            exchange.outcome = INCOMPLETE[reason].outcome
            await caller.cut(b"data: %b\n\n" % render(exchange.error, exchange.id) if self._hooks.at_boundary else b"")

    def _prepare(self, gathering: Gathering) -> EndReason:
        """Prepare the answer of a caller that does not stream."""
        exchange = self._exchange
        try:
            text = b"" if gathering.invalid else gathering.completion.encode()
        except ValueError:
            text = b""
        if not text:
            self.failure = RuntimeError("the events of its reply are no chunks of a chat completion")
            return EndReason.PLUGIN
        exchange.texts = WholeAnswer(text)
        try:
            run_response_hooks(exchange, self._responses)
        except Exception as error:
            self.failure = error
            return EndReason.PLUGIN
        headers = {"Content-Type": "application/json", **exchange.response_headers, **self._reply.headers}
        self._caller.prepare(200, headers, text)
        exchange.bytes, exchange.events = len(text), 0
        return EndReason.COMPLETE


async def answer_with_events(
    exchange: Exchange,
    caller: CallerConnection,
    reply: Reply,
    events: AsyncIterator[bytes],
    hooks: tuple[Responses, Sequence[Named]],
    running: set[Any],
) -> None:
    """Answer the caller with the events of a plugin, of a request that may be answered. Close them, whatever happens."""
    try:
        await exchange.settle_pending()
        if exchange.stopped is not None:
            raise exchange.stopped
        if caller.gone:
            raise CallerGone
        stream = ReplyStream(exchange, await exchange.body(), caller, reply, events, *hooks)
        running.add(stream)
        try:
            await stream.run()
        finally:
            running.discard(stream)
    finally:
        await _close(exchange, events)


async def _close(exchange: Exchange, events: AsyncIterator[bytes]) -> None:
    close = getattr(events, "aclose", None)
    if close is None:
        return
    closing = asyncio.ensure_future(close())
    done, _ = await asyncio.wait([closing], timeout=CLOSE_S)
    if not done:
        closing.cancel()
        log.error("plugin_hangs", plugin=exchange.answered_by, hook="aclose", request_id=exchange.id)
    elif (error := closing.exception()) is not None:
        _log(exchange, "aclose", error)


def _log(exchange: Exchange, hook: str, error: BaseException) -> None:
    where = origin_of(error, exchange.answered_by, hook)
    log.error("plugin_failed", **where, request_id=exchange.id, exc_info=error)
