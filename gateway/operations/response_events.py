"""The events of a response, as OpenAI's Responses API streams them: usage, texts, errors and the end. Sans-I/O.

The event that ends an answer repeats all of it, so that an estimate counts the deltas alone. There is no `[DONE]`.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from gateway.chat.events import WatchedEvents
from gateway.chat.sse import id_text
from gateway.chat.usage import BYTES_PER_TOKEN, MAX_COUNT, read_counts
from gateway.operations.typed_events import FINISHED, NULL, TypedEvent, TypedEvents, part, text_size

NO_TEXT: Final = ("response.audio.delta",)
"""Deltas in base64."""
ITEMS: Final = "items"
MOST_ITEMS: Final = 200
"""Items of one answer whose ids are kept."""


class _Response(msgspec.Struct):
    id: msgspec.Raw = NULL
    model: msgspec.Raw = NULL
    usage: msgspec.Raw = NULL
    service_tier: msgspec.Raw = NULL
    output: msgspec.Raw = NULL


class _WithId(msgspec.Struct):
    id: msgspec.Raw = NULL


class _Event(TypedEvent):
    response: msgspec.Raw = NULL
    item: msgspec.Raw = NULL
    delta: msgspec.Raw = NULL
    sequence_number: msgspec.Raw = NULL


_response = msgspec.json.Decoder(_Response)
_item = msgspec.json.Decoder(_WithId)
_items = msgspec.json.Decoder(list[_WithId])
_number = msgspec.json.Decoder(Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)])


class ResponseEvents(TypedEvents):
    """The event stream of one response."""

    __slots__ = ()
    said = msgspec.json.Decoder(_Event)
    ends = frozenset(f"response.{end}" for end in ("completed", "incomplete", "failed", "cancelled"))
    failures = frozenset(("error", "response.failed"))

    def _note(self, said: _Event, data: bytes) -> None:
        if (number := part(_number, said.sequence_number)) is not None:
            self.told["sequence_number"] = number
        if said.type.endswith(".delta") and said.type not in NO_TEXT and (size := text_size(said.delta)):
            self.output.add_unread(max(size, BYTES_PER_TOKEN))
        if said.type == "response.output_item.added" and (item := part(_item, said.item)) is not None:
            self.told[ITEMS] = (*self.told.get(ITEMS, ()), *ids_of([item]))[:MOST_ITEMS]
        response, ends = part(_response, said.response), said.type in self.ends
        if ends:
            self._finished_choices = FINISHED
            if response is not None and ITEMS not in self.told:
                self.told[ITEMS] = item_ids(response.output)
        if response is not None:
            self.completion_id = self.completion_id or id_text(bytes(response.id))
            self.told.setdefault("model", id_text(bytes(response.model)))
            self.usage.service_tier = id_text(bytes(response.service_tier)) or self.usage.service_tier
            if (counts := read_counts(response.usage)) is not None:
                self.usage.add(counts, final=ends)
        self.done = self.done or ends
        self.concluded = self.done


class WatchedResponseEvents(WatchedEvents, ResponseEvents):
    """The same, of which the last events may be withdrawn."""

    __slots__ = ()


def item_ids(output: msgspec.Raw) -> tuple[str, ...]:
    """Return the ids of the items of an answer."""
    return ids_of(part(_items, output) or [])


def ids_of(items: list[_WithId]) -> tuple[str, ...]:
    """Return the ids that these items have."""
    return tuple(filter(None, (id_text(bytes(item.id)) for item in items[:MOST_ITEMS])))
