"""Embeddings: texts become vectors. Nothing is generated, so that a request costs its input alone.

The input is text or token ids, of which a body has at most as many as it has bytes. Pictures and other parts, of which nothing
bounds the tokens, are refused. An answer may be large: nothing is decoded of it but its usage.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Final

import msgspec

from gateway.base.errors import Refused
from gateway.chat import upstream_errors
from gateway.chat.answers import Response, strict_json
from gateway.chat.events import EventStream
from gateway.chat.fields import REMEDIES, UNPRICED, FieldNames, check_names
from gateway.chat.prompt import PromptBound
from gateway.chat.request import Body, BodyRules, check_model, invalid_field, parse_top
from gateway.chat.usage import BYTES_PER_TOKEN, ReportedUsage, read_counts
from gateway.config.channel import Channel
from gateway.operations.wire_format import CheckedBody, WireFormat

USE_INPUT: Final = "send the texts as 'input'"
FIELDS: Final = FieldNames(
    ("model", "input"),
    ("dimensions", "encoding_format", "user", "input_type", "truncate", "truncation", "truncate_dim", "task"),
    {**REMEDIES, **dict.fromkeys(("messages", "prompt", "documents"), USE_INPUT)},
    UNPRICED | {"service_tier"},
)
INPUT: Final = "a text, or a non-empty array of texts or of token ids"
TOKEN_IDS: Final = re.compile(rb"\[[\[\]0-9,\s]*[0-9][\[\]0-9,\s]*\]")

_texts = msgspec.json.Decoder(str | list[str])


class _Answer(msgspec.Struct):
    data: msgspec.Raw = msgspec.Raw()
    usage: msgspec.Raw = msgspec.Raw()


class Vectors(Response, frozen=True):
    """A list of embeddings. `facts`: its usage object, empty where it has none."""

    @property
    def usage(self) -> ReportedUsage:
        """The usage that the answer reports. All of it is the prompt's, also where only a total is told."""
        counts = read_counts(self.facts) if self.facts else None
        if counts is None:
            return ReportedUsage()
        prompt = counts.prompt or counts.total
        return ReportedUsage(prompt, prompt_final=counts.certain and prompt > 0, of_prompt=counts, last=counts)

    @property
    def completion_id(self) -> str:
        """No id: embeddings have none."""
        return ""

    def estimate_output(self) -> int:
        """Return 0: nothing is generated."""
        return 0


class EmbeddingsFormat(WireFormat):
    """The wire format of `POST /v1/embeddings`."""

    path = "/embeddings"
    answer = "a list of embeddings"
    generates = False

    def sample(self, model: str, ceiling_field: str) -> dict[str, object]:
        """Return a request for one short text."""
        return {"model": model, "input": "hello"}

    def check(self, raw: bytes | bytearray, rules: BodyRules) -> Generator[None, None, Body]:
        """Return the checked body. Raises `Refused`."""
        top = yield from parse_top(raw, rules.max_depth, "'model' and 'input'")
        check_names(top, rules.allow_fields, FIELDS)
        model = check_model(top)
        yield
        _check_input(top)
        return CheckedBody(
            model=model,
            stream=False,
            max_tokens=None,
            n=0,
            asked_usage=False,
            size=len(raw),
            messages=0,
            prompt_tokens_estimate=-(-len(memoryview(top["input"])) // BYTES_PER_TOKEN),
            prompt_bound=PromptBound(len(raw)),
            _stream_options={},
            _top=top,
        )

    def events(self, body: Body, channel: Channel, *, gathered: bool, watched: bool) -> EventStream:
        """Return a parser that is never fed: no stream is asked for, and none is accepted."""
        return EventStream(drop_usage=False)

    def read(self, text: bytes) -> Response | None:
        """Return a list of embeddings. Raises `ValueError` for what is no JSON."""
        facts = strict_json(text)
        try:
            answer = msgspec.json.decode(facts, type=_Answer)
        except msgspec.ValidationError:
            return None
        if bytes(memoryview(answer.data)[:1]) == b"[":
            return Vectors(text, bytes(answer.usage))
        return Vectors(text, facts, error=True) if upstream_errors.is_error(upstream_errors.decode(facts)) else None


def _check_input(top: dict[str, msgspec.Raw]) -> None:
    given = top.get("input")
    try:
        valid = given is not None and (TOKEN_IDS.fullmatch(given) is not None or bool(_texts.decode(given)))
    except (msgspec.DecodeError, RecursionError):
        valid = False
    if not valid:
        raise _invalid_input()


def _invalid_input() -> Refused:
    return invalid_field("input", f"'input' is required: {INPUT}.")
