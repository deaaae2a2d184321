"""Two sockets joined: what the upstream sends goes to the caller as it comes.

Nothing on the path of an event waits. The task that opened the stream sleeps until the stream has ended; reads of the
upstream's socket write to the caller's in the same call. Timers are one handle each, moved only when they fire.

The channel's credentials are replaced wherever they stand in the bytes of events, however reads cut them. A credential that
an upstream spells otherwise (escaped in JSON, or a piece of it in each of two events' texts) is not recognised.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from enum import Enum
from typing import Final

import structlog

from gateway import verdict
from gateway.body import Body
from gateway.caller import CallerSide
from gateway.channel import Channel
from gateway.exchange import Exchange, Usage
from gateway.sse import EventStream
from gateway.upstream import UpstreamSide

LONGEST_PRELUDE: Final = 2 * 1024 * 1024
"""Bytes that may come before the first event is whole: more than the longest event that is waited for."""
REDACTED: Final = verdict.REDACTED.encode()

log = structlog.get_logger("gateway.stream")

ChunkMoment = Callable[[Exchange, bytes], None]


class End(Enum):
    """Why a stream ended."""

    UPSTREAM = "the upstream ended its answer"
    BROKEN = "the upstream's connection broke"
    IDLE = "the upstream fell silent"
    TOTAL = "the answer took too long"
    SIZE = "the answer grew too large"
    CALLER = "the caller left"
    STALLED = "the caller stopped reading"
    STOPPING = "the gateway is stopping"
    PLUGIN = "a plugin failed while it looked"


class Stream:
    """One answer on its way from an upstream to the caller.

    Before `join` it collects up to the first event, so that an error there is still an error before the first byte;
    `first` resolves with None then, or with the `End` that came instead. After `join` bytes flow, until `ended`.
    """

    def __init__(
        self, exchange: Exchange, body: Body, channel: Channel, caller: CallerSide, upstream: UpstreamSide
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._exchange = exchange
        self._body = body
        self.channel = channel
        self._caller = caller
        self._upstream = upstream
        self._secrets = tuple(credential.encode() for credential in channel.credentials)
        self._tail = b""
        self._joined = False
        self._draining = False
        self._moments: tuple[ChunkMoment, ...] = ()
        self._held: list[bytes] = []
        self._received = 0
        self._last_at = 0.0
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self.left_early = False
        """The caller left before any sign that the answer was whole."""
        self.events = EventStream(drop_usage=channel.ask_usage and not body.asked_usage)
        self.first: asyncio.Future[End | None] = self._loop.create_future()
        self.ended: asyncio.Future[End] = self._loop.create_future()
        caller.on_gone = self._caller_gone

    def flow(self) -> None:
        """Begin to take the upstream's body."""
        self._last_at = self._loop.time()
        self._upstream.flow_to(self._on_data, self._on_end)

    def join(self, headers: dict[str, str], moments: tuple[ChunkMoment, ...]) -> None:
        """Send the head and what was held back, and let the rest flow."""
        self._joined = True
        self._moments = moments
        timers = self.channel.timers
        self._timers["idle"] = self._loop.call_later(timers.idle, self._watch_idle)
        left = timers.total - (self._loop.time() - self._exchange.started)
        self._timers["total"] = self._loop.call_later(max(0.0, left), self.end, End.TOTAL)
        self._caller.on_flow = self._caller_full
        first = b"".join(self._held)
        self._held.clear()
        self._upstream.resume()
        self._exchange.first_byte = time.monotonic()
        self._caller.begin(headers, first)
        self._sent(first)

    def end(self, why: End) -> None:
        """End the stream, once."""
        if not self.ended.done():
            self.ended.set_result(why)
        if not self.first.done():
            self.first.set_result(why)

    @property
    def held(self) -> int:
        """Bytes on their way to the caller that the kernel has not taken."""
        return self._caller.unsent

    def close(self) -> None:
        """Let go of both sockets; afterwards nothing reaches the caller from here."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._caller.on_gone = self._caller.on_flow = None
        self._upstream.release()

    def usage(self) -> Usage:
        """What the upstream told, as soon as it was seen; else an estimate of what was delivered, never zero for output."""
        if self.events.usage is not None:
            return self.events.usage
        ceiling = self._body.n * (self._body.max_tokens or 1 << 31)
        output = min(self.events.output.tokens(), ceiling) if self._joined else 0
        return Usage(self._body.prompt_tokens_estimate, output, "estimated")

    def _on_data(self, data: bytes) -> None:
        whole = self.events.feed(data)
        self._received += len(data)
        if self._received > self.channel.max_response_bytes:
            self.end(End.SIZE)
            return
        if self._secrets:
            whole = self._scrubbed(whole)
        now = self._loop.time()
        gap, self._last_at = now - self._last_at, now
        if not self._joined:
            self._held.append(whole)
            if self.events.started and not self.first.done():
                self.first.set_result(None)
            elif self._received > LONGEST_PRELUDE:
                self.end(End.SIZE)
            elif self.first.done():
                self._upstream.pause()
            return
        self._exchange.longest_gap_s = max(self._exchange.longest_gap_s, gap)
        if whole and not self.ended.done():
            self._caller.write(whole)
            self._sent(whole)

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
        if not self.events.at_border:
            # Part of an event that is too long to wait for: a credential may be cut in two here.
            keep = max(1, *(len(secret) - 1 for secret in self._secrets))
            whole, self._tail = whole[:-keep], whole[-keep:]
        return whole

    def _sent(self, whole: bytes) -> None:
        exchange = self._exchange
        exchange.bytes += len(whole)
        exchange.events = self.events.events
        try:
            for moment in self._moments:
                moment(exchange, whole)
        except Exception:
            log.exception("plugin_failed", moment="on_chunk", request_id=exchange.id)
            self.end(End.PLUGIN)

    def _on_end(self, clean: bool) -> None:
        self.end(End.UPSTREAM if clean else End.BROKEN)

    def _watch_idle(self) -> None:
        idle = self.channel.timers.idle
        left = self._last_at + idle - self._loop.time()
        if left <= 0 and "write_stall" not in self._timers:
            self.end(End.IDLE)
        else:
            self._timers["idle"] = self._loop.call_later(max(left, idle / 10), self._watch_idle)

    def _caller_full(self, full: bool) -> None:
        if full:
            self._upstream.pause()
            self._timers["write_stall"] = self._loop.call_later(self.channel.timers.write_stall, self.end, End.STALLED)
        else:
            self._upstream.resume()
            self._last_at = self._loop.time()
            timer = self._timers.pop("write_stall", None)
            if timer is not None:
                timer.cancel()

    def _caller_gone(self) -> None:
        self._exchange.caller_gone = True
        self.left_early = not (self.events.done or self.events.finished)
        if not self._joined or self.channel.on_caller_gone == "cancel":
            self.end(End.CALLER)
        elif not self._draining:
            self._draining = True
            self._caller.on_flow = None
            if "write_stall" in self._timers:
                self._timers.pop("write_stall").cancel()
            self._last_at = self._loop.time()
            self._upstream.resume()
            self._timers["drain"] = self._loop.call_later(self.channel.drain_limit, self.end, End.CALLER)
