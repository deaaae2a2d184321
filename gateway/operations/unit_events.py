"""Streams of pictures and of sound: events whose last one has the whole picture, or says that the sound has ended."""

from __future__ import annotations

import msgspec

from gateway.chat.usage import read_counts
from gateway.operations.typed_events import FINISHED, NULL, TypedEvent, TypedEvents


class _Event(TypedEvent):
    usage: msgspec.Raw = NULL


class UnitEvents(TypedEvents):
    """The event stream of one answer that is billed by `unit`. A stream that breaks off costs what was ordered.

    It ends with as many last events as pictures were ordered, or with one.
    """

    __slots__ = ("_left", "_pictures")
    said = msgspec.json.Decoder(_Event)
    ends = frozenset(
        ("image_generation.completed", "image_edit.completed", "speech.audio.done", "transcript.text.done")
    )

    def __init__(self, pictures: int = 0) -> None:
        super().__init__()
        self._pictures = pictures
        self._left = pictures or 1

    def _note(self, said: _Event, data: bytes) -> None:
        if said.type not in self.ends:
            return
        self._left -= 1
        self.done = self.concluded = self._left <= 0
        if (counts := read_counts(said.usage)) is not None:
            self.usage.add(counts, final=self.done)
        if self.done:
            self._finished_choices = FINISHED
            self.usage.units = self._pictures or None
