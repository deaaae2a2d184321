"""The relay of one answer: what the upstream sends goes to the caller as it arrives.

Nothing on the path of an event waits. The task that started the relay sleeps until the relay has ended; a read of the
upstream's socket writes to the caller's socket in the same call. One timer watches the deadlines, and is moved only when it
fires.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from gateway import crash_points
from gateway.chat import chunks
from gateway.chat.request import Body
from gateway.config.channel import Channel
from gateway.exchange import Exchange
from gateway.log import Logger
from gateway.proxy.answer_events import events_of
from gateway.proxy.caller import CallerConnection
from gateway.proxy.chunk_hooks import ChunkHooks
from gateway.proxy.end_reason import EndReason
from gateway.proxy.gathering import Gathering
from gateway.proxy.linger import release_at_end
from gateway.proxy.redaction import Redaction
from gateway.proxy.relay_state import RelayState
from gateway.proxy.translation import Translation
from gateway.proxy.upstream import UpstreamConnection

MAX_PRELUDE: Final = 2 * 1024 * 1024
"""Bytes that may arrive before the first event is complete: more than the longest event that is waited for."""
USAGE_WAIT_S: Final = 2.0
"""How long an answer that has its finish reasons is read on, for the usage and for `[DONE]`."""

log = Logger("gateway.proxy.relay")

_COLLECTING: Final = RelayState.COLLECTING
"""The name of a module is looked up faster than a member of an enum, and this one is needed at each read."""


class Relay:
    """One answer on its way from an upstream to the caller, until `ended`.

    Until the first event is complete it only collects, so that an error there is still an error before the first byte. With
    that event it asks `begin` for the headers of the response, and from then on passes on what arrives.
    """

    def __init__(
        self,
        exchange: Exchange,
        body: Body,
        channel: Channel,
        caller: CallerConnection | Gathering,
        upstream: UpstreamConnection,
        begin: Callable[[], dict[str, str]],
        hooks: ChunkHooks | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._exchange = exchange
        self.channel = channel
        self._caller = caller
        self._upstream = upstream
        self._begin = begin
        self.hooks = hooks
        self._collected: list[bytes] = []
        self._received = 0
        self._last_read_at = 0.0
        self._deadline = 0.0
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._drain_timer: asyncio.TimerHandle | None = None
        self.state = RelayState.COLLECTING
        self.failure: Exception | None = None
        """What `begin` raised, or why its headers cannot be sent."""
        gathered = isinstance(caller, Gathering)
        self.events = events_of(body, channel, gathered=gathered, watched=hooks is not None)
        self.translation: Translation | None = None
        self._max_prelude = channel.max_response_bytes if gathered else MAX_PRELUDE
        self._streamed = body.stream or gathered
        self._secrets = Redaction(channel.scrubbed, self.events)
        self.ended: asyncio.Future[EndReason] = self._loop.create_future()
        caller.on_gone = self._on_caller_gone
        upstream.on_head = self._on_head

    def limit_first_event(self, seconds: float) -> None:
        """End the relay where no event has arrived after `seconds`."""
        self._set_deadline(self._loop.time() + seconds)

    def wait_again(self) -> asyncio.Future[EndReason]:
        """Return a new future in place of `ended`, for a response that is not a stream and is read elsewhere."""
        self.ended = self._loop.create_future()
        return self.ended

    def end(self, reason: EndReason) -> None:
        """End the relay, once."""
        if not self.ended.done():
            self.ended.set_result(reason)

    @property
    def unsent(self) -> int:
        """Bytes for the caller that the kernel has not taken."""
        return self._caller.unsent

    def close(self) -> None:
        """Release both sockets. Afterwards nothing reaches the caller from here."""
        for timer in (self._deadline_timer, self._stall_timer, self._drain_timer):
            if timer is not None:
                timer.cancel()
        self._caller.on_gone = self._caller.on_flow = None
        if self.events.done:
            release_at_end(self._upstream)
        else:
            self._upstream.release()

    def _on_head(self) -> None:
        upstream = self._upstream
        if upstream.failure is None:
            crash_points.point("upstream.answered")
            if self._streamed and upstream.status == 200 and upstream.media_type == "text/event-stream":
                self._last_read_at = self._loop.time()
                self._flow()
                return
        upstream.pause()
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
        self.end(EndReason.OTHER)

    def _flow(self) -> None:
        self._upstream.flow_to(self._on_data, self._on_end)

    def _begin_pass(self) -> None:
        self._upstream.begin_pass(self)

    def _on_data(self, data: bytes) -> bool:
        """Pass on what is complete. Return whether the parser kept data for later."""
        if self.ended.done():
            return False  # the caller gets no more of it, so it must not be counted
        events = self.events
        whole = events.feed(data)
        self._received += len(data)
        if self._received > self.channel.max_response_bytes:
            self.end(EndReason.SIZE)
            return events.backlog
        if events.template.novel >= self._secrets.shortest:
            whole = self._secrets.redact_whole(whole)
        now = self._loop.time()
        gap, self._last_read_at = now - self._last_read_at, now
        if self.state is _COLLECTING:
            self._collected.append(whole)
            self._begin_if_first_event()
            return events.backlog
        exchange = self._exchange
        if gap > exchange.longest_gap_s:  # noqa: PLR1730 - a call of `max` is slower
            exchange.longest_gap_s = gap
        if whole and (self.hooks is None or (whole := self._passed(whole))):
            self._caller.write(whole)
            exchange.bytes += len(whole)
            exchange.events = events.events
        if events.concluded:
            self._conclude()
        return events.backlog

    def _begin_if_first_event(self) -> None:
        """Begin the response with what was collected, once the first event is complete."""
        events, exchange = self.events, self._exchange
        if self.ended.done() or not events.started:
            if self._received > self._max_prelude:
                self.end(EndReason.SIZE)
            return
        if events.error is not None and events.first_error:
            self.end(EndReason.REFUSED)
            return
        try:
            head = self._caller.stream_head(self._begin())
        except BaseException as error:
            self.failure = (
                error if isinstance(error, Exception) else RuntimeError(f"a plugin raised {type(error).__name__}")
            )
            self.end(EndReason.PLUGIN)
            return
        first, self._collected = self._passed(b"".join(self._collected)), []
        if not first and self.withheld:
            return
        events.completion_id = events.completion_id or chunks.completion_id(first)
        self.state = RelayState.RELAYING
        self._caller.on_flow = self._on_caller_flow
        self._set_deadline(min(self._last_read_at + self.channel.timers.idle, self._total_deadline))
        exchange.first_byte = time.monotonic()
        self._caller.begin(head, first)
        exchange.bytes += len(first)
        exchange.events = events.events
        crash_points.point("stream.begun")
        self._begin_pass()
        if events.concluded:
            self._conclude()

    def _conclude(self) -> None:
        """End the relay, as nothing more is needed. A caller that is there may still get the `[DONE]` that follows soon."""
        if self.state is RelayState.RELAYING and self.events.error is None and not self.events.done:
            self._set_deadline(self._last_read_at + USAGE_WAIT_S)
        else:
            self.end(EndReason.COMPLETE)

    def _passed(self, whole: bytes) -> bytes:
        """Return what the plugins let pass of whole events. Where one ends the stream, the relay ends."""
        if self.hooks is None or not whole:
            return whole
        passed = self.hooks.deliverable(whole, self.events, self._secrets)  # type: ignore[arg-type]
        if self.hooks.withheld:
            self.failure = self.hooks.failure
            self.end(self.hooks.reason)
        return passed

    @property
    def withheld(self) -> bool:
        """Whether a plugin ended the stream, so that what follows is not delivered."""
        return self.hooks is not None and self.hooks.withheld

    def rest(self) -> bytes:
        """Return what was held back of an answer that has ended cleanly."""
        return self._passed(self._secrets.redact_rest(self.events.close()))

    def _on_end(self, clean: bool) -> None:
        self.end(EndReason.UPSTREAM if clean else EndReason.BROKEN)

    @property
    def _total_deadline(self) -> float:
        return self._exchange.started + self.channel.timers.total

    def _set_deadline(self, deadline: float) -> None:
        """Check the deadlines at `deadline`, unless a check is due earlier."""
        if self._deadline_timer is not None:
            if self._deadline <= deadline:
                return
            self._deadline_timer.cancel()
        self._deadline = deadline
        self._deadline_timer = self._loop.call_at(deadline, self._check_deadlines)

    def _check_deadlines(self) -> None:
        self._deadline_timer = None
        now = self._loop.time()
        concluded = self.events.concluded
        idle_s = min(self.channel.timers.idle, USAGE_WAIT_S) if concluded else self.channel.timers.idle
        idle_at = self._last_read_at + idle_s
        if self._stall_timer is not None or self._upstream.queued:
            idle_at = now + idle_s  # it is not the upstream that is slow
        if self.state is RelayState.COLLECTING:
            self.end(EndReason.LATE)
        elif now >= self._total_deadline:
            self.end(EndReason.COMPLETE if concluded else EndReason.TOTAL)
        elif now >= idle_at:
            self.end(EndReason.COMPLETE if concluded else EndReason.IDLE)
        else:
            self._set_deadline(max(now + 0.001, min(idle_at, self._total_deadline)))

    def _on_caller_flow(self, full: bool) -> None:
        if full:
            self._upstream.pause()
            self._stall_timer = self._loop.call_later(
                self.channel.timers.write_stall, self.end, EndReason.CALLER_STALLED
            )
        else:
            self._upstream.resume()
            self._stop_stall_timer()

    def _on_caller_gone(self) -> None:
        if self.state is not RelayState.RELAYING:
            self.end(EndReason.CALLER)
            return
        finished = self.events.all_finished
        self.state = RelayState.CONCLUDING if finished else RelayState.ABANDONED
        drain_s = self.channel.drain_limit if self.channel.on_caller_gone == "drain" else 0.0
        wait_s = max(drain_s, USAGE_WAIT_S) if finished else drain_s
        if self.events.concluded or not wait_s:
            self.end(EndReason.CALLER)
            return
        self._caller.on_flow = None
        self._stop_stall_timer()
        self._upstream.resume()
        self._drain_timer = self._loop.call_later(wait_s, self.end, EndReason.CALLER)

    def _stop_stall_timer(self) -> None:
        """Cancel the stall timer and restart the idle time: the caller reads again, or is gone."""
        self._last_read_at = self._loop.time()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
