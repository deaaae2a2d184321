"""The texts of an answer, piece by piece: what each event adds to which text of which choice. Sans-I/O.

It reads what is about to be written to a caller: whole events, and pieces of one that is too long to wait for. Of that event, and
of one that is no JSON, nothing is read, and a delta says so. What is kept from one chunk to the next is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import msgspec

from gateway.chat.lenient_json import decode, joined_halves
from gateway.chat.sse import boundary_pattern, parse_event, whole_events
from gateway.chat.texts import Kind, texts

Key = tuple[int, str, int]

MOST_HALVES: Final = 256
END: Final = b"."
"""Follows the data: an event that ends with a carriage return has ended once the next byte is no line feed."""


class Delta(msgspec.Struct, frozen=True):
    """What one event adds to one text. `key` says to which: texts of the same key go on where they ended.

    `kind`: `content`, `refusal`, `reasoning`, `tool_name`, `tool_call` (the arguments, or the input of a custom tool), `transcript`
    (of a sound), `other` (a text in any other field, such as `reasoning_details`), or `unread`: an event of more than a megabyte,
    which is passed on in pieces, or one that is no JSON. `choice`: the number of the answer. `call`: of the tool call. `start`:
    where in the chunk its event begins, for `exchange.stop(error, keep=delta.start)`. `field`: the field's name, with those around
    it, as in `reasoning_details.text`: several fields may be of one kind, and some clients read one of them alone.
    """

    choice: int
    kind: Kind
    text: str
    start: int
    call: int = 0
    field: str = ""

    @property
    def key(self) -> Key:
        """Return which text this is a piece of."""
        return self.choice, f"other {self.field}" if self.kind == "other" else self.kind, self.call


class DeltaReader:
    """Reads the chunks of one stream, each once, for all who ask."""

    value: Final = None
    """There is no answer in one piece."""

    __slots__ = ("_chunk", "_deltas", "_halves", "_in_overlong")

    def __init__(self) -> None:
        self._chunk = b""
        self._deltas: tuple[Delta, ...] = ()
        self._halves: dict[tuple[int, str, int], str] = {}
        """The first halves of characters whose second halves are in later events."""
        self._in_overlong = False

    def read(self, chunk: bytes | None) -> tuple[Delta, ...]:
        """Return the deltas of a chunk, in their order. The same chunk may be asked for again, until the next one."""
        if chunk is None:
            return ()
        if chunk is not self._chunk:
            self._chunk, self._deltas = chunk, tuple(self._read(chunk))
        return self._deltas

    def read_whole(self, value: Any) -> Iterator[Delta]:
        """Yield the texts of an answer in JSON. Raises `RecursionError`."""
        if value is None:
            yield Delta(0, "unread", "", 0)
        else:
            yield from self._read_value(value, 0, whole=True)

    def _read(self, chunk: bytes) -> Iterator[Delta]:
        data, at = chunk + END, 0
        if self._in_overlong:
            boundary = boundary_pattern(data).search(data)
            if boundary is None:
                return
            self._in_overlong, at = False, boundary.end()
        for event in whole_events(data[at:]):
            text = parse_event(event)[1]
            if text and text != b"[DONE]":
                yield from self._read_event(text, at)
            at += len(event)
        if at < len(chunk):
            self._in_overlong = True
            yield Delta(0, "unread", "", at)

    def _read_event(self, data: bytes, start: int) -> Iterator[Delta]:
        try:
            yield from self._read_value(decode(data), start)
        except (ValueError, RecursionError):
            yield Delta(0, "unread", "", start)

    def _read_value(self, value: Any, start: int, *, whole: bool = False) -> Iterator[Delta]:
        for choice, kind, call, field, text in texts(value, whole=whole):
            if joined := self._whole((choice, field, call), text):
                yield Delta(choice, kind, joined, start, call, field)

    def _whole(self, place: tuple[int, str, int], text: str) -> str:
        """Return a text with the half of a character that came before it, and without one that it ends with."""
        if not self._halves and text.isascii():
            return text
        text = self._halves.pop(place, "") + text
        if text and "\ud800" <= text[-1] <= "\udbff" and len(self._halves) < MOST_HALVES:
            self._halves[place], text = text[-1], text[:-1]
        return joined_halves(text)


class WholeAnswer:
    """An answer in one piece, which is JSON unless a plugin made it. It is decoded when it is first needed."""

    __slots__ = ("_deltas", "_is_read", "_text", "_value")

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._value: Any = None
        self._is_read = False
        self._deltas: tuple[Delta, ...] | None = None

    @property
    def value(self) -> Any:
        """What was decoded; None for what is no JSON."""
        if not self._is_read:
            self._is_read = True
            with suppress(ValueError, RecursionError):
                self._value = decode(self._text)
        return self._value

    def read(self, chunk: bytes | None = None) -> tuple[Delta, ...]:
        """Return each text of the answer. There are no chunks."""
        if self._deltas is None:
            try:
                self._deltas = tuple(DeltaReader().read_whole(self.value))
            except RecursionError:
                self._deltas = (Delta(0, "unread", "", 0),)
        return self._deltas
