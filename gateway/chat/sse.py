"""Server-sent events of a chat completion: where they end, the name and data of one, and what its chunk says. Sans-I/O.

A chunk says its error, its usage, and which choices it finishes.

A plain event has a text of the model and nothing else that the gateway reads: it is a single `data:` line with a JSON object that
has one `"choices":[`, followed by an object, and none of `FIELDS` but as null, and an empty line. Many events of one read are
mostly plain, and are taken together.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Iterator
from typing import Final, TypeVar

import msgspec

from gateway.base import search
from gateway.chat import upstream_errors
from gateway.chat.usage import Counts, read_counts

try:
    import cython
except ImportError:  # nothing is compiled here
    from gateway.base import compiled as cython

EVENT_BOUNDARY: Final = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r(?=[^\n]))")
LINE_FEED: Final = 0x0A
CARRIAGE_RETURN: Final = 0x0D
QUOTE: Final = 0x22

_LINE_FEED_BOUNDARY: Final = re.compile(rb"\n\n")
"""The event boundary in data without carriage returns: a search for a literal is many times faster."""

IGNORED_EVENTS: Final = re.compile(rb"(?:(?::[^\r\n]{0,200})?(?:\n\n|\r\n\r\n)){1,1024}")
"""Events of one short comment, or of blank lines alone. The limits bound the time of a match."""

FIELDS: Final = (b'"finish_reason"', b'"usage"', b'"error"')
CHOICES: Final = b'"choices":['
FIRST_CHOICE: Final = CHOICES + b"{"
"""An event that has this and none of `FIELDS` but as null is text alone. Others are parsed: they may have no choice."""

FIRST_ID: Final = re.compile(rb'data: ?\{"id":"([!#-\[\]-~]{1,128})"')
"""A completion's id where most upstreams have it, at the beginning of an event."""
MAX_END: Final = 142
"""Where one of 128 bytes ends there."""
_ID: Final = re.compile(rb'"([!#-\[\]-~]{1,128})"')
_NULL: Final = msgspec.Raw(b"null")
_NO_FINISH_REASON: Final = (b"null", b'""')

LONG_STRING: Final = 1024
"""Bytes of a string that is kept of a long event."""
MAX_KEPT: Final = 64 * 1024
"""Bytes of a long event without its long strings, beyond which it is not read."""
_REST_OF_STRING: Final = re.compile(rb'(?:[^"\\]+|\\.)+', re.DOTALL)
_BASE64: Final = re.compile(rb"(?:data:[^,]{0,100},)?[A-Za-z0-9+/_=\\-]*")
_LAST_KEY: Final = re.compile(rb'"([^"\\]*)"\s*:\s*\Z')
_TEXTS: Final = (b"content", b"text", b"reasoning", b"reasoning_content", b"arguments", b"refusal")
"""Fields whose strings are text also where they look like base64, but for an address that begins with `data:`."""

Value = TypeVar("Value")


def boundary_pattern(data: bytes | bytearray, start: int = 0) -> re.Pattern[bytes]:
    """Return the pattern that finds the ends of events from `start` on."""
    return _LINE_FEED_BOUNDARY if data.find(b"\r", start) < 0 else EVENT_BOUNDARY


def field_at(data: bytes, start: int, end: int) -> int:
    """Return where the first of `FIELDS` that is not null begins in `data[start:end]`, -1 where there is none."""
    first = -1
    for name in FIELDS:
        at = search.find(data, name, start, end)
        while at >= 0 and data.startswith(b":null", at + len(name)):
            at = search.find(data, name, at + len(name), end)
        if at >= 0 and not 0 <= first <= at:
            first = at
    return first


def end_of_event(data: bytes, start: int) -> int:
    """Return where the event that begins at `start` ends, -1 where it is not whole."""
    end = search.find(data, b"\n\n", start, len(data))
    if search.find(data, b"\r", start, end if end >= 0 else len(data)) < 0:  # nearly always
        return end + 2 if end >= 0 else -1
    boundary = EVENT_BOUNDARY.search(data, start)
    return boundary.end() if boundary else -1


def whole_events(data: bytes) -> Iterator[bytes]:
    """Yield each event up to the last event boundary."""
    start = 0
    if data.find(b"\r") < 0:  # nearly always
        while (end := data.find(b"\n\n", start) + 2) > 1:
            yield data[start:end]
            start = end
        return
    for boundary in EVENT_BOUNDARY.finditer(data):
        yield data[start : boundary.end()]
        start = boundary.end()


def parse_event(event: bytes) -> tuple[bytes, bytes]:
    """Return the name and the data of an event, its data lines joined. A stream may begin with a byte order mark.

    Old servers of llama.cpp send an error as a field `error`. It is returned as the data of an event with that name.
    """
    end = len(event) - 2
    if (
        event.startswith(b"data:")
        and search.find(event, b"\n", 0, len(event)) == end
        and event.endswith(b"\n")
        and search.find(event, b"\r", 0, len(event)) < 0
    ):
        begin, text = 6 if event[5] == 0x20 else 5, event  # nearly always
        return b"", text[begin:end].strip()
    name, data = b"", []
    for line in event.removeprefix(BOM_UTF8).splitlines():
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value.strip()
        elif field == b"error":
            name = field
            data.append(value)
    return name, b"\n".join(data).strip()


class _Groq(msgspec.Struct):
    usage: msgspec.Raw = _NULL


class _Choice(msgspec.Struct):
    index: msgspec.Raw = _NULL
    finish_reason: msgspec.Raw = _NULL
    usage: msgspec.Raw = _NULL


class _Chunk(msgspec.Struct):
    id: msgspec.Raw = _NULL
    choices: msgspec.Raw = _NULL
    delta: msgspec.Raw = _NULL
    usage: msgspec.Raw = _NULL
    error: msgspec.Raw = _NULL
    x_groq: msgspec.Raw = _NULL
    service_tier: msgspec.Raw = _NULL


class _Ordinary(_Chunk):
    """A chunk whose choices are a list or left out, which is read in one pass."""

    choices: list[_Choice] | None = None  # type: ignore[assignment]


_NO_CHUNK: Final = _Chunk()
_chunk = msgspec.json.Decoder(_Chunk)
_ordinary = msgspec.json.Decoder(_Ordinary)
_choices = msgspec.json.Decoder(list[_Choice])
_groq = msgspec.json.Decoder(_Groq)


class Chunk:
    """The facts of one event.

    `finished`: the indexes of the choices with a finish reason, as they are in JSON. An empty reason does not count: some
    upstreams send it with every chunk. `empty`: it is an object without a choice. `only_usage`: it is empty, and has usage.
    `error`: it is an error; `raises`: one in a shape that client libraries recognise. `id`: the completion's, in
    JSON. `service_tier`: the one that it names, empty for none.
    """

    __slots__ = ("counts", "empty", "error", "finished", "id", "only_usage", "raises", "service_tier")

    def __init__(
        self,
        finished: frozenset[bytes],
        counts: Counts | None,
        empty: bool = False,
        only_usage: bool = False,
        id: bytes | msgspec.Raw = b"null",  # noqa: A002
        service_tier: str = "",
        error: bool = False,
        raises: bool = False,
    ) -> None:
        self.finished = finished
        self.counts = counts
        self.empty = empty
        self.only_usage = only_usage
        self.id = id
        self.service_tier = service_tier
        self.error = error
        self.raises = raises


_NO_CHOICE: Final[frozenset[bytes]] = frozenset()
TEXT: Final = Chunk(_NO_CHOICE, None)
"""An event without any of this."""


_FIRST: Final = frozenset((b"0",))
"""What finishes with the event of an answer that has one choice."""


def _end_of_string(text: bytes, at: int) -> int:
    """Return where a string of printable ASCII without escapes ends, which begins before `at`; 0 for any other."""
    while 0x20 <= text[at] < 0x7F and text[at] != 0x22 and text[at] != 0x5C:
        at += 1
    return at + 1 if text[at] == 0x22 else 0


def _end_of_value(data: bytes, text: bytes, at: int) -> int:
    """Return where a short value ends: such a string, a whole number, null, or an object of these; 0 for any other."""
    if text[at] == 0x22:
        return _end_of_string(text, at + 1)
    if 0x31 <= text[at] <= 0x39:
        while 0x30 <= text[at] <= 0x39:
            at += 1
        return at
    if text[at] != 0x7B:
        return at + 1 if text[at] == 0x30 else at + 4 if data.startswith(b"null", at) else 0
    at += 1
    if text[at] == 0x7D:
        return at + 1
    while text[at] == 0x22:
        at = _end_of_string(text, at + 1)
        if at == 0 or text[at] != 0x3A or text[at + 1] == 0x7B:
            return 0
        at = _end_of_value(data, text, at + 1)
        if at == 0 or text[at] != 0x2C:
            return at + 1 if at and text[at] == 0x7D else 0
        at += 1
    return 0


def _counts_at(data: bytes, text: bytes, begin: int) -> Counts | None:
    """Return the counts of a usage object of three counts alone; None for any other."""
    prompt = completion = total = 0
    at = begin
    while text[at] == (0x7B if at == begin else 0x2C) and text[at + 1] == 0x22:
        start = at + 2
        at = _end_of_string(text, start)
        if at == 0 or not (text[at] == 0x3A and 0x31 <= text[at + 1] <= 0x39):
            return None
        count, size, at = 0, at - 1 - start, at + 1
        most = at + 12
        while 0x30 <= text[at] <= 0x39 and at < most:
            count = count * 10 + text[at] - 0x30
            at += 1
        if size == 13 and data.startswith(b"prompt_tokens", start):
            prompt = count
        elif size == 17 and data.startswith(b"completion_tokens", start):
            completion = count
        elif size == 12 and data.startswith(b"total_tokens", start):
            total = count
        else:
            return None
    if text[at] != 0x7D or not (prompt and completion and total):
        return None
    output = total - prompt
    return Counts(prompt, output if output > completion else completion, text=text[begin : at + 1])


def _choices_at(data: bytes, text: bytes, begin: int) -> int:
    """Return where a list ends of at most the first choice, as a negative number where it is not finished; 0 for any other."""
    at, indexed, finished = begin + 1, False, False
    while text[at] == (0x7B if at == begin + 1 else 0x2C) and text[at + 1] == 0x22:
        start = at + 2
        at = _end_of_string(text, start)
        size, value = at - 1 - start, at + 1
        if at == 0 or text[at] != 0x3A or (at := _end_of_value(data, text, value)) == 0:
            return 0
        if size == 5 and data.startswith(b"index", start) and text[value] == 0x30:
            indexed = True
        elif size == 5 and text[start] != 0x64:  # perhaps its `usage`
            return 0
        elif size == 13 and data.startswith(b"finish_reason", start):
            if text[value] != 0x22 and text[value] != 0x6E:
                return 0
            finished = text[value] == 0x22 and at > value + 2
    if at > begin + 1:
        at = at + 1 if indexed and text[at] == 0x7D else 0
    if at == 0 or text[at] != 0x5D:
        return 0
    return at + 1 if finished else -at - 1


def _read_at_once(data: bytes) -> Chunk | None:
    """Return the facts of the finish or the usage of an answer of one choice, as most upstreams write it; None for any other.

    It reads compact JSON of ASCII without escapes, and says the same of it as `read`.
    """
    at, text, id_at, id_end, finished, choices = 0, data, 0, 0, False, 0
    counts: Counts | None = None
    while text[at] == (0x2C if at else 0x7B) and text[at + 1] == 0x22:
        start = at + 2
        at = _end_of_string(text, start)
        if at == 0 or text[at] != 0x3A:
            return None
        size, begin = at - 1 - start, at + 1
        at = begin
        if size == 7 and data.startswith(b"choices", start):
            at = 0 if choices or text[at] != 0x5B else _choices_at(data, text, at)
            choices, finished, at = begin, at > 0, at if at > 0 else -at
        elif size == 5 and data.startswith(b"usage", start):
            counts = _counts_at(data, text, at)
            at = 0 if counts is None and text[at] != 0x6E else _end_of_value(data, text, at)
        elif (size == 5 and text[start] != 0x6D) or (size == 6 and text[start] == 0x78) or size == 12:
            return None  # perhaps `error` or `delta`, `x_groq`, `service_tier`
        else:
            at = _end_of_value(data, text, at)
            if size == 2 and data.startswith(b"id", start):
                id_at, id_end = begin, at
        if at == 0:
            return None
    if not (choices and (finished or counts is not None) and text[at] == 0x7D and at + 1 == len(data)):
        return None
    empty = text[choices + 1] == 0x5D
    name = text[id_at:id_end] if id_end else b"null"
    return Chunk(_FIRST if finished else _NO_CHOICE, counts, empty, empty, name)


def read(name: bytes, data: bytes) -> Chunk:
    """Return the facts of an event from its name and its data."""
    if cython.compiled and name != b"error" and (facts := _read_at_once(data)) is not None:
        return facts
    if name != b"error" and search.find(data, FIRST_CHOICE, 0, len(data)) >= 0 and field_at(data, 0, len(data)) < 0:
        return TEXT
    chunk: _Chunk
    if (ordinary := _decode(_ordinary, data)) is not None:
        chunk, choices, none = ordinary, ordinary.choices, not ordinary.choices
    else:
        decoded = _decode(_chunk, data)
        chunk = decoded or _NO_CHUNK
        choices = _decode(_choices, chunk.choices)
        none = decoded is not None and (choices == [] or chunk.choices == _NULL)
    if name == b"error" or chunk.error != _NULL or choices is None:
        value = upstream_errors.decode(data)
        if name == b"error" or upstream_errors.is_error(value):
            raises = upstream_errors.raises_in_clients(value)
            return Chunk(_NO_CHOICE, _counts(chunk, choices), error=True, raises=raises)
    counts = _counts(chunk, choices)
    empty = none and chunk.delta == _NULL
    finished = [
        bytes(each.index)
        for each in choices or ()
        if each.finish_reason is not _NULL and bytes(each.finish_reason) not in _NO_FINISH_REASON
    ]
    return Chunk(
        frozenset(finished) if finished else _NO_CHOICE,
        counts,
        empty,
        empty and (counts is not None or chunk.usage != _NULL),
        chunk.id,
        "" if chunk.service_tier is _NULL else id_text(bytes(chunk.service_tier)),
    )


def indexes(data: bytes) -> frozenset[bytes]:
    """Return the indexes of the choices of an event, as they are in JSON."""
    choices = _decode(_choices, (_decode(_chunk, data) or _Chunk()).choices)
    return frozenset(bytes(each.index) for each in choices or ())


class LongEvent:
    """An event that is passed on in pieces, read without its long strings, so that little of it is kept.

    In place of a long string of text, a short one is kept; in place of base64, such as a picture, an empty one.
    """

    __slots__ = ("_escape", "_in_string", "_start", "_string_bytes", "kept", "size", "text_bytes")

    def __init__(self) -> None:
        self.size = 0
        self.kept = b""
        self.text_bytes = 0
        """Bytes of the long strings of text."""
        self._in_string = False
        self._start = b""
        self._string_bytes = 0
        self._escape = b""
        """A backslash at the end of a piece."""

    @property
    def readable(self) -> bool:
        """Return whether all of the event but its long strings is kept."""
        return len(self.kept) <= MAX_KEPT

    def add(self, piece: bytes) -> None:
        """Take the next piece."""
        self.size += len(piece)
        piece, at = self._escape + piece, 0
        self._escape = b""
        while at < len(piece) and self.readable:
            if self._in_string:
                rest = _REST_OF_STRING.match(piece, at)
                end = rest.end() if rest else at
                self._start += piece[at : min(end, at + LONG_STRING + 1 - len(self._start))]
                self._string_bytes += end - at
                if end < len(piece) and piece[end] != QUOTE:
                    self._escape, end = piece[end:], len(piece)
                elif end < len(piece):
                    self._end_string()
                    end += 1
            else:
                end = piece.find(b'"', at) + 1
                self._in_string, self._start, self._string_bytes = end > 0, b"", 0
                end = end or len(piece)
                self.kept += piece[at : end - self._in_string]
            at = end

    def _end_string(self) -> None:
        self._in_string = False
        kept = self._start
        if len(kept) > LONG_STRING:
            key = _LAST_KEY.search(self.kept, max(0, len(self.kept) - LONG_STRING))
            named_text = key is not None and key[1] in _TEXTS and not kept.startswith(b"data:")
            is_text = named_text or _BASE64.fullmatch(kept) is None
            self.text_bytes += self._string_bytes if is_text else 0
            kept = b"." if is_text else b""
        self.kept += b'"%b"' % kept


def completion_id(events: bytes) -> str:
    """Return the id of the completion that some events are of; empty where the first with data has none, or an odd one."""
    text = events
    if cython.compiled and events.startswith(b'data: {"id":"') and 14 < (end := _end_of_string(text, 13)) <= MAX_END:
        found = text[13 : end - 1]
        if b" " not in found:
            return found.decode()
    if match := FIRST_ID.match(events):
        return match[1].decode()
    return id_text(_first_chunk(events).id)


def service_tier(events: bytes) -> str:
    """Return the service tier that the first of some events with data names; empty where it names none."""
    if search.find(events, b'"service_tier"', 0, len(events)) < 0:
        return ""
    return id_text(bytes(_first_chunk(events).service_tier))


def _first_chunk(events: bytes) -> _Chunk:
    """Return the first of some events with data."""
    data = next((data for event in whole_events(events) if (data := parse_event(event)[1])), b"")
    return _decode(_chunk, data) or _NO_CHUNK


def id_text(value: bytes | msgspec.Raw) -> str:
    """Return an id that is JSON as text; empty for one that is not 1 to 128 visible ASCII characters without escapes."""
    match = _ID.fullmatch(value)
    return match[1].decode() if match else ""


def _counts(chunk: _Chunk, choices: list[_Choice] | None) -> Counts | None:
    """Return the counts of the first usage object that has any: the chunk's, Groq's, or a choice's, as Moonshot sends it."""
    if chunk.usage is not _NULL and chunk.usage != _NULL and (counts := read_counts(chunk.usage)) is not None:
        return counts
    if chunk.x_groq is not _NULL and (groq := _decode(_groq, chunk.x_groq)) is not None:
        counts = read_counts(groq.usage)
        if counts is not None:
            return counts
    for choice in choices or ():
        if choice.usage is not _NULL and (counts := read_counts(choice.usage)) is not None:
            return counts
    return None


def _decode(decoder: msgspec.json.Decoder[Value], raw: bytes | msgspec.Raw) -> Value | None:
    if raw == _NULL:
        return None
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def plain_events(data: bytes) -> tuple[int, int]:
    """Return where the plain events end that the data begins with, and how many there are. Their line ends are alike."""
    boundary = b"\n\n" if data.find(b"\r") < 0 else b"\r\n\r\n"
    field = field_at(data, 0, len(data))
    *whole, _ = data[: field if field >= 0 else len(data)].split(boundary)
    end = events = 0
    for event in whole:
        plain = event.startswith(b"data: {") and event.count(CHOICES) == 1 and FIRST_CHOICE in event
        if not plain or LINE_FEED in event or CARRIAGE_RETURN in event:
            break
        end += len(event) + len(boundary)
        events += 1
    return end, events
