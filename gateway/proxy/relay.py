"""The relay of one answer: the events of a source go to the caller as they arrive. There is no other way for them.

A source is an upstream's connection, or the stream of a plugin (`gateway.proxy.plugin_streams`). What an upstream of another
dialect sends is translated first. What is written to is the caller's connection, or `Gathering`, which makes one answer of the
events where the caller did not ask for a stream.

Nothing on the path of an event waits. The task that started the relay sleeps until the relay has ended; a read of the
upstream's socket writes to the caller's socket in the same call. One timer watches the deadlines, and is moved only when it
fires. An answer of a moment has none: see `Relays`.

Many upstreams send `[DONE]` and the end of the body in two writes. The caller does not wait for the second one, and without it
the connection could not carry another request: it is given back when the body has ended (`UpstreamConnection.release`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import lru_cache, partial
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Final, Protocol

from gateway.base import crash_points, search
from gateway.chat import sse
from gateway.chat.answers import GatheredCompletion
from gateway.chat.events import EventStream
from gateway.chat.sse import QUOTE, parse_event, whole_events
from gateway.chat.tokens import ALL
from gateway.config.channel import Channel
from gateway.domain.exchange import Exchange
from gateway.proxy.caller import CallerConnection
from gateway.proxy.chunk_hooks import COMPLETE, REDACTED, STOPPING, ChunkHooks, EndReason
from gateway.proxy.translation import Translation

if TYPE_CHECKING:
    from gateway.proxy.upstream import OnData, UpstreamConnection

MAX_PRELUDE: Final = 2 * 1024 * 1024
"""Bytes that may arrive before the first event is complete: more than the longest event that is waited for."""
SSE: Final = ("text/event-stream",)
MOMENT_S: Final = 0.5
"""How long a relay has no timer for a deadline that is twice as far."""
USAGE_WAIT_S: Final = 2.0
"""How long an answer that has its finish reasons is read on, for the usage and for `[DONE]`."""


class RelayState(Enum):
    """Where a relay is. It goes from `COLLECTING` to `RELAYING`, and to one of the others when the caller leaves."""

    COLLECTING = "the caller has nothing yet; the first event is not complete"
    RELAYING = "the caller has the head of the response and the first event"
    ABANDONED = "the caller left before the answer was complete"
    CONCLUDING = "the caller left after the finish; only the usage is outstanding"


_COLLECTING: Final = RelayState.COLLECTING
_RELAYING: Final = RelayState.RELAYING
ABANDONED: Final = RelayState.ABANDONED
"""The name of a module is looked up faster than a member of an enum, and these are needed at each read."""


class Source(Protocol):
    """The source of a relay's data: the connection of an upstream, or the stream of a plugin."""

    queued: bool
    """It has more, and waits for its turn to give it."""

    def flow_to(self, on_data: OnData, on_end: Callable[[bool], None], relay: Relay | None = None) -> None:
        """Give the data from now on. `on_data` returns whether it kept some for a call without data.

        A source may first ask the `relay` to pass on a chunk as it is.
        """

    def pause(self) -> None:
        """Give nothing more: the caller is slower."""

    def resume(self) -> None:
        """Give more again."""

    def release(self, *, at_end: bool) -> None:
        """Give nothing any more. `at_end`: the answer is complete, but for its framing."""


@lru_cache(16)
def _secrets_of(credentials: tuple[str, ...]) -> tuple[tuple[bytes, ...], int]:
    """Return the secrets, and how many novel bytes of a text may contain one. One with a quote may begin before the text."""
    secrets = tuple([credential.encode() for credential in credentials])
    return secrets, min([0 if QUOTE in secret else len(secret) for secret in secrets], default=ALL + 1)


class Redaction:
    """Replaces the credentials of a channel in one stream of events, which are called secrets here."""

    __slots__ = ("_events", "_tail", "secrets", "shortest")

    def __init__(self, credentials: Iterable[str], events: EventStream) -> None:
        self._events = events
        self._tail = b""
        self.secrets, self.shortest = _secrets_of(tuple(credentials))

    @property
    def held(self) -> int:
        """How many bytes are held back."""
        return len(self._tail)

    def redact_whole(self, whole: bytes) -> bytes:
        """Replace the secrets in `whole`, and hold back an end of it in which one may be split. That end is not counted yet."""
        whole = self._redact(self._take_held() + whole)
        if not self._events.at_boundary:
            # Part of an event that is too long to wait for: a secret may be split here.
            keep = max(1, max(map(len, self.secrets)) - 1)
            whole, self._tail = whole[:-keep], whole[-keep:]
            self._events.output.add_unread(-len(self._tail))
        return whole

    def redact_rest(self, rest: bytes) -> bytes:
        """Replace the secrets in the rest of the stream, after the bytes that were held back."""
        return self._redact(self._take_held() + rest)

    def _take_held(self) -> bytes:
        held, self._tail = self._tail, b""
        if held:
            self._events.output.add_unread(len(held))
        return held

    def _redact(self, data: bytes) -> bytes:
        for secret in self.secrets:
            if search.find(data, secret, 0, len(data)) >= 0:
                data = data.replace(secret, REDACTED)
                self._events.template.forget()
        return data


class Relay:
    """One answer on its way from a source to the caller, until `ended`.

    Until the first event is complete it only collects, so that an error there is still an error before the first byte. With
    that event it asks `begin` for the headers of the response, and from then on passes on what arrives.

    `events` parses what arrives. The limits are those of `channel`. `translation` is for a source of another dialect.
    """

    def __init__(
        self,
        exchange: Exchange,
        events: EventStream,
        channel: Channel,
        caller: CallerConnection | Gathering,
        source: Source,
        begin: Callable[[], dict[str, str]],
        hooks: ChunkHooks | None = None,
        translation: Translation | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._now = self._loop.time
        self._exchange = exchange
        self.channel = channel
        self._caller = caller
        self._chunked = caller if isinstance(caller, CallerConnection) and caller.chunked else None
        self._source = source
        self._begin = begin
        self.hooks = hooks
        self.max_prelude = MAX_PRELUDE
        self.streamed = True
        """An upstream was asked for a stream."""
        self._collected: list[bytes] = []
        self._received = 0
        self._last_read_at = 0.0
        self._deadline = inf
        self.watched = True
        """It has a timer for its deadline; false from `Relays.add` on, for a moment."""
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._drain_timer: asyncio.TimerHandle | None = None
        self.state = _COLLECTING
        self._left = False
        self.slowed = False
        """The source had to wait for the caller."""
        self.failure: BaseException | None = None
        """What a plugin raised, or why the headers of `begin` cannot be sent."""
        self.events = events
        self.translation = translation
        self._secrets = Redaction(channel.scrubbed, events)
        self._shortest_secret = self._secrets.shortest
        self._max_received = channel.max_response_bytes
        self._passed_bytes = 0
        """What `passes` has written, and the longest gap before it, until `_note_passed`."""
        self._longest_gap = 0.0
        self._over = False
        """`ended` is done, for each event: to ask it costs more."""
        self.ended: asyncio.Future[EndReason] = self._loop.create_future()
        caller.on_gone = self._on_caller_gone

    def limit_first_event(self, deadline: float) -> None:
        """End the relay where no event has arrived at `deadline`, in the time of the loop."""
        self._set_deadline(deadline)

    def wait_again(self) -> asyncio.Future[EndReason]:
        """Return a new future in place of `ended`, for a response that is not a stream and is read elsewhere."""
        self._over = False
        self.ended = self._loop.create_future()
        return self.ended

    def end(self, reason: EndReason) -> None:
        """End the relay, once."""
        self._note_passed()
        self._over = True
        if not self.ended.done():
            self.ended.set_result(reason)

    def stop(self) -> None:
        """End the relay, as the gateway stops or ends the exchange."""
        self.end(STOPPING)

    @property
    def unsent(self) -> int:
        """Bytes for the caller that the kernel has not taken."""
        return self._caller.unsent

    @property
    def begun(self) -> bool:
        """Whether the caller has had the first event."""
        return self.state is not _COLLECTING

    def close(self) -> None:
        """Release both sockets. Afterwards nothing reaches the caller from here."""
        self._note_passed()
        for timer in (self._deadline_timer, self._stall_timer, self._drain_timer):
            if timer is not None:
                timer.cancel()
        self._caller.on_gone = self._caller.on_flow = None
        self._source.release(at_end=self.events.done)

    def on_head(self, upstream: UpstreamConnection) -> None:
        """Take the events of an upstream that begins to send some. Any other response is left to be read elsewhere."""
        if upstream.failure is None:
            crash_points.point("upstream.answered")
            streams = SSE if self.translation is None else self.translation.streams
            if self.streamed and upstream.status == 200 and upstream.media_type in streams:
                self.flow()
                return
        upstream.pause()
        self._deadline = inf
        self.watch()
        self.end(EndReason.OTHER)

    def flow(self) -> None:
        """Receive the source's data from now on."""
        self._last_read_at = self._loop.time()
        if self.translation is None:
            self._source.flow_to(self._on_data, self._on_end, self if self.hooks is None else None)
        else:
            on_end = partial(self._on_untranslated_end, self.translation)
            self._source.flow_to(partial(self._on_untranslated, self.translation), on_end)

    def passes(self, chunk: bytes, begin: int) -> bool:
        """Pass on a chunk whose data, from `begin` on, is an event that differs in its text alone. Return whether that is so."""
        events, caller = self.events, self._chunked
        size = len(chunk) - 2 - begin
        if (
            caller is None
            or self._received + size > self._max_received
            or self.state is not _RELAYING
            or events.concluded
            or self._over
            or not events.passes(chunk, begin, begin + size)
        ):
            return False
        self._received += size
        now = self._now()
        gap, self._last_read_at = now - self._last_read_at, now
        if gap > self._longest_gap:  # noqa: PLR1730 - a call of `max` is slower
            self._longest_gap = gap
        if events.template.novel < self._shortest_secret:
            caller.write_chunk(chunk)
        else:
            redacted = self._secrets.redact_whole(chunk[begin : begin + size])
            size = len(redacted)
            caller.write(redacted)
        self._passed_bytes += size
        return True

    def _note_passed(self) -> None:
        exchange = self._exchange
        if self._passed_bytes:
            exchange.bytes += self._passed_bytes
            exchange.events = self.events.events
            exchange.longest_gap_s = max(exchange.longest_gap_s, self._longest_gap)
            self._passed_bytes = 0

    def _on_data(self, data: bytes) -> bool:
        """Pass on the complete events. Return whether the parser kept data for later."""
        if self._over:
            return False  # the caller gets no more of it, so it must not be counted
        events = self.events
        whole = events.feed(data)
        self._received += len(data)
        if self._received > self._max_received:
            self.end(EndReason.SIZE)
            return events.backlog
        if events.template.novel >= self._shortest_secret:
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
        """Begin the response with the collected events, once the first one is complete."""
        events, exchange = self.events, self._exchange
        if self.ended.done() or not events.started:
            if self._received > self.max_prelude:
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
        events.completion_id = events.completion_id or sse.completion_id(first)
        events.usage.service_tier = events.usage.service_tier or sse.service_tier(first)
        self.state = ABANDONED if self._left else _RELAYING
        self._caller.on_flow = self._on_caller_flow
        self._set_deadline(min(self._last_read_at + self.channel.timers.idle, self._total_deadline))
        exchange.first_byte = monotonic()
        self._caller.begin(head, first)
        exchange.bytes += len(first)
        exchange.events = events.events
        crash_points.point("stream.begun")
        if events.concluded:
            self._conclude()

    def _on_untranslated(self, translation: Translation, data: bytes) -> bool:
        if self.ended.done():
            return False
        received = self._received + len(data)
        if self.hooks is None:
            kept = self._on_data(translation.feed(data))
        else:
            kept = self._on_data(b"")
            for chunks in translation.each(data):
                kept = self._on_data(chunks)
                while kept:
                    kept = self._on_data(b"")
                if self.ended.done():
                    break  # what an event after that one reports is not charged
        self._received = max(self._received, received)  # events that say nothing count, too: they may never end
        return kept

    def _on_untranslated_end(self, translation: Translation, clean: bool) -> None:
        if not self.ended.done():
            rest, whole = translation.close()
            self._on_data(rest)
            self._on_end(clean and whole)

    def _conclude(self) -> None:
        """End the relay, as nothing more is needed. A caller that is there may still get the `[DONE]` that follows soon."""
        if self.state is _RELAYING and self.events.error is None and not self.events.done:
            self._set_deadline(self._last_read_at + USAGE_WAIT_S)
        else:
            self.end(COMPLETE)

    def _passed(self, whole: bytes) -> bytes:
        """Return the part of whole events that the plugins let pass. Where a plugin ends the stream, the relay ends."""
        if self.hooks is None or not whole:
            return whole
        passed = self.hooks.deliverable(whole, self.events, self._secrets.held)  # type: ignore[arg-type]
        if self.hooks.withheld:
            self.failure = self.hooks.failure
            self.end(self.hooks.reason)
            noted = self.translation.noted if self.translation is not None else None
            if noted is not None and not self.events.usage.final:
                self.events.usage.add(noted, final=False)
        return passed

    @property
    def withheld(self) -> bool:
        """Whether a plugin ended the stream, so that later events are not delivered."""
        return self.hooks is not None and self.hooks.withheld

    def rest(self) -> bytes:
        """Return the bytes that were held back of an answer that has ended cleanly."""
        return self._passed(self._secrets.redact_rest(self.events.close()))

    def _on_end(self, clean: bool) -> None:
        if self.ended.done():
            return
        if clean and self.state is not _COLLECTING and (rest := self.rest()):
            self._caller.write(rest)
        self.end(EndReason.UPSTREAM if clean else EndReason.BROKEN)

    @property
    def _total_deadline(self) -> float:
        return self._exchange.started + self.channel.timers.total

    def _set_deadline(self, deadline: float) -> None:
        """Check the deadlines at `deadline`, unless a check is due earlier."""
        if deadline < self._deadline:
            self._deadline = deadline
            if self.watched or deadline < self._loop.time() + 2 * MOMENT_S:
                self.watch()

    def watch(self) -> None:
        """Set the timer for the deadline."""
        self.watched = True
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
            self._deadline_timer = None
        if self._deadline < inf:
            self._deadline_timer = self._loop.call_at(self._deadline, self._check_deadlines)

    def _check_deadlines(self) -> None:
        self._deadline_timer, self._deadline = None, inf
        now = self._loop.time()
        concluded = self.events.concluded
        idle_s = min(self.channel.timers.idle, USAGE_WAIT_S) if concluded else self.channel.timers.idle
        idle_at = self._last_read_at + idle_s
        if self._stall_timer is not None or self._source.queued:
            idle_at = now + idle_s  # it is not the upstream that is slow
        if self.state is _COLLECTING:
            self.end(EndReason.LATE)
        elif now >= self._total_deadline:
            self.end(EndReason.COMPLETE if concluded else EndReason.TOTAL)
        elif now >= idle_at:
            self.end(EndReason.COMPLETE if concluded else EndReason.IDLE)
        else:
            self._set_deadline(max(now + 0.001, min(idle_at, self._total_deadline)))

    def _on_caller_flow(self, full: bool) -> None:
        if full:
            self.slowed = True
            self._source.pause()
            self._stall_timer = self._loop.call_later(
                self.channel.timers.write_stall, self.end, EndReason.CALLER_STALLED
            )
        else:
            self._source.resume()
            self._stop_stall_timer()

    def _on_caller_gone(self) -> None:
        wait_s = self.channel.drain_limit if self.channel.on_caller_gone == "drain" else 0.0
        self._left = True
        if self.state is RelayState.RELAYING:
            finished = self.events.all_finished
            self.state = RelayState.CONCLUDING if finished else RelayState.ABANDONED
            wait_s = max(wait_s, USAGE_WAIT_S) if finished else wait_s
        if self.events.concluded or not wait_s:
            self.end(EndReason.CALLER)
            return
        self._caller.on_flow = None
        self._stop_stall_timer()
        self._source.resume()
        self._drain_timer = self._loop.call_later(wait_s, self.end, EndReason.CALLER)

    def _stop_stall_timer(self) -> None:
        """Cancel the stall timer and restart the idle time: the caller reads again, or is gone."""
        self._last_read_at = self._loop.time()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None


class Relays(set[Relay]):
    """The relays in progress. Most last no longer than a moment, and need no timer of their own."""

    _timer: asyncio.TimerHandle | None = None

    def add(self, relay: Relay) -> None:
        """Take a relay, and let it set its timer in a moment."""
        super().add(relay)
        relay.watched = False
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(MOMENT_S, self._watch)

    def _watch(self) -> None:
        self._timer = None
        for relay in self:
            if not relay.watched:
                relay.watch()


class Gathering:
    """A sink in place of the caller's connection: it gathers the events into one answer, and is never slow to take them."""

    chunked = False
    unsent = 0
    on_flow: Callable[[bool], None] | None = None

    def __init__(self, caller: CallerConnection) -> None:
        self._caller = caller
        self.completion = GatheredCompletion()
        self.invalid = False
        """An event was no chunk, or none had a choice."""
        self._ended = False
        self.on_invalid: Callable[[], None] | None = None

    @property
    def on_gone(self) -> Callable[[], None] | None:
        """Called when the caller leaves. Without it, `on_invalid` is forgotten, too: it refers to the relay."""
        return self._caller.on_gone

    @on_gone.setter
    def on_gone(self, called: Callable[[], None] | None) -> None:
        self._caller.on_gone = called
        if called is None:
            self.on_invalid = None

    def stream_head(self, headers: Mapping[str, str]) -> bytes:
        """Return no head: none is written."""
        return b""

    def begin(self, head: bytes, first: bytes) -> None:
        """Take the first events."""
        self.write(first)

    def write(self, data: bytes) -> None:
        """Take whole events."""
        for event in whole_events(data + b"\n\n"):  # the end of an event that ends with \r is seen with what follows
            text = parse_event(event)[1]
            self._ended |= text == b"[DONE]"  # readers of a stream stop here
            if text and not self._ended and not self.invalid:
                try:
                    self.completion.add(text)
                except ValueError:
                    self.invalid = True
                    if self.on_invalid is not None:
                        self.on_invalid()

    def encode(self) -> bytes:
        """Return the answer. Return nothing where an event was no chunk, or none had a choice: the answer is invalid."""
        try:
            return b"" if self.invalid else self.completion.encode()
        except ValueError:
            self.invalid = True
            return b""
