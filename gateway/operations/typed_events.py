"""Streams whose events have a type, in their data and mostly as their name, too. Each is read by itself, and all are relayed."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Final, TypeVar

import msgspec

from gateway.chat.events import EventStream
from gateway.chat.sse import LongEvent, parse_event

FINISHED: Final = frozenset((b"0",))
NULL: Final = msgspec.Raw(b"null")
Value = TypeVar("Value")

_text = msgspec.json.Decoder(str)


class TypedEvent(msgspec.Struct):
    """What an event says."""

    type: str = ""
    error: msgspec.Raw = NULL


class TypedEvents(EventStream):
    """The event stream of one answer. `said`: decodes what an event says. `ends`: types of events that nothing follows; `failures`:
    of those that are errors.
    """

    __slots__ = ()
    singly: ClassVar[bool] = True
    said: ClassVar[msgspec.json.Decoder[Any]]
    ends: ClassVar[frozenset[str]]
    failures: ClassVar[frozenset[str]] = frozenset(("error",))

    def __init__(self, *, drop_usage: bool = False, **options: Any) -> None:
        super().__init__(drop_usage=drop_usage, **options)

    @abstractmethod
    def _note(self, said: Any, data: bytes) -> None:
        """Note texts, usage and the end."""

    def _read(self, name: bytes, data: bytes) -> Any:
        """Return what an event says. Some servers leave its name out, so that its type counts; an error may have neither."""
        try:
            said = self.said.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            said = self.said.type()
        if not said.type and (name == b"error" or said.error != NULL):
            said.type = "error"
        return said

    def _begins(self, said: Any) -> bool:
        """Return whether the answer has begun with an event."""
        return True

    def _raises(self, name: bytes) -> bool:
        """Return whether client libraries raise on an error."""
        return True

    def _take_event(self, event: bytes) -> bytes:
        if len(event) > self._max_event_bytes:
            self._begin_overlong()
            return self._end_overlong(event)
        name, data = parse_event(event)
        if self.error is not None:
            return b""
        if not data and name != b"error":
            return event
        said = self._read(name, data)
        self._note(said, data)
        if said.type in self.failures:
            self.error, self.first_error = data, not self.started
            self.error_relayed, self.concluded = self._raises(name), True
        self.started = self.started or self._begins(said)
        if self.error is not None and not self.error_relayed:
            return b""
        self.events += 1
        return event

    def _note_unfinished(self, rest: bytes) -> None:
        self.done = self.done or self._read(*parse_event(rest)).type in self.ends

    def _read_overlong(self, event: LongEvent) -> None:
        name, data = parse_event(event.kept)
        said = self._read(name, data)
        # An event that ends an answer repeats what was counted.
        self.output.add_unread((0 if said.type in self.ends else event.text_bytes) - event.size)
        if said.type not in self.failures:
            self._note(said, data)


def part(decoder: msgspec.json.Decoder[Value], raw: msgspec.Raw) -> Value | None:
    """Return a part of an event; None for one that is absent, null, or of another form."""
    try:
        return None if raw == NULL else decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def text_size(raw: msgspec.Raw) -> int:
    """Return the bytes of a text; 0 for what is none."""
    return len((part(_text, raw) or "").encode("utf-8", "surrogatepass"))
