"""The wire format of an operation: its path, its body, its answer, its errors. Sans-I/O.

What is the same for all operations (the chain, holds, failover, the relay, records) knows none of them by name: it asks the
operation's wire format.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import ClassVar

from gateway.base.errors import Refused, render
from gateway.chat import upstream_errors
from gateway.chat.answers import Response, strict_json
from gateway.chat.events import EventStream
from gateway.chat.request import Body, BodyPart, BodyRules, FixedFields
from gateway.chat.usage import ReportedUsage
from gateway.config.channel import BEARER, Channel, CredentialPlace


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
    """

    ceiling: str = ""
    least: int = 1

    def upstream(
        self,
        model: str,
        ceiling_field: str,
        ceiling: int | None,
        *,
        ask_usage: bool,
        stream: bool | None = None,
        fields: FixedFields | None = None,
    ) -> list[BodyPart]:
        """Return the body to send."""
        top: dict[str, object] = {**self._top, "model": model}
        if fields is not None:
            fields.apply(top)
        most = self.max_tokens or ceiling
        if self.ceiling and most is not None:
            top[self.ceiling] = max(most, self.least)
        if self.stream or "stream" in top:
            top["stream"] = self.stream
        return self._encoded(top)


class TokenCount(Response, frozen=True):
    """The answer to a question for the tokens of a prompt. It costs nothing."""

    @classmethod
    def read(cls, text: bytes) -> Response | None:
        """Return the answer; None for JSON that is none. Raises `ValueError` for what is no JSON."""
        facts = strict_json(text)
        value = upstream_errors.decode(facts)
        if isinstance(value, dict) and isinstance(value.get("input_tokens"), int):
            return cls(text, facts)
        return cls(text, facts, error=True) if upstream_errors.is_error(value) else None

    @property
    def usage(self) -> ReportedUsage:
        """No usage: nothing was generated or billed."""
        return ReportedUsage(prompt_final=True)

    @property
    def completion_id(self) -> str:
        """No id: nothing was generated."""
        return ""

    def estimate_output(self) -> int:
        """Return 0."""
        return 0


class WireFormat:
    """How callers and upstreams write one operation. One instance serves all requests.

    `path` follows the base address of the gateway and those of upstreams. `answer`: the name of an answer that is not a stream,
    for errors. `auth`: where upstreams take the credential, unless the channel says so. `id_header`: another header with the
    request id; empty for none. `generates`: answers have texts of a model. `free`: nothing is billed. `gathers`: an answer can be
    gathered from a stream, and translated from another dialect.
    """

    path: ClassVar[str]
    answer: ClassVar[str]
    auth: ClassVar[CredentialPlace] = BEARER
    id_header: ClassVar[str] = ""
    generates: ClassVar[bool] = True
    free: ClassVar[bool] = False
    gathers: ClassVar[bool] = False

    def sample(self, model: str, ceiling_field: str) -> dict[str, object]:
        """Return a small request by which a channel is tried."""
        raise NotImplementedError

    def check(self, raw: bytes | bytearray, rules: BodyRules) -> Generator[None, None, Body]:
        """Return the checked body, with a pause after each part that may take more than a millisecond. Raises `Refused`."""
        raise NotImplementedError

    def events(self, body: Body, channel: Channel, *, gathered: bool, watched: bool) -> EventStream:
        """Return the parser of an answer's events. `watched`: plugins may withdraw events."""
        raise NotImplementedError

    def read(self, text: bytes) -> Response | None:
        """Return an answer that is not a stream; None for JSON that is none. Raises `ValueError` for what is no JSON."""
        raise NotImplementedError

    def lines(self, headers: Mapping[str, str], channel: Channel) -> str:
        """Return the lines of the head that an upstream gets of the caller's headers, each with its line end."""
        return ""
