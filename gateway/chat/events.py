"""A parser for the events of a response: it relays them and reads usage, errors and the end. Sans-I/O.

- The data may be cut at any byte. Complete events are relayed, byte for byte; one longer than the limit in pieces, and
  read without its long strings.
- Chunks without a choice may be dropped, with usage or without. A stream does not start with one.
- An error ends what is relayed. It is relayed itself if client libraries raise on its shape; otherwise the gateway sends
  an error event of its own in its place.
- Most events are never parsed: a search for the quoted names of the few fields that matter decides. Quotes in JSON
  strings are escaped, so a model's text cannot hide a field; it can only cause a needless parse.
- An event that differs from an earlier one only in its text is not searched: see `gateway.chat.tokens.Template`.
- A carriage return at the end of the data may be half of a line end: it ends an event once the next byte is there.

`WatchedEvents` are events that were counted when they arrived, and may not be delivered after all, because a plugin ended the
stream. What is counted of a stream is an estimate over all of its events, so nothing can be subtracted from it. Instead, the raw
bytes are kept since a state that is known, and those that were delivered are counted again. What is charged is so a function of
the events that were delivered, however they were cut on their way here.

`ReplyEvents` are those of an answer that a plugin gives: `[DONE]` ends them. An upstream may report its usage after `[DONE]`, and
its events are read as they come. What a plugin yields may be of any length.
"""

from __future__ import annotations

from copy import copy
from typing import Any, ClassVar, Final

from gateway.base import search
from gateway.chat import sse
from gateway.chat.sse import (
    EVENT_BOUNDARY,
    IGNORED_EVENTS,
    LongEvent,
    boundary_pattern,
    parse_event,
    plain_events,
    whole_events,
)
from gateway.chat.tokens import ALL, OutputCounter, Template, event_tokens
from gateway.chat.usage import ReportedUsage

MAX_PARSED: Final = 16
"""Events that `feed` takes singly."""

_NONE: Final[frozenset[bytes]] = frozenset()

NO_EVENT: Final = LongEvent()

END: Final = b"."
"""Follows the data, since an event may end with a carriage return."""
KEPT: Final = 32 * 1024
"""Raw bytes after which a new state is kept."""
MOST_KEPT: Final = 1 << 20
"""Raw bytes after which it is kept although an event was read in it that is not relayed."""


class EventStream:
    """The event stream of a response of `choices` choices. `singly`: events are always read one by one.

    Not relayed are chunks without a choice: with `drop_usage` those with usage, with `drop_empty` the others.
    """

    __slots__ = (
        "_appeared",
        "_choices",
        "_drop_empty",
        "_drop_usage",
        "_ended_at_boundary",
        "_finished_choices",
        "_in_overlong",
        "_long",
        "_max_event_bytes",
        "_pending",
        "_unusual",
        "backlog",
        "completion_id",
        "concluded",
        "done",
        "error",
        "error_relayed",
        "events",
        "first_error",
        "output",
        "output_at_usage",
        "started",
        "template",
        "told",
        "usage",
    )

    singly: ClassVar[bool] = False

    def __init__(
        self, *, drop_usage: bool, drop_empty: bool = False, choices: int = 1, max_event_bytes: int = 1 << 20
    ) -> None:
        self.started = False
        """A first event with data that is relayed, or an error, was complete."""
        self.events = 0
        """The events with data that were relayed, including `[DONE]`."""
        self.error: bytes | None = None
        """The data of the first error event."""
        self.first_error = False
        """It was the event that the stream started with."""
        self.error_relayed = False
        """Client libraries raise on it."""
        self.completion_id = ""
        """The id that the upstream gave the completion."""
        self.usage = ReportedUsage()
        """The usage that the upstream reported."""
        self.told: dict[str, Any] = {}
        """What is kept of earlier events, for operations whose events build on one another."""
        self.done = False
        """`[DONE]` was received."""
        self.concluded = False
        """`[DONE]`, an error, or all finish reasons and the final usage was received."""
        self._choices = choices
        self._appeared = _NONE
        """Those that had an event, if there may be several."""
        self._finished_choices = _NONE
        self.output_at_usage = -1
        self._drop_usage = drop_usage
        self._drop_empty = drop_empty
        self._max_event_bytes = max_event_bytes
        self._pending = bytearray()
        self.template = Template()
        self._in_overlong = False
        self._long = NO_EVENT
        self._unusual = self.singly or choices > 1
        """Events are taken one by one: for several choices, an overlong event, or an error."""
        self._ended_at_boundary = False
        self.backlog = False
        """Data was left for the next call of `feed`, which may be without new data."""
        self.output = OutputCounter()
        """All relayed events except errors, `[DONE]` and chunks without a choice."""

    @property
    def at_boundary(self) -> bool:
        """Return whether the relayed data ends with a complete event."""
        return not self._in_overlong

    @property
    def finished(self) -> bool:
        """Return whether a choice had a finish reason."""
        return bool(self._finished_choices)

    @property
    def all_finished(self) -> bool:
        """Return whether every choice had a finish reason, or `[DONE]` was received."""
        return self.done or len(self._finished_choices) >= self._choices

    @property
    def complete(self) -> bool:
        """Return whether there was `[DONE]`, or every choice that appeared is finished and the end cut no event."""
        return self.done or (self.finished and self._ended_at_boundary and self._appeared <= self._finished_choices)

    def feed(self, data: bytes) -> bytes:
        """Take data from the upstream and return the data to relay now, empty while no event is complete.

        The time of a call is bounded: see `backlog`.
        """
        template = self.template
        if self.passes(data, 0, len(data)):
            return data
        template.novel = ALL
        if self._pending or self._unusual:
            relayed = self._take_within_event(data)
        elif template.has_only_text(data, self._max_event_bytes):
            self.started = True
            template.learn(data, self.events)
            self.events += 1
            self.output.add(data, 1)
            return data
        else:
            relayed = self._take_from_boundary(data)
        if (len(self._pending) > self._max_event_bytes and not self.backlog) or self._in_overlong:
            relayed += self._take_overlong()
        return relayed

    def passes(self, data: bytes, begin: int, end: int) -> bool:
        """Take a part of data that is one event which differs in its text alone. Return whether it is, as nearly always."""
        template = self.template
        if self._pending or self._unusual or template.end_of(data, begin) != end or end - begin > self._max_event_bytes:
            return False
        template.novel = end - begin - template.size
        self.events += 1
        if not self.output.counts(end - begin):
            self.output.add(data[begin:end], 1)
        return True

    def close(self) -> bytes:
        """Return what the clean end of the upstream's data completes. An unfinished event is never relayed."""
        if self.backlog:
            return self.feed(b"") + self.close()
        rest = bytes(self._pending)
        self._pending.clear()
        if EVENT_BOUNDARY.search(rest + b"."):
            self._ended_at_boundary = True
            return self._end_overlong(rest) if self._in_overlong else self._take_event(rest)
        self._note_unfinished(rest)
        unfinished = [line for line in rest.splitlines() if line and not line.startswith(b":")]
        self._ended_at_boundary = not (self._in_overlong or unfinished)
        return b""

    def _note_unfinished(self, rest: bytes) -> None:
        """Note the end of an answer that lacks only its last line ends."""
        if parse_event(rest)[1] == b"[DONE]":
            self._note_finish(b"", sse.TEXT, is_done=True)

    def _take_from_boundary(self, data: bytes) -> bytes:
        """Take data that begins at an event boundary: a run of similar events at once, then some events one by one."""
        end = 0 if self._unusual else self._take_run(data)
        if end == len(data):
            return data
        relayed, count, text = [data[:end]] if end else [], 0, data
        while count < MAX_PARSED and end < len(data) and (stop := sse.end_of_event(data, end)) > 0:
            count += 1
            relayed.append(self._take_event(text[end:stop]))
            end = stop
        if end < len(data):
            self._pending += data[end:]
        self.backlog = count == MAX_PARSED and end < len(data)
        return b"".join(relayed)

    def _take_run(self, data: bytes) -> int:
        """Take the comments that data begins with, else the plain events. Return their end."""
        if data.startswith((b":", b"\n", b"\r")) and (comments := IGNORED_EVENTS.match(data)):
            return comments.end() if comments.end() <= self._max_event_bytes else 0
        end, events = (0, 0) if len(data) > self._max_event_bytes else self._run_of_text(data)
        if not events:
            return 0
        self.started = True
        self.events += events
        self.output.add(data[:end], events)
        return end

    def _run_of_text(self, data: bytes) -> tuple[int, int]:
        """Return where the events end that data begins with and that have only text, and how many there are."""
        template, end, events = self.template, 0, 0
        while end < len(data):
            stop = template.end_of(data, end)
            if stop < 0:
                stop = search.find(data, b"\n\n", end, len(data)) + 2
                if stop < 2 or not template.has_only_text(data[end:stop], self._max_event_bytes):
                    break
                template.learn(data[end:stop], self.events + events)
            end = stop
            events += 1
        return (end, events) if events or search.find(data, b"\r", 0, len(data)) < 0 else plain_events(data)

    def _take_within_event(self, data: bytes) -> bytes:
        """Take data that follows pending data, and search only the new part: many small pieces stay cheap."""
        searched = 0 if self.backlog else max(0, len(self._pending) - 3)
        self.backlog = False
        self._pending += data
        boundary = boundary_pattern(self._pending, searched).search(self._pending, searched)
        if boundary is None:
            return b""
        end = boundary.end() if self._in_overlong else 0
        last, rest = bytes(self._pending[:end]), bytes(self._pending[end:])
        self._pending.clear()
        relayed = self._end_overlong(last) if last else b""
        return relayed + self._take_from_boundary(rest) if rest else relayed

    def _take_overlong(self) -> bytes:
        """Return a piece of an event that is too long to buffer, without the line ends that may be half of its boundary."""
        if not self._in_overlong:
            self._begin_overlong()
        piece = self._pending.rstrip(b"\r\n")
        del self._pending[: len(piece)]
        return self._relay_overlong(bytes(piece))

    def _begin_overlong(self) -> None:
        self._in_overlong = self._unusual = self.started = True
        self._long = LongEvent()
        self.events += self.error is None

    def _end_overlong(self, piece: bytes) -> bytes:
        self._in_overlong = False
        self._unusual = self.singly or self.error is not None or self._choices > 1
        relayed, event, self._long = self._relay_overlong(piece), self._long, NO_EVENT
        if self.error is None and event.readable:
            self._read_overlong(event)
        return relayed

    def _read_overlong(self, event: LongEvent) -> None:
        """Note what an event says that was passed on in pieces. Its bytes were counted as text, until it was known what is."""
        self.output.add_unread(event.text_bytes - event.size)
        name, data = parse_event(event.kept)
        chunk = sse.read(name, data)
        if chunk.error:
            return
        if self._choices > 1:
            self._appeared |= sse.indexes(data)
        self._note_finish(event.kept, chunk, is_done=False)
        self.output.add_measured(event.kept)
        self._note_facts(chunk)

    def _relay_overlong(self, piece: bytes) -> bytes:
        if self.error is not None:
            return b""
        self.output.add_unread(len(piece))
        self._long.add(piece)
        return piece

    def _take_event(self, event: bytes) -> bytes:
        """Take one complete event; return it, or nothing if it is dropped."""
        if len(event) > self._max_event_bytes:
            self._begin_overlong()
            return self._end_overlong(event)
        name, data = sse.parse_event(event)
        if not data and name != b"error":
            return event if self.error is None else b""
        is_done = data == b"[DONE]"
        chunk = sse.TEXT if is_done else sse.read(name, data)
        if self._choices > 1:
            self._appeared |= sse.indexes(data)
        dropped = chunk.empty and (self._drop_usage if chunk.only_usage else self._drop_empty)
        relayed = self.error is None and not dropped
        if chunk.error and self.error is None:
            self.error, self.first_error, self._unusual = data, not self.started, True
            relayed = self.error_relayed = chunk.raises
        self.started = self.started or relayed or chunk.error
        self._note_finish(event, chunk, is_done)
        if relayed:
            self.events += 1
            if not (chunk.error or chunk.empty or is_done):
                self._count_output(event, chunk)
        self._note_facts(chunk)
        return event if relayed else b""

    def _note_facts(self, chunk: sse.Chunk) -> None:
        """Note the id, the tier and the usage that an event tells, and whether nothing more is needed."""
        self.completion_id = self.completion_id or sse.id_text(chunk.id)
        usage, all_finished = self.usage, self.done or len(self._finished_choices) >= self._choices
        if chunk.service_tier:
            usage.service_tier = chunk.service_tier
        if chunk.counts is not None:
            usage.add(chunk.counts, all_finished)
            self.output_at_usage = self.output.all_events
        final = (usage.prompt_final and usage.completion_final) or usage.total_final
        self.concluded = self.error is not None or self.done or (all_finished and final)

    def _note_finish(self, event: bytes, chunk: sse.Chunk, is_done: bool) -> None:
        """Note `[DONE]` and the finish of choices. Usage reported before is final if no text came after it."""
        if not (is_done or chunk.finished):
            return
        self.done = self.done or is_done
        self._finished_choices |= chunk.finished
        all_finished = self.done or len(self._finished_choices) >= self._choices
        if not all_finished or self.output.all_events != self.output_at_usage:
            return
        if is_done or not event_tokens(event):
            self.usage.set_final()

    def _count_output(self, event: bytes, chunk: sse.Chunk) -> None:
        if chunk.finished or chunk.counts is not None:
            self.output.add_measured(event)  # its size is not that of its text
        else:
            self.output.add(event, 1)


_STATE: Final = tuple(name for name in EventStream.__slots__ if name not in ("_pending", "output", "template", "usage"))


def whole_up_to(data: bytes, most: int) -> bytes:
    """Return the whole events that the data begins with, of `most` bytes together, without `[DONE]`: the answer is not whole."""
    end = 0
    for event in whole_events(data + END):
        if end + len(event) > most or parse_event(event)[1] == b"[DONE]":
            break
        end += len(event)
    return data[:end]


class WatchedEvents(EventStream):
    """An event stream whose last events may be withdrawn. After each call that relays events, call `deliver` or `withdraw`."""

    __slots__ = ("_all_relayed", "_at_mark", "_delivered", "_raw", "_undelivered")

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._all_relayed = True
        """The last event that was read is relayed."""
        self._undelivered = 0
        self._keep_state()

    def feed(self, data: bytes) -> bytes:
        """Take data from the upstream and return the data to relay now."""
        self._raw += data
        self._all_relayed = True
        relayed = super().feed(data)
        self._undelivered += len(relayed)
        return relayed

    def close(self) -> bytes:
        """Return what the clean end of the upstream's data completes."""
        before = self._undelivered
        relayed = super().close()
        self._undelivered = before + len(relayed)
        return relayed

    def deliver(self, held: int) -> None:
        """Note that all that was relayed is delivered, but `held` bytes of an event that is too long to wait for."""
        self._delivered += self._undelivered
        self._undelivered = 0
        kept = len(self._raw)
        if (kept > KEPT and self._all_relayed) or kept > MOST_KEPT or self._in_overlong:
            self._keep_state(held)

    def withdraw(self, kept: int) -> None:
        """Count nothing that was relayed since the last delivery but its first `kept` events. Nothing can be fed afterwards."""
        state, pending, held, output, usage = self._at_mark
        for name, value in zip(_STATE, state, strict=True):
            setattr(self, name, value)
        self.output, self.usage = output, usage
        self._pending.clear()
        relayed = 0
        for event in whole_events(pending + self._raw + END):
            if relayed >= self._delivered and kept <= 0:
                break
            if self._in_overlong:
                took = len(self._end_overlong(event))
                self.output.add_unread(held)
            else:
                took = len(self._take_event(event))
            relayed += took
            kept -= took > 0 and relayed > self._delivered

    def _take_event(self, event: bytes) -> bytes:
        relayed = super()._take_event(event)
        self._all_relayed = bool(relayed)
        return relayed

    def _keep_state(self, held: int = 0) -> None:
        state = [copy(getattr(self, name)) for name in _STATE]
        self._at_mark = state, bytes(self._pending), held, self.output.copy(), copy(self.usage)
        self._raw = bytearray()
        self._delivered = 0


class ReplyEvents(WatchedEvents):
    """An event stream of which nothing is relayed, read or counted after `[DONE]`. It is not concluded before its end."""

    __slots__ = ("_at_end",)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._at_end = False

    def end(self) -> None:
        """Let the next call of `feed`, which is without data, return what the end of the data completes."""
        self._at_end = True

    def feed(self, data: bytes) -> bytes:
        """Take data and return the data to relay now. Raises `RuntimeError` for an error event."""
        if self.done:
            self.backlog = False
            return b""
        relayed = self.close() if self._at_end else super().feed(data)
        if self.error is not None:
            raise RuntimeError("the events of its reply have an error: raise `Refused` instead")
        return relayed

    def close(self) -> bytes:
        """Return what the end of the data completes."""
        relayed = b"" if self.done else super().close()
        self.concluded = self.done
        return relayed

    def _take_event(self, event: bytes) -> bytes:
        relayed = b"" if self.done else super()._take_event(event)
        self.concluded = False
        return relayed

    def _take_overlong(self) -> bytes:
        return b"" if self.done else super()._take_overlong()
