"""What a stream of server-sent events tells, cut at any byte. Sans-I/O.

- Events are passed on byte for byte as the upstream framed them, and only whole ones: never part of an event,
  except of one longer than the bound, which passes in pieces and is not looked into.
- One event may be dropped: the usage-only chunk, where the gateway asked for it and the caller did not.
- Most events are never taken apart. A search for the quoted names of the few fields that matter decides whether to
  look, and JSON decides what is there. A quote inside a JSON string is escaped, so text written by a model
  cannot hide a field from the search; it can only cause a look that finds nothing.
- A carriage return at the end of the data may be the first half of a line end, so it ends an event only when
  the next byte came.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, TypeVar

import msgspec

from gateway.chat.sse import BORDER, LINE_FEED, borders, data_of, last_border, plain_events, whole_events
from gateway.chat.tokens import Output
from gateway.chat.usage import Usage

_TELLING: Final = re.compile(rb'"(?:finish_reason|usage|error)"(?!:null)')
_NULL: Final = msgspec.Raw(b"null")
_UNFINISHED: Final = (b"null", b'""')

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


class _Counts(msgspec.Struct):
    prompt_tokens: Count
    completion_tokens: Count


_chunk = msgspec.json.Decoder(_Chunk)
_choices = msgspec.json.Decoder(list[_Choice])
_groq = msgspec.json.Decoder(_Groq)
_counts = msgspec.json.Decoder(_Counts)


class EventStream:
    """One answer of an upstream on its way through. `drop_usage`: the caller did not ask for the usage-only chunk."""

    __slots__ = (
        "_drop_usage",
        "_ended_whole",
        "_inside",
        "_longest",
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

    def __init__(self, *, drop_usage: bool, longest_event: int = 1 << 20) -> None:
        self.started = False
        """A first event with data was whole. Comments are not events."""
        self.events = 0
        """Events with data that were passed on, `[DONE]` included."""
        self.error: bytes | None = None
        """The data of the first event that told an error: one named `error`, or whose `error` is not null."""
        self.first_error = False
        """The error came as the first event with data."""
        self.usage: Usage | None = None
        """What the upstream last told of it, wherever in an event it stood."""
        self.finished = False
        """A choice gave its `finish_reason`. An empty one is none: some upstreams send it with every chunk."""
        self.done = False
        """`[DONE]` was seen."""
        self._drop_usage = drop_usage
        self._longest = longest_event
        self._pending = bytearray()
        self._inside = False
        self._ended_whole = False
        self.output = Output()
        """The events that are output: all that were passed on but errors, `[DONE]` and the usage-only chunk."""

    @property
    def at_border(self) -> bool:
        """Whether what was passed on so far ends with a whole event, so that another may follow it."""
        return not self._inside

    @property
    def complete(self) -> bool:
        """Whether the answer is whole: `[DONE]` was seen, or a finish and then an end that cut no event."""
        return self.done or (self.finished and self._ended_whole)

    def feed(self, data: bytes) -> bytes:
        """Take what the upstream sent; returns what to pass on now, empty while no event is whole."""
        if self._pending or self._inside:
            passed = self._continued(data)
        elif (
            # Nearly always, one whole event that is a line with an object and tells nothing but text.
            data.find(b"\n") == len(data) - 2
            and data[-1] == LINE_FEED
            and data.startswith(b"data: {")
            and len(data) <= self._longest
            and b"\r" not in data
            and _TELLING.search(data) is None
        ):
            self.started = True
            self.events += 1
            self.output.add(data, 1)
            return data
        else:
            passed = self._begun(data)
        if len(self._pending) > self._longest or self._inside:
            passed += self._overlong()
        return passed

    def close(self) -> bytes:
        """The upstream ended cleanly: returns what is whole only now. An unfinished event is never passed on."""
        rest = bytes(self._pending)
        self._pending.clear()
        if BORDER.search(rest + b"."):
            self._ended_whole = True
            return self._end_of_overlong(rest) if self._inside else self._taken(rest)
        self.done = self.done or data_of(rest)[1] == b"[DONE]"
        unfinished = [line for line in rest.splitlines() if line and not line.startswith(b":")]
        self._ended_whole = not (self._inside or unfinished)
        return b""

    def _begun(self, data: bytes) -> bytes:
        """Data that begins at a border. What comes before the first telling event is not taken apart."""
        telling = _TELLING.search(data)
        end = last_border(data, telling.start() if telling else len(data))
        plain = data[:end]
        passed = []
        # Carriage returns frame otherwise.
        if 0 < end <= self._longest and b"\r" not in data and (events := plain_events(plain)):
            self.started = True
            self._count(plain, events)
            if end == len(data):
                return plain
            passed.append(plain)
        else:
            end = 0
        for event in whole_events(data[end:]):
            end += len(event)
            passed.append(self._taken(event))
        self._pending += data[end:]
        return b"".join(passed)

    def _continued(self, data: bytes) -> bytes:
        """Data that begins within an event. Only what is new is searched, so that many small pieces stay cheap."""
        searched = max(0, len(self._pending) - 3)
        self._pending += data
        border = borders(self._pending, searched).search(self._pending, searched)
        if border is None:
            return b""
        end = border.end() if self._inside else 0
        last, rest = bytes(self._pending[:end]), bytes(self._pending[end:])
        self._pending.clear()
        passed = self._end_of_overlong(last) if last else b""
        return passed + self._begun(rest) if rest else passed

    def _overlong(self) -> bytes:
        """A piece of an event that is too long to wait for, up to line ends that may be half of its border."""
        if not self._inside:
            self._start_of_overlong()
        piece = self._pending.rstrip(b"\r\n")
        del self._pending[: len(piece)]
        self.output.bytes += len(piece)
        return bytes(piece)

    def _start_of_overlong(self) -> None:
        self._inside = self.started = True
        self.events += 1
        self.output.events += 1

    def _end_of_overlong(self, piece: bytes) -> bytes:
        self._inside = False
        self.output.bytes += len(piece)
        return piece

    def _taken(self, event: bytes) -> bytes:
        """Note what one whole event tells; returns it, or nothing where it is dropped."""
        if len(event) > self._longest:
            self._start_of_overlong()
            return self._end_of_overlong(event)
        name, data = data_of(event)
        if not data:
            return event
        first, self.started = not self.started, True
        chunk = _Chunk()
        if name == b"error" or _TELLING.search(data):
            chunk = _decoded(_chunk, data) or chunk
            self._learn(chunk)
        failed = name == b"error" or chunk.error != _NULL
        if failed and self.error is None:
            self.error, self.first_error = data, first
        only_usage = chunk.usage != _NULL and _decoded(_choices, chunk.choices) == []
        if only_usage and self._drop_usage and not failed:
            return b""
        if failed or only_usage or data == b"[DONE]":
            self.done = self.done or data == b"[DONE]"
            self.events += 1
        else:
            self._count(event, 1)
        return event

    def _learn(self, chunk: _Chunk) -> None:
        choices = _decoded(_choices, chunk.choices) or []
        self.finished = self.finished or any(bytes(choice.finish_reason) not in _UNFINISHED for choice in choices)
        groq = _decoded(_groq, chunk.x_groq) or _Groq()
        counts = _decoded(_counts, chunk.usage) or _decoded(_counts, groq.usage)
        if counts is not None:
            self.usage = Usage(counts.prompt_tokens, counts.completion_tokens, "upstream")

    def _count(self, data: bytes, events: int) -> None:
        self.events += events
        self.output.add(data, events)


def _decoded(decoder: msgspec.json.Decoder[Value], raw: bytes | msgspec.Raw) -> Value | None:
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
