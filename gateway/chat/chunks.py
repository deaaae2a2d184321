"""What one event of a chat completion says: its error, its usage, which choices it finishes. Sans-I/O."""

from __future__ import annotations

import re
from typing import Final, TypeVar

import msgspec

from gateway.chat import error_objects
from gateway.chat.counts import Counts, read_counts
from gateway.chat.sse import parse_event, whole_events

FIELDS: Final = re.compile(rb'"(?:finish_reason|usage|error)"(?!:null)')
CHOICES: Final = b'"choices":['
FIRST_CHOICE: Final = CHOICES + b"{"
"""An event that has this and no match of `FIELDS` is text alone. Others are parsed: they may have no choice."""

FIRST_ID: Final = re.compile(rb'data: ?\{"id":"([!#-\[\]-~]{1,128})"')
"""A completion's id where most upstreams have it, at the beginning of an event."""
_ID: Final = re.compile(rb'"([!#-\[\]-~]{1,128})"')
_NULL: Final = msgspec.Raw(b"null")
_NO_FINISH_REASON: Final = (b"null", b'""')

Value = TypeVar("Value")


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


_NO_GROQ: Final = _Groq()
_NO_CHUNK: Final = _Chunk()
_chunk = msgspec.json.Decoder(_Chunk)
_choices = msgspec.json.Decoder(list[_Choice])
_groq = msgspec.json.Decoder(_Groq)


class Chunk(msgspec.Struct, frozen=True):
    """The facts of one event.

    `finished`: the indexes of the choices with a finish reason, as they are in JSON. An empty reason does not count: some
    upstreams send it with every chunk. `empty`: it is an object without a choice. `only_usage`: it is empty, and has usage.
    `error`: it is an error; `raises`: one in a shape that client libraries recognise. `id`: the completion's, in JSON.
    """

    finished: frozenset[bytes] = frozenset()
    counts: Counts | None = None
    empty: bool = False
    only_usage: bool = False
    error: bool = False
    raises: bool = False
    id: bytes = b"null"


TEXT: Final = Chunk()
"""An event without any of this."""


def read(name: bytes, data: bytes) -> Chunk:
    """Return the facts of an event from its name and its data."""
    if name != b"error" and data.find(FIRST_CHOICE) >= 0 and FIELDS.search(data) is None:
        return TEXT
    decoded = _decode(_chunk, data)
    chunk = decoded or _NO_CHUNK
    choices = _decode(_choices, chunk.choices)
    if name == b"error" or chunk.error != _NULL or choices is None:
        value = error_objects.decode(data)
        if name == b"error" or error_objects.is_error(value):
            return Chunk(counts=_counts(chunk, choices), error=True, raises=error_objects.raises_in_clients(value))
    counts = _counts(chunk, choices)
    empty = decoded is not None and chunk.delta == _NULL and (choices == [] or chunk.choices == _NULL)
    return Chunk(
        finished=frozenset(
            bytes(each.index) for each in choices or () if bytes(each.finish_reason) not in _NO_FINISH_REASON
        ),
        counts=counts,
        empty=empty,
        only_usage=empty and (chunk.usage != _NULL or counts is not None),
        id=bytes(chunk.id),
    )


def indexes(data: bytes) -> frozenset[bytes]:
    """Return the indexes of the choices of an event, as they are in JSON."""
    choices = _decode(_choices, (_decode(_chunk, data) or _Chunk()).choices)
    return frozenset(bytes(each.index) for each in choices or ())


def completion_id(events: bytes) -> str:
    """Return the id of the completion that some events are of; empty where the first with data has none, or an odd one."""
    if match := FIRST_ID.match(events):
        return match[1].decode()
    data = next((data for event in whole_events(events) if (data := parse_event(event)[1])), b"")
    return id_text(bytes((_decode(_chunk, data) or _NO_CHUNK).id))


def id_text(value: bytes) -> str:
    """Return an id that is JSON as text; empty for one that is not 1 to 128 visible ASCII characters without escapes."""
    match = _ID.fullmatch(value)
    return match[1].decode() if match else ""


def _counts(chunk: _Chunk, choices: list[_Choice] | None) -> Counts | None:
    """Return the counts of the first usage object that has any: the chunk's, Groq's, or a choice's, as Moonshot sends it."""
    groq = _decode(_groq, chunk.x_groq) or _NO_GROQ
    for raw in (chunk.usage, groq.usage, *(choice.usage for choice in choices or ())):
        if raw != _NULL and (counts := read_counts(raw)) is not None:
            return counts
    return None


def _decode(decoder: msgspec.json.Decoder[Value], raw: bytes | msgspec.Raw) -> Value | None:
    if raw == _NULL:
        return None
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
