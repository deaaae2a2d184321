"""What one event of a chat completion says: its error, its usage, which choices it finishes. Sans-I/O."""

from __future__ import annotations

import re
from typing import Final, TypeVar

import msgspec

from gateway.chat import error_objects
from gateway.chat.counts import Counts, read_counts

FIELDS: Final = re.compile(rb'"(?:finish_reason|usage|error)"(?!:null)')
CHOICES: Final = b'"choices":['
"""An event that has this and no match of `FIELDS` is text alone. Others are parsed."""

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
    choices: msgspec.Raw = _NULL
    delta: msgspec.Raw = _NULL
    usage: msgspec.Raw = _NULL
    error: msgspec.Raw = _NULL
    x_groq: msgspec.Raw = _NULL


_NO_GROQ: Final = _Groq()
_chunk = msgspec.json.Decoder(_Chunk)
_choices = msgspec.json.Decoder(list[_Choice])
_groq = msgspec.json.Decoder(_Groq)


class Chunk(msgspec.Struct, frozen=True):
    """The facts of one event.

    `finished`: the indexes of the choices with a finish reason, as they are in JSON. An empty reason does not count: some
    upstreams send it with every chunk. `only_usage`: it has a usage object and no choice. `error`: it is an error;
    `raises`: one in a shape that client libraries recognise.
    """

    finished: frozenset[bytes] = frozenset()
    counts: Counts | None = None
    only_usage: bool = False
    error: bool = False
    raises: bool = False


TEXT: Final = Chunk()
"""An event without any of this."""


def read(name: bytes, data: bytes) -> Chunk:
    """Return the facts of an event from its name and its data."""
    if name != b"error" and data.find(CHOICES) >= 0 and FIELDS.search(data) is None:
        return TEXT
    chunk = _decode(_chunk, data) or _Chunk()
    choices = _decode(_choices, chunk.choices)
    if name == b"error" or chunk.error != _NULL or choices is None:
        value = error_objects.decode(data)
        if name == b"error" or error_objects.is_error(value):
            return Chunk(counts=_counts(chunk, choices), error=True, raises=error_objects.raises_in_clients(value))
    return Chunk(
        finished=frozenset(
            bytes(each.index) for each in choices or () if bytes(each.finish_reason) not in _NO_FINISH_REASON
        ),
        counts=_counts(chunk, choices),
        only_usage=chunk.usage != _NULL and chunk.delta == _NULL and (choices == [] or chunk.choices == _NULL),
    )


def indexes(data: bytes) -> frozenset[bytes]:
    """Return the indexes of the choices of an event, as they are in JSON."""
    choices = _decode(_choices, (_decode(_chunk, data) or _Chunk()).choices)
    return frozenset(bytes(each.index) for each in choices or ())


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
