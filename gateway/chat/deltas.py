"""The texts of a stream, piece by piece: what each event adds to which text of which choice. Sans-I/O.

It reads what is about to be written to a caller: whole events, and pieces of one that is too long to wait for. Of that event
nothing is read, and a delta says so. What is kept from one chunk to the next is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal

import msgspec

from gateway.chat.lenient_json import decode, joined_halves
from gateway.chat.sse import boundary_pattern, parse_event, whole_events

Kind = Literal["content", "refusal", "reasoning", "tool_name", "tool_call", "transcript", "unread"]
Key = tuple[int, Kind, int]

MOST_HALVES: Final = 256
END: Final = b"."
"""Follows the data: an event that ends with a carriage return has ended once the next byte is no line feed."""

_TEXTS: Final[tuple[tuple[str, Kind], ...]] = (
    ("content", "content"),
    ("refusal", "refusal"),
    ("reasoning_content", "reasoning"),
    ("reasoning", "reasoning"),
    ("text", "content"),
)


class Delta(msgspec.Struct, frozen=True):
    """What one event adds to one text. `key` says to which: texts of the same key go on where they ended.

    `kind`: `content`, `refusal`, `reasoning`, `tool_name`, `tool_call` (the arguments), `transcript` (of a sound), or `unread`: an
    event of more than a megabyte, which is passed on in pieces. `choice`: the number of the answer. `call`: of the tool call.
    `start`: where in the chunk its event begins, for `exchange.stop(error, keep=delta.start)`.
    """

    choice: int
    kind: Kind
    text: str
    start: int
    call: int = 0

    @property
    def key(self) -> Key:
        """Return which text this is a piece of."""
        return self.choice, self.kind, self.call


class DeltaReader:
    """Reads the chunks of one stream, each once, for all who ask."""

    __slots__ = ("_chunk", "_deltas", "_halves", "_in_overlong")

    def __init__(self) -> None:
        self._chunk = b""
        self._deltas: tuple[Delta, ...] = ()
        self._halves: dict[Key, str] = {}
        """The first halves of characters whose second halves are in later events."""
        self._in_overlong = False

    def read(self, chunk: bytes) -> tuple[Delta, ...]:
        """Return the deltas of a chunk, in their order. The same chunk may be asked for again, until the next one."""
        if chunk is not self._chunk:
            self._chunk, self._deltas = chunk, tuple(self._read(chunk))
        return self._deltas

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
            event = decode(data)
        except (ValueError, RecursionError):
            return  # no client reads it
        choices = event.get("choices") if isinstance(event, dict) else None
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict):
                number = _number(choice.get("index"))
                for kind, call, text in _texts(choice):
                    if whole := self._whole((number, kind, call), text):
                        yield Delta(number, kind, whole, start, call)

    def _whole(self, key: Key, text: str) -> str:
        """Return a text with the half of a character that came before it, and without one that it ends with."""
        if not self._halves and text.isascii():
            return text
        text = self._halves.pop(key, "") + text
        if text and "\ud800" <= text[-1] <= "\udbff" and len(self._halves) < MOST_HALVES:
            self._halves[key], text = text[-1], text[:-1]
        return joined_halves(text)


def _texts(choice: dict[str, Any]) -> Iterator[tuple[Kind, int, str]]:
    """Yield the texts of a choice, each with its kind and the number of its tool call."""
    delta = next((choice[name] for name in ("delta", "message") if isinstance(choice.get(name), dict)), choice)
    for name, kind in _TEXTS:
        if name == "reasoning" and delta.get(name) == delta.get("reasoning_content"):
            continue  # the same text under two names
        for text in _strings(delta.get(name)):
            yield kind, 0, text
    if isinstance(audio := delta.get("audio"), dict):
        for text in _strings(audio.get("transcript")):
            yield "transcript", 0, text
    calls = delta.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, dict):
            yield from _function(call.get("function"), _number(call.get("index")))
    yield from _function(delta.get("function_call"), 0)


def _function(function: object, call: int) -> Iterator[tuple[Kind, int, str]]:
    if isinstance(function, dict):
        for text in _strings(function.get("name")):
            yield "tool_name", call, text
        for text in _strings(function.get("arguments")):
            yield "tool_call", call, text


def _strings(value: object) -> Iterator[str]:
    """Yield a string, or those of a list of parts."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for part in value:
            if isinstance(part, dict):
                for name in ("text", "thinking", "refusal"):
                    yield from _strings(part.get(name))
            else:
                yield from _strings(part)


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0
