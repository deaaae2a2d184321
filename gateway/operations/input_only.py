"""Operations that read texts and generate none: embeddings, rerank, moderations. A request costs its input alone.

The texts of a body have at most as many tokens as they have bytes, once their characters are written anew (NFKC), as many
tokenizers of such models do: 18 characters for one of three bytes. An upstream reads each of them by itself, with a template and
with the other texts of the body, such as an instruction. Pictures and other parts, of which nothing bounds the tokens, are refused,
and so are lists and objects in fields that are not known. An answer may be large: nothing is decoded of it but its usage.
"""

from __future__ import annotations

import unicodedata
from abc import abstractmethod
from collections.abc import Generator, Mapping
from typing import ClassVar, Final

import msgspec

from gateway.chat.answers import Response
from gateway.chat.events import EventStream
from gateway.chat.fields import REMEDIES, UNPRICED, FieldNames, check_names
from gateway.chat.prompt import PIECE, PromptBound
from gateway.chat.request import Body, BodyRules, check_model, invalid_field, parse_top
from gateway.chat.usage import BYTES_PER_TOKEN, ReportedUsage, read_counts
from gateway.config.channel import Channel
from gateway.operations.wire_format import LIST, CheckedBody, JsonAnswer, Reads, TokenCount, WireFormat

OF_TOKEN_IDS: Final = b"[]0123456789, \t\r\n"
"""The bytes of arrays of token ids."""
TEXTS: Final = "a text, or a non-empty array of texts"
TEXT_ALLOWANCE: Final = 64
"""Tokens that a template may add to each text: Qwen3's for embeddings has 20."""
DOCUMENT_ALLOWANCE: Final = 128
"""Tokens that it may add to each document of a query: that of Qwen3's for rerank has 70."""
SETTINGS: Final = frozenset(
    ("model", "dimensions", "encoding_format", "user", "truncate", "truncation", "truncate_dim")
)
"""Fields that are no part of any text."""
LISTS: Final = frozenset(("embedding_types", "rank_fields"))
"""Fields with a list of settings."""
DOCUMENTS: Final = "a non-empty array of texts, or of objects with a 'text' alone"

OTHER_TEXTS: Final = (
    *(
        "messages",
        "prompt",
        "documents",
        "texts",
        "text",
        "inputs",
        "queries",
        "passages",
        "sentences",
        "instances",
        "pairs",
    ),
    *("image", "images", "image_url", "audio", "video", "url", "urls", "content", "contents"),
)
"""Fields with what other servers read in place of the texts, or beside them."""
RERANKED: Final = tuple(name for name in OTHER_TEXTS if name != "documents")

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


class InputOnly(WireFormat):
    """The wire format of such an operation. `fields`: the names of its bodies. `texts`: those with texts. `billed`:
    by the tokens of its input, and not by the request alone.
    """

    fields: ClassVar[FieldNames]
    texts: ClassVar[tuple[str, ...]] = ("input",)
    billed: ClassVar[bool] = True
    generates = False
    tried: ClassVar[Mapping[str, object]] = {"input": "hello"}
    reads: ClassVar[Reads] = (InputAnswer, "results", LIST)

    @abstractmethod
    def check_input(self, top: dict[str, msgspec.Raw], size: int, more: int) -> int:
        """Return the most tokens of the input of a body of `size` bytes, of which `more` may be read with each text.

        Raises `Refused`.
        """

    def check(self, raw: bytes | bytearray, rules: BodyRules) -> Generator[None, None, Body]:
        """Return the checked body. Raises `Refused`."""
        needed = " and ".join(f"'{name}'" for name in ("model", *self.texts))
        top = yield from parse_top(raw, rules.max_depth, needed)
        check_names(top, rules.allow_fields, self.fields)
        model = check_model(top)
        yield
        more, grown = self._read_with_each(top), 0
        for name in top.keys() - SETTINGS:
            longer = yield from written_anew(top[name])
            grown += longer
            more += longer if name != self.texts[-1] else 0
        most = self.check_input(top, len(raw) + grown, more)
        size = sum(len(memoryview(top[name])) for name in self.texts)
        return CheckedBody(
            model=model,
            size=len(raw),
            prompt_tokens_estimate=-(-size // BYTES_PER_TOKEN) if self.billed else 0,
            prompt_bound=PromptBound(most),
            _top=top,
        )

    def _read_with_each(self, top: dict[str, msgspec.Raw]) -> int:
        """Return the bytes of the fields that may be a part of each text. Raises `Refused` for what may be further texts."""
        more = 0
        for name in top.keys() - SETTINGS.union(self.texts):
            value = memoryview(top[name])
            if bytes(value[:1]) in (b"[", b"{") and name not in LISTS:
                needed = " and ".join(f"'{each}'" for each in self.texts)
                shown = ascii(name[:64])[1:-1]
                raise invalid_field(
                    name, f"'{shown}' is not accepted, since it may hold further texts: send {needed} alone."
                )
            more += len(value)
        return more

    def events(self, body: Body, channel: Channel, *, gathered: bool, watched: bool) -> EventStream:
        """Return a parser that is never fed: no stream is asked for, and none is accepted."""
        return EventStream(drop_usage=False)


class EmbeddingsFormat(InputOnly):
    """The wire format of `POST /v1/embeddings`: texts become vectors."""

    path = "/embeddings"
    answer = "a list of embeddings"
    reads = InputAnswer, "data", LIST
    fields = FieldNames(
        ("model", "input"),
        ("dimensions", "encoding_format", "user", "input_type", "truncate", "truncation", "truncate_dim", "task"),
        {**REMEDIES, **dict.fromkeys(OTHER_TEXTS, "send the texts as 'input'")},
        UNPRICED | {"service_tier"},
    )

    def check_input(self, top: dict[str, msgspec.Raw], size: int, more: int) -> int:
        """Return the most tokens of texts or token ids. Raises `Refused`."""
        texts = count_texts("input", top.get("input"))
        return size + (texts - 1) * more + texts * TEXT_ALLOWANCE


class RerankFormat(InputOnly):
    """The wire format of `POST /v1/rerank`: documents in the order of what they say about a query."""

    path = "/rerank"
    answer = "a list of results"
    texts = ("query", "documents")
    tried: ClassVar[Mapping[str, object]] = {"query": "hello", "documents": ["hello"]}
    fields = FieldNames(
        ("model", "query", "documents"),
        ("top_n", "top_k", "return_documents", "truncation", "max_chunks_per_doc", "max_tokens_per_doc", "user"),
        {
            **REMEDIES,
            **dict.fromkeys((*RERANKED, "input"), "send 'query' and 'documents'"),
        },
        UNPRICED | {"service_tier"},
    )

    def check_input(self, top: dict[str, msgspec.Raw], size: int, more: int) -> int:
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
        more += len(query.encode("utf-8", "surrogatepass"))
        return size + more * (len(documents) - 1) + DOCUMENT_ALLOWANCE * len(documents)

    def read(self, text: bytes) -> Response | None:
        """Return an answer; Voyage's has its results as `data`. Raises `ValueError` for what is no JSON."""
        return super().read(text) or InputAnswer.of(text, "data")


class ModerationsFormat(InputOnly):
    """The wire format of `POST /v1/moderations`: whether texts may be shown. Upstreams bill the request alone, if anything."""

    path = "/moderations"
    answer = "a list of results"
    billed = False
    reads = TokenCount, "results", LIST
    fields = FieldNames(
        ("model", "input"),
        ("user",),
        {**REMEDIES, **dict.fromkeys(OTHER_TEXTS, "send the texts as 'input'")},
        UNPRICED | {"service_tier"},
    )

    def check_input(self, top: dict[str, msgspec.Raw], size: int, more: int) -> int:
        """Return 0: tokens are not billed. Raises `Refused`."""
        check_texts("input", top.get("input"), TEXTS)
        return 0


def written_anew(given: msgspec.Raw | None) -> Generator[None, None, int]:
    """Return by how many bytes texts grow where their characters are replaced by compatible ones, with a pause after each piece."""
    raw = b"" if given is None else bytes(given)
    if raw.isascii() and b"\\u" not in raw:
        return 0
    try:
        text, more = msgspec.json.encode(msgspec.json.decode(raw)).decode(), 0
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return 0  # it is refused as no text
    for at in range(0, len(text), PIECE):
        piece = text[at : at + PIECE]
        more += len(unicodedata.normalize("NFKC", piece).encode()) - len(piece.encode())
        yield
    return max(0, more)


def are_token_ids(given: msgspec.Raw | None) -> bool:
    """Return whether a value is a non-empty array of whole numbers, or of such arrays. Its syntax was checked."""
    text = b"" if given is None else bytes(given)
    others = text.translate(None, OF_TOKEN_IDS)
    return not others and text[:1] == b"[" and text.translate(None, b"[], \t\r\n") != b""


def count_texts(name: str, given: msgspec.Raw | None) -> int:
    """Return the number of texts, or arrays of token ids. Raises `Refused`."""
    if given is not None and are_token_ids(given):
        return max(1, bytes(given).count(b"[") - 1)
    check_texts(name, given, f"{TEXTS} or of token ids")
    texts = _texts.decode(given or b'""')
    return 1 if isinstance(texts, str) else len(texts)


def check_texts(name: str, given: msgspec.Raw | None, expected: str) -> None:
    """Raise `Refused` for what is neither a text nor a non-empty array of texts."""
    try:
        valid = given is not None and bool(_texts.decode(given))
    except (msgspec.DecodeError, RecursionError):
        valid = False
    if not valid:
        raise invalid_field(name, f"'{name}' is required: {expected}.")
