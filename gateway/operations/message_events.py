"""The events of a message, as Anthropic's API streams them: usage, texts, errors and the end. Sans-I/O."""

from __future__ import annotations

from itertools import islice
from typing import Any, Final

import msgspec

from gateway.chat.events import WatchedEvents
from gateway.chat.sse import id_text
from gateway.chat.usage import BYTES_PER_TOKEN, MAX_COUNT, MAX_KEPT, Counts, read_counts
from gateway.operations.typed_events import FINISHED, NULL, TypedEvent, TypedEvents, part, text_size

TEXTS: Final = ("text", "thinking", "partial_json")
MOST_FIELDS: Final = 64
"""Fields of usage objects that are kept from one event to the next."""
PROMPT: Final = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


class _Message(msgspec.Struct):
    id: msgspec.Raw = NULL
    usage: msgspec.Raw = NULL


class _Delta(msgspec.Struct):
    text: msgspec.Raw = NULL
    thinking: msgspec.Raw = NULL
    partial_json: msgspec.Raw = NULL
    stop_reason: msgspec.Raw = NULL


class _Event(TypedEvent):
    message: msgspec.Raw = NULL
    delta: msgspec.Raw = NULL
    usage: msgspec.Raw = NULL


_message = msgspec.json.Decoder(_Message)
_delta = msgspec.json.Decoder(_Delta)
_usage = msgspec.json.Decoder(dict[str, Any])


class MessageEvents(TypedEvents):
    """The event stream of one message."""

    __slots__ = ()
    said = msgspec.json.Decoder(_Event)
    ends = frozenset(("message_stop",))

    def _begins(self, said: _Event) -> bool:
        return said.type != "ping"

    def _raises(self, name: bytes) -> bool:
        return name == b"error"  # libraries know an error by the name of its event

    def _note(self, said: _Event, data: bytes) -> None:
        message, delta = part(_message, said.message), part(_delta, said.delta)
        if message is not None:
            self.completion_id = self.completion_id or id_text(bytes(message.id))
        if delta is not None:
            if size := sum(text_size(getattr(delta, name)) for name in TEXTS):
                self.output.add_unread(max(size, BYTES_PER_TOKEN))
            if delta.stop_reason != NULL:
                self._finished_choices = FINISHED
        if usage := part(_usage, said.usage if message is None else message.usage):
            self._note_usage(usage, begins=message is not None)
        self.done = self.done or said.type in self.ends or (data == b"[DONE]" and self.finished)
        self.concluded = self.done or (self.finished and self.usage.final)

    def _note_usage(self, usage: dict[str, Any], *, begins: bool) -> None:
        """Note a usage object. The output that is told at the beginning is not that of the answer."""
        told = {name: value for name, value in usage.items() if value is not None}
        if begins:
            told.pop("output_tokens", None)
        self.told = dict(islice({**self.told, **told}.items(), MOST_FIELDS))
        counts = message_counts(self.told)
        if counts is not None:
            self.usage.add(counts, final=self.finished)
            self.usage.prompt_final = counts.certain and counts.prompt > 0


class WatchedMessageEvents(WatchedEvents, MessageEvents):
    """The same, of which the last events may be withdrawn."""

    __slots__ = ()


def message_counts(fields: dict[str, Any]) -> Counts | None:
    """Return the counts of a usage object. Where it tells each round of the upstream's work, the larger of both counts.

    Tokens that were read from a cache or written to one are added to `input_tokens`, which does not contain them.
    """
    given = [fields.get(name) or 0 for name in PROMPT]
    valid = all(type(each) is int and each >= 0 for each in given)
    told = {name: value for name, value in fields.items() if name not in ("input_tokens", "iterations")}
    told["prompt_tokens"] = sum(each for each in given if type(each) is int and 0 < each <= MAX_COUNT)
    try:
        counts, text = read_counts(msgspec.json.encode(told)), msgspec.json.encode(fields)
    except (OverflowError, RecursionError):  # a number or a depth that no usage has
        return None
    if counts is None:
        return None
    rounds = fields.get("iterations")
    told_each = [each for each in rounds if isinstance(each, dict)] if isinstance(rounds, list) else []
    found = [each for one in told_each if (each := message_counts({**one, "iterations": None}))]
    return msgspec.structs.replace(
        counts,
        prompt=max(counts.prompt, sum(each.prompt for each in found)),
        completion=max(counts.completion, sum(each.completion for each in found)),
        certain=counts.certain and valid,
        text=text if len(text) <= MAX_KEPT else b"",
    )
