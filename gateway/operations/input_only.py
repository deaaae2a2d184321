"""Operations that read texts and generate none: embeddings, rerank, moderations. A request costs its input alone.

The texts of a body have at most as many tokens as it has bytes. Pictures and other parts, of which nothing bounds the tokens, are
refused. An answer may be large: nothing is decoded of it but its usage.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator
from typing import ClassVar, Final

import msgspec

from gateway.base.errors import Refused
from gateway.chat.answers import Response
from gateway.chat.events import EventStream
from gateway.chat.fields import REMEDIES, UNPRICED, FieldNames, check_names
from gateway.chat.prompt import PromptBound
from gateway.chat.request import Body, BodyRules, check_model, invalid_field, parse_top
from gateway.chat.usage import BYTES_PER_TOKEN, ReportedUsage, read_counts
from gateway.config.channel import Channel
from gateway.operations.wire_format import CheckedBody, JsonAnswer, TokenCount, WireFormat

OF_TOKEN_IDS: Final = b"[]0123456789, \t\r\n"
"""The bytes of arrays of token ids."""
TEXTS: Final = "a text, or a non-empty array of texts"
DOCUMENTS: Final = "a non-empty array of texts, or of objects with a 'text' alone"

_texts = msgspec.json.Decoder(str | list[str])
_text = msgspec.json.Decoder(str)


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    text: str


_documents = msgspec.json.Decoder(list[str | _Document])


class InputAnswer(JsonAnswer, frozen=True):
    """An answer of which the input is billed."""

    @property
    def usage(self) -> ReportedUsage:
        """The usage that the answer reports. All of it is the prompt's, also where only a total is told."""
        counts = read_counts(self.top.get("usage", b"null"))
        if counts is None:
            return ReportedUsage()
        prompt = counts.prompt or counts.total
        return ReportedUsage(prompt, prompt_final=counts.certain and prompt > 0, of_prompt=counts, last=counts)

    def estimate_output(self) -> int:
        """Return 0: nothing is generated."""
        return 0


class InputOnly(WireFormat):
    """The wire format of such an operation. `fields`: the names of its bodies. `texts`: those with texts. `result`: the list
    that its answers have. `billed`: by the tokens of its input, and not by the request alone.
    """

    fields: ClassVar[FieldNames]
    result: ClassVar[str] = "results"
    texts: ClassVar[tuple[str, ...]] = ("input",)
    billed: ClassVar[bool] = True
    generates = False

    @abstractmethod
    def check_input(self, top: dict[str, msgspec.Raw], size: int) -> int:
        """Return the most tokens of the input of a body of `size` bytes. Raises `Refused`."""

    def check(self, raw: bytes | bytearray, rules: BodyRules) -> Generator[None, None, Body]:
        """Return the checked body. Raises `Refused`."""
        needed = " and ".join(f"'{name}'" for name in ("model", *self.texts))
        top = yield from parse_top(raw, rules.max_depth, needed)
        check_names(top, rules.allow_fields, self.fields)
        model = check_model(top)
        yield
        most = self.check_input(top, len(raw))
        size = sum(len(memoryview(top[name])) for name in self.texts)
        return CheckedBody(
            model=model,
            stream=False,
            max_tokens=None,
            n=0,
            asked_usage=False,
            size=len(raw),
            messages=0,
            prompt_tokens_estimate=-(-size // BYTES_PER_TOKEN) if self.billed else 0,
            prompt_bound=PromptBound(most),
            _stream_options={},
            _top=top,
        )

    def events(self, body: Body, channel: Channel, *, gathered: bool, watched: bool) -> EventStream:
        """Return a parser that is never fed: no stream is asked for, and none is accepted."""
        return EventStream(drop_usage=False)

    def read(self, text: bytes) -> Response | None:
        """Return an answer. Raises `ValueError` for what is no JSON."""
        return (InputAnswer if self.billed else TokenCount).of(text, self.result)


class EmbeddingsFormat(InputOnly):
    """The wire format of `POST /v1/embeddings`: texts become vectors."""

    path = "/embeddings"
    answer = "a list of embeddings"
    result = "data"
    fields = FieldNames(
        ("model", "input"),
        ("dimensions", "encoding_format", "user", "input_type", "truncate", "truncation", "truncate_dim", "task"),
        {**REMEDIES, **dict.fromkeys(("messages", "prompt", "documents"), "send the texts as 'input'")},
        UNPRICED | {"service_tier"},
    )

    def sample(self, model: str, ceiling_field: str) -> dict[str, object]:
        """Return a request for one short text."""
        return {"model": model, "input": "hello"}

    def check_input(self, top: dict[str, msgspec.Raw], size: int) -> int:
        """Return the most tokens of texts or token ids. Raises `Refused`."""
        if not are_token_ids(given := top.get("input")):
            check_texts("input", given, f"{TEXTS} or of token ids")
        return size


class RerankFormat(InputOnly):
    """The wire format of `POST /v1/rerank`: documents in the order of what they say about a query."""

    path = "/rerank"
    answer = "a list of results"
    texts = ("query", "documents")
    fields = FieldNames(
        ("model", "query", "documents"),
        ("top_n", "top_k", "return_documents", "truncation", "max_chunks_per_doc", "max_tokens_per_doc", "user"),
        {**REMEDIES, **dict.fromkeys(("messages", "input", "prompt"), "send 'query' and 'documents'")},
        UNPRICED | {"service_tier"},
    )

    def sample(self, model: str, ceiling_field: str) -> dict[str, object]:
        """Return a request for one short document."""
        return {"model": model, "query": "hello", "documents": ["hello"]}

    def check_input(self, top: dict[str, msgspec.Raw], size: int) -> int:
        """Return the most tokens: the query is read with each document. Raises `Refused`."""
        try:
            query = _text.decode(top["query"])
        except (KeyError, msgspec.DecodeError):
            raise invalid_field("query", "'query' is required: a text.") from None
        try:
            documents = _documents.decode(top["documents"])
        except (KeyError, msgspec.DecodeError, RecursionError):
            documents = []
        if not documents:
            raise invalid_field("documents", f"'documents' is required: {DOCUMENTS}.")
        return size + len(query.encode("utf-8", "surrogatepass")) * (len(documents) - 1)


class ModerationsFormat(InputOnly):
    """The wire format of `POST /v1/moderations`: whether texts may be shown. Upstreams bill the request alone, if anything."""

    path = "/moderations"
    answer = "a list of results"
    billed = False
    fields = FieldNames(("model", "input"), ("user",), {**REMEDIES, "messages": "send the texts as 'input'"}, UNPRICED)

    def sample(self, model: str, ceiling_field: str) -> dict[str, object]:
        """Return a request for one short text."""
        return {"model": model, "input": "hello"}

    def check_input(self, top: dict[str, msgspec.Raw], size: int) -> int:
        """Return 0: tokens are not billed. Raises `Refused`."""
        check_texts("input", top.get("input"), TEXTS)
        return 0


def are_token_ids(given: msgspec.Raw | None) -> bool:
    """Return whether a value is a non-empty array of whole numbers, or of such arrays. Its syntax was checked."""
    text = b"" if given is None else bytes(given)
    others = text.translate(None, OF_TOKEN_IDS)
    return not others and text[:1] == b"[" and text.translate(None, b"[], \t\r\n") != b""


def check_texts(name: str, given: msgspec.Raw | None, expected: str) -> None:
    """Raise `Refused` for what is neither a text nor a non-empty array of texts."""
    try:
        valid = given is not None and bool(_texts.decode(given))
    except (msgspec.DecodeError, RecursionError):
        valid = False
    if not valid:
        raise _needs(name, expected)


def _needs(name: str, expected: str) -> Refused:
    return invalid_field(name, f"'{name}' is required: {expected}.")
