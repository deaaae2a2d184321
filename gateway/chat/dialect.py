"""Dialects: translations for upstreams whose API is not OpenAI's chat completions. Sans-I/O.

A dialect has three parts. It writes the request in the upstream's terms; it reads the events of the answer, each as an
`AnswerDelta` in the terms of chat completions; and it reads errors. It may have a framing of its own. The gateway does all else
as for any upstream: connections, timeouts, failover, the stream to the caller, usage, the charge.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import msgspec

from gateway.base.errors import Refused
from gateway.chat.sse import boundary_pattern, parse_event


class ChatRequest(msgspec.Struct, frozen=True):
    """A checked chat completion. `fields`: the top-level fields, each as the caller wrote it, in JSON.

    `model`: the upstream's name of the model. `max_tokens`: the most that the answer may have, which must be sent: the request is
    priced by it. The answer is always streamed, and has one choice.
    """

    model: str
    max_tokens: int
    fields: Mapping[str, msgspec.Raw]

    def get(self, name: str, kind: Any = Any) -> Any:
        """Return the value of a field as a `kind`; None where it is missing or null. Raises `Refused` (400) for another type."""
        raw = self.fields.get(name)
        if raw is None:
            return None
        try:
            return msgspec.json.decode(raw, type=kind | None)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise unsupported(name, f"'{name}' cannot be sent to the upstream of this model: {error}.") from None


class AnswerDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What one event of an upstream adds to the answer. Everything may be left out; `id` and `model` are then the request's.

    `message`: what is added to the message, as in `choices[0].delta`. `finish_reason`: why the answer ends, in OpenAI's words.
    `usage`: all of the usage that is known by now, in OpenAI's shape; `reported`: the same as the upstream wrote it. `error`: its
    `message`, `type` and `code`; `status`: the status that a response with this error would have. `done`: nothing follows.
    """

    id: str = ""
    model: str = ""
    message: Mapping[str, Any] = {}
    finish_reason: str = ""
    usage: Mapping[str, Any] = {}
    reported: bytes = b""
    error: Mapping[str, str] = {}
    status: int = 0
    done: bool = False


class AnswerReader:
    """Reads the events of one answer."""

    def read(self, name: str, data: bytes) -> Iterable[AnswerDelta]:
        """Return what an event says, by its name and its data; nothing for one that means nothing here.

        An exception, such as that of a decoder, ends the answer with an error.
        """
        raise NotImplementedError


class Dialect:
    """How one kind of upstream is asked and understood. It is made without arguments, and shared by all requests.

    `name` is what a channel has under `dialect:`. `path` is appended to the channel's `base_url`. `auth`: where the credential
    goes, as in a channel. `headers`: sent with each request, unless the channel has its own of the same name. `streams`: the types
    of a response that is a stream, of which the first is asked for.
    """

    name: ClassVar[str]
    path: ClassVar[str]
    auth: ClassVar[str] = "bearer"
    headers: ClassVar[Mapping[str, str]] = {}
    streams: ClassVar[tuple[str, ...]] = ("text/event-stream",)

    def frame(self, data: bytearray, searched: int) -> tuple[int, str, bytes] | None:
        """Return the size, the name and the data of the first event in `data`; None while it is not complete.

        Without a method of its own, a dialect reads server-sent events. An event without data is not read. `searched`: how many
        bytes of `data` the call before has seen, of an event that was not complete.
        """
        start = max(0, searched - 3)
        if (end := boundary_pattern(data, start).search(data, start)) is None:
            return None
        name, text = parse_event(bytes(data[: end.end()]))
        return end.end(), name.decode("ascii", "replace"), text

    def request(self, chat: ChatRequest) -> bytes:
        """Return the body to send, in JSON. Raise `Refused` (400) for what the upstream cannot do: another channel is tried."""
        raise NotImplementedError

    def reader(self) -> AnswerReader:
        """Return a reader for one answer."""
        raise NotImplementedError

    def error(self, status: int, body: bytes) -> tuple[int, bytes]:
        """Return the status and the body that an upstream with OpenAI's API would have answered with."""
        return status, body


class LinesDialect(Dialect):
    """A dialect whose upstream streams one JSON value a line (NDJSON, JSON Lines). The events have no names."""

    streams: ClassVar[tuple[str, ...]] = ("application/x-ndjson", "application/jsonl", "application/stream+json")

    def frame(self, data: bytearray, searched: int) -> tuple[int, str, bytes] | None:
        """Return the size, the name and the data of the first line."""
        end = data.find(b"\n", searched)
        return None if end < 0 else (end + 1, "", bytes(data[:end]).strip())


def unsupported(param: str, message: str) -> Refused:
    """Return the error about a field that an upstream of another dialect cannot be sent."""
    return Refused(400, "invalid_request", message, param=param)
