"""Two sockets joined: what the upstream sends goes to the caller as it comes.

Nothing on the path of an event waits. The task that opened the stream sleeps until the stream has ended; reads of the
upstream's socket write to the caller's in the same call. One timer watches all but what is rare, moved only when it fires.

The channel's credentials are replaced wherever they stand in the bytes of events, however reads cut them. A credential that
an upstream spells otherwise (escaped in JSON, or a piece of it in each of two events' texts) is not recognised.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

import structlog

from gateway import crash_points
from gateway.chat.events import EventStream
from gateway.chat.request import Body
from gateway.chat.usage import Usage
from gateway.config.channel import Channel
from gateway.exchange import Exchange
from gateway.proxy import failure
from gateway.proxy.caller import CallerConnection
from gateway.proxy.end_reason import EndReason
from gateway.proxy.upstream import UpstreamConnection

LONGEST_PRELUDE: Final = 2 * 1024 * 1024
"""Bytes that may come before the first event is whole: more than the longest event that is waited for."""
REDACTED: Final = failure.REDACTED.encode()

log = structlog.get_logger("gateway.proxy.relay")

ChunkHook = Callable[[Exchange, bytes], None]


class Relay:
    """One answer on its way from an upstream to the caller, until `ended`.

    Up to the first event it only collects, so that an error there is still an error before the first byte. With that event it
    asks `begin` for the head of the answer and is `joined`: what came and what comes goes to the caller.
    """

    def __init__(
        self,
        exchange: Exchange,
        body: Body,
        channel: Channel,
        caller: CallerConnection,
        upstream: UpstreamConnection,
        begin: Callable[[], dict[str, str]],
        hooks: tuple[ChunkHook, ...],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._exchange = exchange
        self._body = body
        self.channel = channel
        self._caller = caller
        self._upstream = upstream
        self._begin = begin
        self._hooks = hooks
        self._secrets = tuple(credential.encode() for credential in channel.credentials)
        self._tail = b""
        self._draining = False
        self._held: list[bytes] = []
        self._received = 0
        self._last_at = 0.0
        self._due = 0.0
        self._watch: asyncio.TimerHandle | None = None
        self._write_stall: asyncio.TimerHandle | None = None
        self._drained: asyncio.TimerHandle | None = None
        self.joined = False
        """The caller has the head of the answer and the first event."""
        self.left_early = False
        """The caller left before any sign that the answer was whole."""
        self.failure: Exception | None = None
        """What `begin` raised."""
        self.events = EventStream(drop_usage=channel.ask_usage and not body.asked_usage)
        self.ended: asyncio.Future[EndReason] = self._loop.create_future()
        caller.on_gone = self._caller_gone
        upstream.on_head = self._on_head

    def first_within(self, seconds: float) -> None:
        """End the stream where no event has come by then."""
        self._watch_at(self._loop.time() + seconds)

    def again(self) -> asyncio.Future[EndReason]:
        """What ends the wait for an answer that is no stream, in place of `ended`: somebody else takes it whole."""
        self.ended = self._loop.create_future()
        return self.ended

    def end(self, why: EndReason) -> None:
        """End the stream, once."""
        if not self.ended.done():
            self.ended.set_result(why)

    @property
    def held(self) -> int:
        """Bytes on their way to the caller that the kernel has not taken."""
        return self._caller.unsent

    def close(self) -> None:
        """Let go of both sockets; afterwards nothing reaches the caller from here."""
        for timer in (self._watch, self._write_stall, self._drained):
            if timer is not None:
                timer.cancel()
        self._caller.on_gone = self._caller.on_flow = None
        self._upstream.release()

    def usage(self) -> Usage:
        """What the upstream told, as soon as it was seen; else an estimate of what was delivered, never zero for output."""
        if self.events.usage is not None:
            return self.events.usage
        ceiling = self._body.n * (self._body.max_tokens or 1 << 31)
        output = min(self.events.output.tokens(), ceiling) if self.joined else 0
        return Usage(self._body.prompt_tokens_estimate, output, "estimated")

    def _on_head(self) -> None:
        upstream = self._upstream
        if upstream.failure is None:
            crash_points.point("upstream.answered")
            if self._body.stream and upstream.status == 200 and upstream.media_type == "text/event-stream":
                self._last_at = self._loop.time()
                upstream.flow_to(self._on_data, self._on_end)
                return
        upstream.pause()
        if self._watch is not None:
            self._watch.cancel()
        self.end(EndReason.OTHER)

    def _on_data(self, data: bytes) -> None:
        events = self.events
        whole = events.feed(data)
        self._received += len(data)
        if self._received > self.channel.max_response_bytes:
            self.end(EndReason.SIZE)
            return
        if self._secrets:
            whole = self._scrubbed(whole)
        now = self._loop.time()
        gap, self._last_at = now - self._last_at, now
        if not self.joined:
            self._held.append(whole)
            self._first()
            return
        exchange = self._exchange
        exchange.longest_gap_s = max(exchange.longest_gap_s, gap)
        if whole and not self.ended.done():
            self._caller.write(whole)
            exchange.bytes += len(whole)
            exchange.events = events.events
            if self._hooks:
                self._tell(whole)

    def _first(self) -> None:
        """What was collected, where the first event is whole."""
        events, exchange = self.events, self._exchange
        if self.ended.done() or not events.started:
            if self._received > LONGEST_PRELUDE:
                self.end(EndReason.SIZE)
            return
        if events.error is not None and events.first_error:
            self.end(EndReason.REFUSED)
            return
        try:
            headers = self._begin()
        except Exception as error:
            self.failure = error
            self.end(EndReason.PLUGIN)
            return
        first, self._held = b"".join(self._held), []
        self.joined = True
        self._caller.on_flow = self._caller_full
        self._watch_at(min(self._last_at + self.channel.timers.idle, self._total_at))
        exchange.first_byte = time.monotonic()
        self._caller.begin(headers, first)
        exchange.bytes += len(first)
        exchange.events = events.events
        self._tell(first)
        crash_points.point("stream.begun")

    def _tell(self, whole: bytes) -> None:
        try:
            for hook in self._hooks:
                hook(self._exchange, whole)
        except Exception:
            log.exception("plugin_failed", hook="on_chunk", request_id=self._exchange.id)
            self.end(EndReason.PLUGIN)

    def rest(self) -> bytes:
        """What was held back of an answer that has ended cleanly."""
        rest, self._tail = self._tail + self.events.close(), b""
        for secret in self._secrets:
            rest = rest.replace(secret, REDACTED)
        return rest

    def _scrubbed(self, whole: bytes) -> bytes:
        if self._tail:
            whole, self._tail = self._tail + whole, b""
        for secret in self._secrets:
            if secret in whole:
                whole = whole.replace(secret, REDACTED)
        if not self.events.at_boundary:
            # Part of an event that is too long to wait for: a credential may be cut in two here.
            keep = max(1, *(len(secret) - 1 for secret in self._secrets))
            whole, self._tail = whole[:-keep], whole[-keep:]
        return whole

    def _on_end(self, clean: bool) -> None:
        self.end(EndReason.UPSTREAM if clean else EndReason.BROKEN)

    @property
    def _total_at(self) -> float:
        return self._exchange.started + self.channel.timers.total

    def _watch_at(self, due: float) -> None:
        """Look again at `due`, unless that is done before."""
        if self._watch is not None:
            if self._due <= due:
                return
            self._watch.cancel()
        self._due = due
        self._watch = self._loop.call_at(due, self._look)

    def _look(self) -> None:
        self._watch = None
        now = self._loop.time()
        idle_at = self._last_at + self.channel.timers.idle
        if self._write_stall is not None:
            idle_at = now + self.channel.timers.idle  # it is the caller who is slow
        if not self.joined:
            self.end(EndReason.LATE)
        elif now >= self._total_at:
            self.end(EndReason.TOTAL)
        elif now >= idle_at:
            self.end(EndReason.IDLE)
        else:
            self._watch_at(max(now + 0.001, min(idle_at, self._total_at)))

    def _caller_full(self, full: bool) -> None:
        if full:
            self._upstream.pause()
            self._write_stall = self._loop.call_later(self.channel.timers.write_stall, self.end, EndReason.STALLED)
        else:
            self._upstream.resume()
            self._go_on()

    def _caller_gone(self) -> None:
        self._exchange.caller_gone = True
        self.left_early = not (self.events.done or self.events.finished)
        if not self.joined or self.channel.on_caller_gone == "cancel":
            self.end(EndReason.CALLER)
        elif not self._draining:
            self._draining = True
            self._caller.on_flow = None
            self._go_on()
            self._upstream.resume()
            self._drained = self._loop.call_later(self.channel.drain_limit, self.end, EndReason.CALLER)

    def _go_on(self) -> None:
        """The caller's buffer holds nothing up any more."""
        self._last_at = self._loop.time()
        if self._write_stall is not None:
            self._write_stall.cancel()
            self._write_stall = None
