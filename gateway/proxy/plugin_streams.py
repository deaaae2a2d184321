"""Streams of plugins: sources of a relay, whose events go to the caller as the events of an upstream do.

The plugins above see its events, and may end it. The iterator is awaited in a task of its own, and not while the caller does not
read. It is closed after `[DONE]`, when the caller leaves, when the gateway stops, and when it fails: a failure is an error before
the first byte, and an error event after it.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Final

from gateway.base.errors import Refused, unavailable
from gateway.base.log import log
from gateway.chain.entry import is_cancellation, origin_of
from gateway.chat.events import ReplyEvents
from gateway.chat.request import Body
from gateway.config.channel import Channel, Timers
from gateway.domain.exchange import Exchange
from gateway.domain.reply import Reply
from gateway.proxy.caller import UNREAD_S, CallerConnection
from gateway.proxy.chunk_hooks import AnswerHooks, ChunkHooks, EndReason, run_response_hooks
from gateway.proxy.ending import conclude, usage_of
from gateway.proxy.failure import CallerGone
from gateway.proxy.relay import Gathering, Relay, RelayState
from gateway.proxy.upstream import OnData

LONGEST_S: Final = 600.0
"""How long an answer of a plugin may take: the default of an upstream's answer."""
CLOSE_S: Final = 3.0
"""How long an iterator may take to close."""
LIMITS: Final = Channel(
    base_url="http://plugin/v1",
    timers=Timers(idle=math.inf, total=math.inf, write_stall=UNREAD_S),
    max_response_bytes=sys.maxsize,
)
"""Where the relay of an upstream reads the limits of a channel: a plugin may pause, and its answer may have any size."""


class ReplyStream:
    """The source of a relay whose events a plugin gives. They are one answer."""

    queued = False

    def __init__(
        self,
        exchange: Exchange,
        body: Body,
        caller: CallerConnection,
        reply: Reply,
        iterator: AsyncIterator[bytes],
        hooks: AnswerHooks,
    ) -> None:
        self._iterator = iterator
        self._exchange = exchange
        self._body = body
        self._caller = caller
        self._reply = reply
        self._answer_hooks = hooks
        self._gathering = None if body.stream else Gathering(caller)
        self._events = ReplyEvents(drop_usage=body.stream and not body.asked_usage, choices=body.n)
        self._flows = asyncio.Event()
        self._flows.set()
        self._pump: asyncio.Task[None]
        self._released = False
        self._timer: asyncio.TimerHandle
        streamed = AnswerHooks() if self._gathering else hooks
        self._hooks = ChunkHooks(exchange, streamed.chunks, streamed.deltas)
        to = self._gathering or caller
        self.relay = Relay(exchange, self._events, LIMITS, to, self, self._begin, self._hooks)
        self.relay.max_prelude = sys.maxsize
        to.on_gone = partial(self.relay.end, EndReason.CALLER)  # nothing is read on for a usage

    async def run(self, relays: set[Relay]) -> None:
        """Answer the caller, and charge the delivered part. Raises an error before the first byte, and `CallerGone`."""
        relay = self.relay
        relays.add(relay)
        try:
            await self._conclude(relay, await self._end(relay))
        finally:
            relays.discard(relay)

    async def _end(self, relay: Relay) -> EndReason:
        """Return why the answer ended. The iterator gives nothing any more."""
        exchange = self._exchange
        exchange.on_stop = relay.stop
        self._timer = asyncio.get_running_loop().call_later(LONGEST_S, relay.end, EndReason.TOTAL)
        relay.flow()
        try:
            return await relay.ended
        finally:
            self._timer.cancel()
            exchange.on_stop = None
            relay.close()
            await asyncio.wait([self._pump], timeout=CLOSE_S)
            exchange.longest_gap_s = 0.0  # recorded of upstreams alone
            del self.relay  # breaks a reference cycle

    def flow_to(self, on_data: OnData, on_end: Callable[[bool], None], relay: Relay | None = None) -> None:
        """Give the events from now on. What their end means is decided here."""
        self._pump = asyncio.get_running_loop().create_task(self._give(self.relay, on_data))

    def pause(self) -> None:
        """Ask the iterator for nothing more."""
        self._flows.clear()

    def resume(self) -> None:
        """Go on."""
        self._flows.set()

    def release(self, *, at_end: bool) -> None:
        """Give nothing any more."""
        self._released = True
        self._pump.cancel()

    async def _give(self, relay: Relay, on_data: OnData) -> None:
        """Give the events until the answer ends."""
        events = self._events
        try:
            async for data in self._iterator:
                if events.done:
                    break  # what follows `[DONE]` is nobody's
                if not isinstance(data, bytes):
                    raise TypeError(f"the events of a reply are bytes, not {type(data).__name__}")
                kept = on_data(data)
                while kept:
                    kept = on_data(b"")
                if relay.ended.done():
                    return
                if events.done:  # what the iterator does after its last event is waited for, but not for long
                    self._timer.cancel()
                    self._timer = asyncio.get_running_loop().call_later(CLOSE_S, relay.end, EndReason.COMPLETE)
                await asyncio.sleep(0)  # an iterator that waits for nothing leaves the loop to others
                await self._flows.wait()
            events.end()
            on_data(b"")
            if not relay.ended.done() and not (relay.begun and events.complete):
                raise RuntimeError("the events of its reply end before the answer is whole")
            relay.end(EndReason.COMPLETE)
        except BaseException as error:
            if self._released and is_cancellation(error):
                raise
            cancelled = is_cancellation(error)
            self._fail(relay, RuntimeError("a plugin cancelled the task of its stream") if cancelled else error)

    def _fail(self, relay: Relay, error: BaseException) -> None:
        """End the answer after an exception of the iterator. An answer that was whole before stays so."""
        if relay.begun and self._events.done:
            _log(self._exchange, "on_request", error)
            relay.end(EndReason.COMPLETE)
        elif isinstance(error, Refused):
            self._exchange.refused_by = self._exchange.answered_by
            self._exchange.stop(error)
        else:
            relay.failure = error
            relay.end(EndReason.PLUGIN)

    def _begin(self) -> dict[str, str]:
        """Return the headers of the response: the first event is there."""
        exchange = self._exchange
        run_response_hooks(exchange, () if self._gathering else self._answer_hooks.responses)
        exchange.drop_body()
        return {**exchange.response_headers, **self._reply.headers}

    async def _conclude(self, relay: Relay, reason: EndReason) -> None:
        """Set the outcome and the usage, and write what the caller still gets."""
        exchange, caller = self._exchange, self._caller
        if relay.failure is not None:
            exchange.refused_by = exchange.refused_by or exchange.answered_by
        if self._gathering is not None and reason is EndReason.COMPLETE:
            reason = self._prepare(self._gathering, relay)
        whole = reason is EndReason.COMPLETE
        if not relay.begun or (self._gathering is not None and not whole):
            exchange.first_byte, exchange.bytes, exchange.events = None, 0, 0
            if caller.gone:
                raise CallerGone
            raise relay.failure or exchange.stopped or unavailable()
        if self._reply.charge == "as-upstream":
            exchange.answer_tier = self._events.usage.service_tier
            exchange.answer_usage = usage_of(exchange, self._body, self._events, self._reply.usage, whole=whole)
        if caller.gone and not whole:
            relay.state = RelayState.ABANDONED
        elif relay.failure is not None and self._hooks.failure is None and reason is not EndReason.CALLER_STALLED:
            _log(exchange, "on_request", relay.failure)
        last = conclude(exchange, caller, relay, reason, whole)
        if last is not None:
            await caller.cut(last)

    def _prepare(self, gathering: Gathering, relay: Relay) -> EndReason:
        """Prepare the answer of a caller that does not stream."""
        exchange = self._exchange
        if not (text := gathering.encode()):
            relay.failure = RuntimeError("the events of its reply are no chunks of a chat completion")
            return EndReason.PLUGIN
        try:
            text = self._answer_hooks.whole(exchange, text)
        except Exception as error:
            relay.failure = error
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
    hooks: AnswerHooks,
    relays: set[Relay],
) -> None:
    """Answer the caller with the events of a plugin, of a request that may be answered. Close them, whatever happens."""
    try:
        await exchange.settle_pending()
        if exchange.stopped is not None:
            raise exchange.stopped
        if caller.gone:
            raise CallerGone
        await ReplyStream(exchange, await exchange.body(), caller, reply, events, hooks).run(relays)
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
