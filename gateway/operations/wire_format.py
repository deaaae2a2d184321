"""The wire format of an operation: its path, its body, its answer, its errors. Sans-I/O.

What is the same for all operations (the chain, holds, failover, the relay, records) knows none of them by name: it asks the
operation's wire format.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Collection, Generator, Mapping, Sequence
from typing import Any, ClassVar, Final, Self, TypeAlias

import msgspec

from gateway.base.errors import Refused, render
from gateway.chat import upstream_errors
from gateway.chat.answers import Response, strict_json
from gateway.chat.events import EventStream
from gateway.chat.request import Body, BodyRules
from gateway.chat.sse import id_text
from gateway.chat.usage import ReportedUsage, read_counts
from gateway.config.channel import BEARER, Channel, CredentialPlace
from gateway.operations.typed_events import NULL

JSON: Final = "application/json"
DIGITS: Final = b"0123456789"
LIST: Final = b"["

_top = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Errors:
    """How errors are told to callers: by default in the shape of OpenAI's API."""

    def body(self, error: Refused, request_id: str) -> bytes:
        """Return the JSON body of an error."""
        return render(error, request_id)

    def event(self, error: Refused, request_id: str, events: EventStream | None = None) -> bytes:
        """Return what ends a stream with an error, after `events`."""
        return b"data: %b\n\n" % self.body(error, request_id)


class CheckedBody(Body, frozen=True):
    """A checked body of an operation beside chat completions. Its `n` is 0 where nothing is generated.

    `ceiling`: the field with the most output tokens, which is always sent; empty where there is none. `least`: what it is at least.
    `options`: usage is asked for by `stream_options`. `refers`: the ids that it names of what an upstream keeps, of which the first
    is that of an answer that it `goes_on` from. `kept_by`: the channel that keeps them, and the fingerprint of its credential.
    `keeps`: the upstream is to keep the answer. `truncates`: it may leave out a part of the conversation.
    `media`: the type of the body that is sent, where it has a boundary.
    """

    ceiling: str = ""
    least: int = 1
    options: bool = False
    refers: tuple[str, ...] = ()
    goes_on: bool = False
    kept_by: tuple[str, str] | None = None
    keeps: bool = False
    truncates: bool = False
    media: str = ""

    def _settle(
        self, top: dict[str, object], ceiling_field: str, most: int | None, ask_usage: bool, stream: bool
    ) -> None:
        if self.ceiling and most is not None:
            top[self.ceiling] = max(most, self.least)
        if "stream" in top or (self.stream and "stream_format" not in top):  # speech has the one or the other
            top["stream"] = self.stream
        if self.options:
            self._add_options(top, ask_usage=ask_usage and self.stream)


class JsonAnswer(Response, frozen=True):
    """An answer in JSON. `top`: its top-level fields. Nothing else of it is decoded, since it may be large.

    One without `top` is no JSON: a sound or a text of which nothing is read.
    """

    top: Mapping[str, msgspec.Raw] = {}

    @classmethod
    def of(cls, text: bytes, result: str, begins: bytes = LIST) -> Self | None:
        """Return the answer, whose field `result` begins so; None for JSON that is none. Raises `ValueError` for no JSON."""
        facts = text.removeprefix(BOM_UTF8)
        try:
            top = _top.decode(facts)
        except msgspec.ValidationError:
            return None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            facts = strict_json(facts)
            value = upstream_errors.decode(facts)
            top = _top.decode(facts) if isinstance(value, dict) else {}
        if result in top and bytes(memoryview(top[result])[:1]) in begins:
            return cls(text, facts, top=top)
        return cls(text, facts, error=True) if upstream_errors.is_error(upstream_errors.decode(facts)) else None

    @property
    def usage(self) -> ReportedUsage:
        """The usage that the answer reports."""
        reported = ReportedUsage()
        if (counts := read_counts(self.top.get("usage", NULL))) is not None:
            reported.add(counts, final=True)
        return reported

    @property
    def completion_id(self) -> str:
        """The id that the upstream gave the answer; empty where it has none."""
        return id_text(bytes(self.top.get("id", b"")))

    def estimate_output(self) -> int:
        """Return 0: nothing is generated that is billed by tokens."""
        return 0

    def text_bytes(self, name: str, texts: Collection[str]) -> int:
        """Return the bytes of the strings of these names within a field."""
        return _text_bytes(upstream_errors.decode(bytes(self.top.get(name, b""))), texts)


def _text_bytes(value: Any, names: Collection[str]) -> int:
    if isinstance(value, list):
        return sum(_text_bytes(each, names) for each in value)
    if not isinstance(value, dict):
        return 0
    size = sum(len(text.encode("utf-8", "replace")) for name in names if isinstance(text := value.get(name), str))
    return size + sum(_text_bytes(each, names) for each in value.values())


Reads: TypeAlias = tuple[type[JsonAnswer], str, bytes]
"""The type of an answer, the field that it has, and how that begins."""


class TokenCount(JsonAnswer, frozen=True):
    """The answer to a question for the tokens of a prompt. It costs nothing."""

    @property
    def usage(self) -> ReportedUsage:
        """No usage: nothing was generated or billed."""
        return ReportedUsage(prompt_final=True)


class WireFormat:
    """How callers and upstreams write one operation. One instance serves all requests.

    `path` follows the base address of the gateway and those of upstreams. `answer`: the name of an answer that is not a stream,
    for errors. `auth`: where upstreams take the credential, unless the channel says so. `id_header`: another header with the
    request id; empty for none. `generates`: answers have texts of a model. `free`: nothing is billed. `gathers`: an answer can be
    gathered from a stream, and translated from another dialect. `rewrites`: plugins may change the texts of answers. `unit`: what
    is billed in place of tokens. `accepts`: the type of bodies. `accept`: the types of answers that are no stream, and `media` how
    these begin. `keeps`: a request may name what an upstream keeps. `method` and `query`: of requests to upstreams. `tried`: the
    fields of a small request. `reads`: how an answer is read that is no stream.
    """

    path: str
    answer: ClassVar[str]
    tried: ClassVar[Mapping[str, object]]
    reads: ClassVar[Reads]
    auth: ClassVar[CredentialPlace] = BEARER
    id_header: ClassVar[str] = ""
    generates: ClassVar[bool] = True
    free: ClassVar[bool] = False
    gathers: ClassVar[bool] = False
    rewrites: ClassVar[bool] = False
    keeps: ClassVar[bool] = False
    unit: ClassVar[str] = ""
    accepts: ClassVar[str] = JSON
    accept: ClassVar[str] = JSON
    media: ClassVar[tuple[str, ...]] = (JSON,)
    method: str = "POST"
    query: str = ""

    def sample(self, model: str, ceiling_field: str) -> dict[str, object]:
        """Return a small request by which a channel is tried."""
        return {"model": model, **self.tried}

    def check(self, raw: bytes | bytearray, rules: BodyRules) -> Generator[None, None, Body]:
        """Return the checked body, with a pause after each part that may take more than a millisecond. Raises `Refused`."""
        raise NotImplementedError

    def check_texts(self, raw: bytes | bytearray, rules: BodyRules) -> Body | None:
        """Return the checked body, the same as by `check`, where it can be checked in one pass; None for any other."""
        return None

    def events(self, body: Body, channel: Channel, *, gathered: bool, watched: bool) -> EventStream:
        """Return the parser of an answer's events. `watched`: plugins may withdraw events."""
        raise NotImplementedError

    def read(self, text: bytes) -> Response | None:
        """Return an answer that is not a stream; None for JSON that is none. Raises `ValueError` for what is no JSON."""
        kind, name, begins = self.reads
        return kind.of(text, name, begins)

    def item_ids(self, answer: EventStream | Response) -> Sequence[str]:
        """Return the ids of the items of an answer that may be named later."""
        return ()

    def lines(self, headers: Mapping[str, str], channel: Channel) -> str:
        """Return the lines of the head that an upstream gets of the caller's headers, each with its line end."""
        return ""
