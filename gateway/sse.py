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
from codecs import BOM_UTF8
from collections.abc import Iterator
from math import ceil
from typing import Annotated, Final, TypeVar

import msgspec

from gateway.exchange import Usage

BYTES_PER_TOKEN: Final = 4
"""What a token of text comes to, where no upstream says."""
SAMPLE: Final = 4096
"""Bytes of output kept to learn how much of an event is text."""

_BORDER: Final = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r(?=[^\n]))")
_LINE_FEEDS: Final = re.compile(rb"\n\n")
"""The border where there is no carriage return: a literal is found many times faster."""
_TELLING: Final = re.compile(rb'"(?:finish_reason|usage|error)"(?!:null)')
_NOT_TEXT: Final = frozenset({"role", "type", "id", "finish_reason", "native_finish_reason", "logprobs"})
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
_anything = msgspec.json.Decoder()


class EventStream:
    """One answer of an upstream on its way through. `drop_usage`: the caller did not ask for the usage-only chunk."""

    __slots__ = (
        "_drop_usage",
        "_ended_whole",
        "_inside",
        "_longest",
        "_output_bytes",
        "_pending",
        "_sample",
        "_silent",
        "done",
        "error",
        "events",
        "finished",
        "first_error",
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
        self._silent = 0
        self._output_bytes = 0
        self._sample = b""

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
        passed = self._continued(data) if self._pending or self._inside else self._begun(data)
        if len(self._pending) > self._longest or self._inside:
            passed += self._overlong()
        return passed

    def close(self) -> bytes:
        """The upstream ended cleanly: returns what is whole only now. An unfinished event is never passed on."""
        rest = bytes(self._pending)
        self._pending.clear()
        if _BORDER.search(rest + b"."):
            self._ended_whole = True
            return self._end_of_overlong(rest) if self._inside else self._taken(rest)
        self.done = self.done or _data_of(rest)[1] == b"[DONE]"
        unfinished = [line for line in rest.splitlines() if line and not line.startswith(b":")]
        self._ended_whole = not (self._inside or unfinished)
        return b""

    def estimated_completion_tokens(self) -> int:
        """Output tokens of what was passed on, for where no usage came; 0 only when no output was.

        At least one for each event. An upstream that sends several tokens in one is found by its bytes: the first
        events tell how many bytes of each are frame and how much of the rest is text told once, since some
        upstreams repeat it within an event. What all events have beyond their frames comes to a token for every
        four bytes of text. Errors, `[DONE]` and the usage-only chunk are no output.
        """
        events = self.events - self._silent
        sampled = [(len(event), _texts_of(event)) for event in _whole_events(self._sample)]
        told = sum(len(text) for _, texts in sampled for text in texts)
        once = sum(len(text) for _, texts in sampled for text in set(texts))
        frame = (sum(size for size, _ in sampled) - told) / max(1, len(sampled))
        text = max(0.0, self._output_bytes - events * frame) * (once / told if told else 1)
        return max(events, ceil(text / BYTES_PER_TOKEN))

    def _begun(self, data: bytes) -> bytes:
        """Data that begins at a border. What comes before the first telling event is not taken apart."""
        telling = _TELLING.search(data)
        end = data.rfind(b"\n\n", 0, telling.start() if telling else len(data)) + 2
        plain = data[:end]
        passed = []
        # Carriage returns frame otherwise.
        if 1 < end <= self._longest and b"\r" not in data and (events := _plain_events(plain)):
            self.started = True
            self._count_output(plain, events)
            if end == len(data):
                return plain
            passed.append(plain)
        else:
            end = 0
        for event in _whole_events(data[end:]):
            end += len(event)
            passed.append(self._taken(event))
        self._pending += data[end:]
        return b"".join(passed)

    def _continued(self, data: bytes) -> bytes:
        """Data that begins within an event. Only what is new is searched, so that many small pieces stay cheap."""
        searched = max(0, len(self._pending) - 3)
        self._pending += data
        border = _borders(self._pending, searched).search(self._pending, searched)
        if border is None:
            return b""
        event, rest = bytes(self._pending[: border.end()]), bytes(self._pending[border.end() :])
        self._pending.clear()
        passed = self._end_of_overlong(event) if self._inside else self._taken(event)
        return passed + self._begun(rest) if rest else passed

    def _overlong(self) -> bytes:
        """A piece of an event that is too long to wait for, up to line ends that may be half of its border."""
        if not self._inside:
            self._start_of_overlong()
        piece = self._pending.rstrip(b"\r\n")
        del self._pending[: len(piece)]
        self._output_bytes += len(piece)
        return bytes(piece)

    def _start_of_overlong(self) -> None:
        self._inside = self.started = True
        self.events += 1

    def _end_of_overlong(self, piece: bytes) -> bytes:
        self._inside = False
        self._output_bytes += len(piece)
        return piece

    def _taken(self, event: bytes) -> bytes:
        """Note what one whole event tells; returns it, or nothing where it is dropped."""
        if len(event) > self._longest:
            self._start_of_overlong()
            return self._end_of_overlong(event)
        name, data = _data_of(event)
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
            self._silent += 1
            self.events += 1
        else:
            self._count_output(event, 1)
        return event

    def _learn(self, chunk: _Chunk) -> None:
        choices = _decoded(_choices, chunk.choices) or []
        self.finished = self.finished or any(bytes(choice.finish_reason) not in _UNFINISHED for choice in choices)
        groq = _decoded(_groq, chunk.x_groq) or _Groq()
        counts = _decoded(_counts, chunk.usage) or _decoded(_counts, groq.usage)
        if counts is not None:
            self.usage = Usage(counts.prompt_tokens, counts.completion_tokens, "upstream")

    def _count_output(self, data: bytes, events: int) -> None:
        self.events += events
        self._output_bytes += len(data)
        if len(self._sample) < SAMPLE:
            self._sample += data[: SAMPLE - len(self._sample)]


def _plain_events(data: bytes) -> int:
    """How many events, where each is a line with an object; else 0."""
    if not data.startswith(b"data: {"):
        return 0
    if data.find(b"\n") == len(data) - 2:
        return 1
    events = data.count(b"\n\ndata: {") + 1
    return events if data.count(b"\n") == 2 * events else 0


def _borders(data: bytes | bytearray, start: int = 0) -> re.Pattern[bytes]:
    return _LINE_FEEDS if data.find(b"\r", start) < 0 else _BORDER


def _whole_events(data: bytes) -> Iterator[bytes]:
    start = 0
    for border in _borders(data).finditer(data):
        yield data[start : border.end()]
        start = border.end()


def _data_of(event: bytes) -> tuple[bytes, bytes]:
    """The name and the data of an event, its lines joined. A byte order mark may open a stream."""
    name, data = b"", []
    for line in event.removeprefix(BOM_UTF8).splitlines():
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value.strip()
    return name, b"\n".join(data).strip()


def _texts_of(event: bytes) -> list[bytes]:
    chunk = _decoded(_chunk, _data_of(event)[1]) or _Chunk()
    return [text.encode() for text in _texts_in(_decoded(_anything, chunk.choices))]


def _texts_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts_in(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            if name not in _NOT_TEXT:
                yield from _texts_in(item)


def _decoded(decoder: msgspec.json.Decoder[Value], raw: bytes | msgspec.Raw) -> Value | None:
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
