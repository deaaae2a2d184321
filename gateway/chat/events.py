"""A parser for the event stream of a response: it relays events and reads usage, errors and the end. Sans-I/O.

- The data may be cut at any byte. Events are relayed byte for byte as the upstream framed them, and only complete
  ones. The exception is an event longer than the limit, which is relayed in pieces and not parsed.
- One event may be dropped: the usage-only chunk, if the gateway asked for it and the caller did not.
- Most events are never parsed. A search for the quoted names of the few fields that matter decides whether an event
  is parsed as JSON. A quote inside a JSON string is escaped, so text written by a model cannot hide a field from the
  search; it can only cause an event to be parsed that has none of these fields.
- A carriage return at the end of the data may be the first half of a line end, so it ends an event only when
  the next byte has arrived.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, TypeVar

import msgspec

from gateway.chat.sse import (
    EVENT_BOUNDARY,
    LINE_FEED,
    boundary_pattern,
    count_plain_events,
    last_boundary,
    parse_event,
    whole_events,
)
from gateway.chat.tokens import OutputCounter
from gateway.chat.usage import Usage

_FIELDS: Final = re.compile(rb'"(?:finish_reason|usage|error)"(?!:null)')
_NULL: Final = msgspec.Raw(b"null")
_NO_FINISH_REASON: Final = (b"null", b'""')

Value = TypeVar("Value")

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]


class _Groq(msgspec.Struct):
    usage: msgspec.Raw = _NULL


class _Choice(msgspec.Struct):
    finish_reason: msgspec.Raw = _NULL


class _Chunk(msgspec.Struct):
    choices: msgspec.Raw = _NULL
    usage: msgspec.Raw = _NULL
    error: msgspec.Raw = _NULL
    x_groq: msgspec.Raw = _NULL


class _UsageCounts(msgspec.Struct):
    prompt_tokens: Count
    completion_tokens: Count


_chunk = msgspec.json.Decoder(_Chunk)
_choices = msgspec.json.Decoder(list[_Choice])
_groq = msgspec.json.Decoder(_Groq)
_counts = msgspec.json.Decoder(_UsageCounts)


class EventStream:
    """The event stream of one response. `drop_usage`: the caller did not ask for the usage-only chunk."""

    __slots__ = (
        "_drop_usage",
        "_ended_at_boundary",
        "_in_overlong",
        "_max_event_bytes",
        "_pending",
        "done",
        "error",
        "events",
        "finished",
        "first_error",
        "output",
        "started",
        "usage",
    )

    def __init__(self, *, drop_usage: bool, max_event_bytes: int = 1 << 20) -> None:
        self.started = False
        """A first event with data was complete. Comments are not events."""
        self.events = 0
        """The number of events with data that were relayed, including `[DONE]`."""
        self.error: bytes | None = None
        """The data of the first error event: one named `error`, or whose field `error` is not null."""
        self.first_error = False
        """The error was the first event with data."""
        self.usage: Usage | None = None
        """The last usage that the upstream reported, in whichever field of an event."""
        self.finished = False
        """A choice had a `finish_reason`. An empty one does not count: some upstreams send it with every chunk."""
        self.done = False
        """`[DONE]` was received."""
        self._drop_usage = drop_usage
        self._max_event_bytes = max_event_bytes
        self._pending = bytearray()
        self._in_overlong = False
        self._ended_at_boundary = False
        self.output = OutputCounter()
        """The output events: all that were relayed except errors, `[DONE]` and the usage-only chunk."""

    @property
    def at_boundary(self) -> bool:
        """Return whether the relayed data ends with a complete event, so that another event may be appended."""
        return not self._in_overlong

    @property
    def complete(self) -> bool:
        """Return whether the response is complete: it had `[DONE]`, or a finish reason and an end that cut no event."""
        return self.done or (self.finished and self._ended_at_boundary)

    def feed(self, data: bytes) -> bytes:
        """Take data from the upstream and return the data to relay now, empty while no event is complete."""
        if self._pending or self._in_overlong:
            relayed = self._take_within_event(data)
        elif (
            # Nearly always: one complete event of a single line with a JSON object that has only text.
            data.find(b"\n") == len(data) - 2
            and data[-1] == LINE_FEED
            and data.startswith(b"data: {")
            and len(data) <= self._max_event_bytes
            and b"\r" not in data
            and _FIELDS.search(data) is None
        ):
            self.started = True
            self.events += 1
            self.output.add(data, 1)
            return data
        else:
            relayed = self._take_from_boundary(data)
        if len(self._pending) > self._max_event_bytes or self._in_overlong:
            relayed += self._take_overlong()
        return relayed

    def close(self) -> bytes:
        """Return what the clean end of the upstream's data completes. An unfinished event is never relayed."""
        rest = bytes(self._pending)
        self._pending.clear()
        if EVENT_BOUNDARY.search(rest + b"."):
            self._ended_at_boundary = True
            return self._end_overlong(rest) if self._in_overlong else self._take_event(rest)
        self.done = self.done or parse_event(rest)[1] == b"[DONE]"
        unfinished = [line for line in rest.splitlines() if line and not line.startswith(b":")]
        self._ended_at_boundary = not (self._in_overlong or unfinished)
        return b""

    def _take_from_boundary(self, data: bytes) -> bytes:
        """Take data that begins at an event boundary. Events before the first match of `_FIELDS` are not parsed."""
        match = _FIELDS.search(data)
        end = last_boundary(data, match.start() if match else len(data))
        plain = data[:end]
        relayed = []
        # Carriage returns end lines in other ways.
        if 0 < end <= self._max_event_bytes and b"\r" not in data and (events := count_plain_events(plain)):
            self.started = True
            self._count(plain, events)
            if end == len(data):
                return plain
            relayed.append(plain)
        else:
            end = 0
        for event in whole_events(data[end:]):
            end += len(event)
            relayed.append(self._take_event(event))
        self._pending += data[end:]
        return b"".join(relayed)

    def _take_within_event(self, data: bytes) -> bytes:
        """Take data that begins within an event. Only the new data is searched, so that many small pieces stay cheap."""
        searched = max(0, len(self._pending) - 3)
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
        self.output.bytes += len(piece)
        return bytes(piece)

    def _begin_overlong(self) -> None:
        self._in_overlong = self.started = True
        self.events += 1
        self.output.events += 1

    def _end_overlong(self, piece: bytes) -> bytes:
        self._in_overlong = False
        self.output.bytes += len(piece)
        return piece

    def _take_event(self, event: bytes) -> bytes:
        """Parse one complete event if needed; return it, or nothing if it is dropped."""
        if len(event) > self._max_event_bytes:
            self._begin_overlong()
            return self._end_overlong(event)
        name, data = parse_event(event)
        if not data:
            return event
        is_first, self.started = not self.started, True
        chunk = _Chunk()
        if name == b"error" or _FIELDS.search(data):
            chunk = _decode(_chunk, data) or chunk
            self._read_fields(chunk)
        is_error = name == b"error" or chunk.error != _NULL
        if is_error and self.error is None:
            self.error, self.first_error = data, is_first
        only_usage = chunk.usage != _NULL and _decode(_choices, chunk.choices) == []
        if only_usage and self._drop_usage and not is_error:
            return b""
        if is_error or only_usage or data == b"[DONE]":
            self.done = self.done or data == b"[DONE]"
            self.events += 1
        else:
            self._count(event, 1)
        return event

    def _read_fields(self, chunk: _Chunk) -> None:
        choices = _decode(_choices, chunk.choices) or []
        self.finished = self.finished or any(bytes(choice.finish_reason) not in _NO_FINISH_REASON for choice in choices)
        groq = _decode(_groq, chunk.x_groq) or _Groq()
        counts = _decode(_counts, chunk.usage) or _decode(_counts, groq.usage)
        if counts is not None:
            self.usage = Usage(counts.prompt_tokens, counts.completion_tokens, "upstream")

    def _count(self, data: bytes, events: int) -> None:
        self.events += events
        self.output.add(data, events)


def _decode(decoder: msgspec.json.Decoder[Value], raw: bytes | msgspec.Raw) -> Value | None:
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
