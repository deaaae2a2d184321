"""Chat completions: the operation that everything in `gateway.chat` is about."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import ClassVar, Final

from gateway.chat.answers import Response
from gateway.chat.events import EventStream, WatchedEvents
from gateway.chat.request import Body, BodyRules, check_in_steps, check_texts
from gateway.config.channel import Channel
from gateway.operations.wire_format import WireFormat

SAMPLE_TOKENS: Final = 16


class ChatFormat(WireFormat):
    """The wire format of `POST /v1/chat/completions`."""

    path = "/chat/completions"
    answer = "a chat completion"
    gathers = True
    rewrites = True
    tried: ClassVar[Mapping[str, object]] = {"messages": [{"role": "user", "content": "Say hello"}], "stream": True}

    def sample(self, model: str, ceiling_field: str) -> dict[str, object]:
        """Return a request for a short stream."""
        return {**super().sample(model, ceiling_field), ceiling_field: SAMPLE_TOKENS}

    def check(self, raw: bytes | bytearray, rules: BodyRules) -> Generator[None, None, Body]:
        """Return the checked body. Raises `Refused`."""
        return check_in_steps(raw, rules)

    def check_texts(self, raw: bytes | bytearray, rules: BodyRules) -> Body | None:
        """Return the checked body of texts alone."""
        return check_texts(raw, rules)

    def events(self, body: Body, channel: Channel, *, gathered: bool, watched: bool) -> EventStream:
        """Return the parser of an answer's events. Of a gathered one nothing is dropped, and no event is too long to wait for."""
        if gathered:
            return EventStream(drop_usage=False, choices=body.n, max_event_bytes=channel.max_response_bytes)
        drop_empty = channel.empty_choices == "drop"
        # The usage of another dialect is always a chunk of its own.
        drop_usage = not body.asked_usage and (channel.ask_usage or drop_empty or channel.dialect is not None)
        kind = WatchedEvents if watched else EventStream
        return kind(drop_usage=drop_usage, drop_empty=drop_empty, choices=body.n)

    def read(self, text: bytes) -> Response | None:
        """Return a completion. Raises `ValueError` for what is no JSON."""
        return Response.read(text)
