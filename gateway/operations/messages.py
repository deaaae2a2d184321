"""Messages: Anthropic's API, for its libraries and for agents that speak nothing else. Every answer passes byte for byte.

- **Usage** is told at the start and again, cumulatively, at the end: a field of a later object replaces that of an earlier one.
  Tokens that are read from a cache or written to one come beside `input_tokens`.
- **What would cost more than the model's prices** is refused: tools that the upstream runs, faster or regional service, a cache
  that is kept for longer, summaries of the conversation by the upstream.
- **Errors** are told in the shape that these libraries show to people.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from typing import Any, ClassVar, Final

import msgspec

from gateway.base.errors import Refused, render
from gateway.chat.events import EventStream
from gateway.chat.fields import REMEDIES, UNPRICED, FieldNames, check_names, unpriced
from gateway.chat.prompt import ABSENT, MESSAGE_ALLOWANCE, REQUEST_ALLOWANCE, TOOLS_ALLOWANCE, WINDOW, rewritten
from gateway.chat.request import (
    Body,
    BodyRules,
    check_model,
    field,
    invalid_field,
    parse_top,
    positive,
)
from gateway.chat.usage import BYTES_PER_TOKEN, ReportedUsage
from gateway.config.channel import Channel, CredentialPlace
from gateway.operations.message_events import MessageEvents, WatchedMessageEvents, message_counts
from gateway.operations.prompt_parts import FILE, IMAGE, SOME, SOUND, USE_ONE, Parts, check_each, check_keys
from gateway.operations.typed_events import NULL, part
from gateway.operations.wire_format import DIGITS, LIST, CheckedBody, Errors, JsonAnswer, Reads, TokenCount, WireFormat

VERSION: Final = "anthropic-version"
DEFAULT_VERSION: Final = "2023-06-01"
OF_BROWSERS: Final = "anthropic-dangerous-direct-browser-access"
HEADER_VALUE: Final = re.compile(r"[!-~](?:[ -~]*[!-~])?")

FIELDS: Final = FieldNames(
    (
        *("model", "messages", "max_tokens", "stream", "tools", "system", "context_management", "cache_control"),
        "service_tier",
    ),
    ("temperature", "top_p", "top_k", "stop_sequences", "metadata", "thinking", "tool_choice", "output_config"),
    {**REMEDIES, "max_completion_tokens": "use 'max_tokens'", "n": USE_ONE},
    UNPRICED,
)
SERVICE_TIERS: Final = ("auto", "standard_only")
"""Tiers of one price: `auto` uses a capacity that the operator has bought, where there is some."""
TYPED_TOOLS: Final = {"bash_": 512, "text_editor_": 1024, "computer_": 2048, "memory_": 1024}
"""How the types of tools begin that the upstream describes to the model, and the most tokens of that: by Anthropic's guides 245 for
bash, 700 for an editor, 735 for a computer, and 499 of a system prompt with it."""
OWN_TOOLS: Final = ("", "custom", *TYPED_TOOLS)
"""How the types of tools begin that run at the caller."""
COMPACTS: Final = "compact"
"""How the edits of a context begin for which the upstream generates a summary."""
GENERATED: Final = ("text", "thinking")
"""The fields of a message with generated text."""
SHORT_CACHE: Final = "5m"
AS_JSON: Final = frozenset(("tools", "tool_choice", "output_config"))
"""Fields that an upstream may write into the prompt in another form of JSON."""
KINDS: Final = {"image": IMAGE, "input_audio": SOUND, "audio": SOUND, "document": FILE, "container_upload": FILE}
"""Types of blocks that may hold encoded bytes."""
PDF: Final = "application/pdf"
TEXTS: Final = frozenset(
    ("text", "thinking", "redacted_thinking", "tool_use", "tool_result", "search_result", "server_tool_use")
)
WRITTEN_AGAIN: Final = frozenset(("tool_use", "tool_result", "server_tool_use"))
"""Blocks that an upstream may write into the prompt in another form of JSON."""

TYPES: Final = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    429: "rate_limit_error",
    500: "api_error",
    502: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""The type of an error by its status; any other is an `invalid_request_error`."""


class _Message(msgspec.Struct):
    role: str
    content: msgspec.Raw = ABSENT


class _Cache(msgspec.Struct):
    ttl: str | None = None


class _Source(msgspec.Struct):
    type: str = ""
    media_type: str = ""
    data: msgspec.Raw = ABSENT
    content: msgspec.Raw = ABSENT


class _Block(msgspec.Struct):
    type: str = ""
    source: _Source | str | None = None
    content: msgspec.Raw = ABSENT
    cache_control: _Cache | None = None


class _Tool(msgspec.Struct):
    type: str | None = None
    model: msgspec.Raw = ABSENT
    cache_control: _Cache | None = None


class _Thinking(msgspec.Struct):
    budget_tokens: int | None = None


class _Edit(msgspec.Struct):
    type: str = ""


class _ContextManagement(msgspec.Struct):
    edits: list[_Edit] = []


_messages = msgspec.json.Decoder(list[_Message])
_tools = msgspec.json.Decoder(list[_Tool] | None)
_context = msgspec.json.Decoder(_ContextManagement | None)
_cache = msgspec.json.Decoder(_Cache | None)
_thinking = msgspec.json.Decoder(_Thinking | None)
_block = msgspec.json.Decoder(_Block)
_blocks = msgspec.json.Decoder(list[msgspec.Raw])
_boolean = msgspec.json.Decoder(bool | None)
_text = msgspec.json.Decoder(str | None)
_usage = msgspec.json.Decoder(dict[str, Any])


def _count_blocks(name: str, content: msgspec.Raw, parts: Parts, level: int = 1) -> Generator[None, None, None]:
    """Count the blocks of the field `name`, and those inside of them: a list, or within a block also one alone.

    A text counts by its bytes. Raises `Refused`.
    """
    first = bytes(memoryview(content)[:1])
    if first in b'"' or (level > 1 and first not in b"[{"):
        return
    parts.check_level(name, level)
    try:
        blocks = [content] if level > 1 and first == b"{" else _blocks.decode(content)
        for number, raw in enumerate(blocks, 1):
            check_keys(name, raw)
            block = _block.decode(raw)
            check_cache(block.cache_control, parts)
            source = block.source if isinstance(block.source, _Source) else None  # of a search result it is a text
            if block.type in KINDS or (source is not None and source.type in ("base64", "url", "file")):
                kind = KINDS.get(block.type, FILE)
                if source is None or source.type != "text":
                    parts.add(kind, _encoded_bytes(kind, source))
            elif block.type not in TEXTS:
                parts.add(IMAGE)  # it is not known what it is
            if block.type in WRITTEN_AGAIN or block.type not in (*KINDS, *TEXTS):
                parts.text += yield from rewritten(raw)
            yield from _count_blocks(name, block.content, parts, level + 1)
            if source is not None:
                yield from _count_blocks(name, source.content, parts, level + 1)
            if number % SOME == 0 or len(memoryview(raw)) > WINDOW:
                yield
    except (msgspec.DecodeError, RecursionError) as error:
        raise invalid_field(name, f"'{name}' must be a text, or an array of blocks: {error}.") from None


def _encoded_bytes(kind: int, source: _Source | None) -> int:
    """Return how many bytes of a block only a decoder can read. A file that may be text counts by its bytes, too."""
    encoded = source is not None and source.type == "base64" and source.data is not ABSENT
    return len(memoryview(source.data)) if source and encoded and (kind != FILE or source.media_type == PDF) else 0


class MessageAnswer(JsonAnswer, frozen=True):
    """A message that is not a stream."""

    @property
    def usage(self) -> ReportedUsage:
        """The usage that the message reports."""
        reported, told = ReportedUsage(), part(_usage, self.top.get("usage", NULL))
        if told is not None and (counts := message_counts(told)) is not None:
            reported.add(counts, final=True)
        return reported

    def estimate_output(self) -> int:
        """Return the estimated tokens of its content."""
        return -(-self.text_bytes("content", GENERATED) // BYTES_PER_TOKEN)


class MessagesFormat(WireFormat):
    """The wire format of `POST /v1/messages`."""

    path = "/messages"
    answer = "a message"
    auth = CredentialPlace("header", "x-api-key")
    id_header = "request-id"
    needs_ceiling = True
    tried: ClassVar[Mapping[str, object]] = {
        "messages": [{"role": "user", "content": "Say hello"}],
        "stream": True,
        "max_tokens": 16,
    }
    reads: ClassVar[Reads] = MessageAnswer, "content", LIST

    def check(self, raw: bytes | bytearray, rules: BodyRules) -> Generator[None, None, Body]:
        """Return the checked body. Raises `Refused`."""
        top = yield from parse_top(raw, rules.max_depth)
        check_names(top, rules.allow_fields, FIELDS)
        model = check_model(top)
        yield
        most = positive(top, "max_tokens", rules.max_output_tokens)
        if self.needs_ceiling and most is None:
            raise invalid_field("max_tokens", "'max_tokens' is required: the most tokens of the answer.")
        expected = "a non-empty array of objects, each with a string 'role'"
        messages = field(top, "messages", _messages, expected)
        if not messages:
            raise invalid_field("messages", f"'messages' is required: {expected}.")
        yield
        tier = field(top, "service_tier", _text, "a string")
        if tier not in (None, *SERVICE_TIERS) and "service_tier" not in rules.allow_fields:
            raise unpriced("service_tier", f"send {' or '.join(SERVICE_TIERS)}, or leave it out")
        parts = Parts(len(raw), rules.allow_fields)
        parts.text += len(messages) * MESSAGE_ALLOWANCE + REQUEST_ALLOWANCE
        yield from self._check_rest(top, rules, parts)
        yield from check_each("messages", top, True)
        for message in messages:
            yield from _count_blocks("messages", message.content, parts)
        return CheckedBody(
            model=model,
            stream=bool(field(top, "stream", _boolean, "true or false")) and self.needs_ceiling,
            max_tokens=most if self.needs_ceiling else None,
            n=_turns(top, most) if self.needs_ceiling else 0,
            asked_usage=True,
            size=len(raw),
            messages=len(messages),
            prompt_tokens_estimate=parts.estimate,
            prompt_bound=parts.bound,
            _top=top,
            ceiling="max_tokens" if self.needs_ceiling else "",
        )

    def _check_rest(self, top: dict[str, msgspec.Raw], rules: BodyRules, parts: Parts) -> Generator[None, None, None]:
        """Check what stands beside the messages, and count it."""
        check_cache(field(top, "cache_control", _cache, "an object"), parts)
        tools = field(top, "tools", _tools, "an array of objects") or []
        yield from check_each("tools", top, bool(tools))
        for tool in tools:
            check_cache(tool.cache_control, parts)
            parts.text += max(
                (more for kind, more in TYPED_TOOLS.items() if (tool.type or "").startswith(kind)), default=0
            )
            own = not tool.type or tool.type.startswith(OWN_TOOLS[1:])
            if not (own and tool.model is ABSENT) and "tools" not in rules.allow_fields:
                raise unpriced("tools", "send tools that you run yourself")
        for name in AS_JSON.intersection(top):
            parts.text += yield from rewritten(top[name])
        parts.text += TOOLS_ALLOWANCE if tools else 0
        context = field(top, "context_management", _context, "an object with 'edits'")
        compacts = context is not None and any(edit.type.startswith(COMPACTS) for edit in context.edits)
        if compacts and "context_management" not in rules.allow_fields:
            raise unpriced("context_management", "let your client shorten the conversation")
        for name in ("cache_control", "context_management", "thinking"):
            if bytes(memoryview(top.get(name, NULL))[:1]) == b"{":
                check_keys(name, top[name])
        yield from _count_blocks("system", top.get("system", ABSENT), parts)

    def events(self, body: Body, channel: Channel, *, gathered: bool, watched: bool) -> EventStream:
        """Return the parser of an answer's events. Nothing of it is dropped."""
        return WatchedMessageEvents() if watched else MessageEvents()

    def lines(self, headers: Mapping[str, str], channel: Channel) -> str:
        """Return the lines of all `anthropic-*` headers: what a body may say depends on them. Those of the channel come first."""
        own = {name.lower() for name in channel.headers}
        lines = [
            f"{name}: {value}\r\n"
            for name, value in headers.items()
            if name[:10].lower() == "anthropic-"
            and name.lower() not in (OF_BROWSERS, *own)
            and HEADER_VALUE.fullmatch(value)
        ]
        if VERSION not in own and VERSION not in headers:
            lines.append(f"{VERSION}: {DEFAULT_VERSION}\r\n")
        return "".join(lines)


class MessageTokensFormat(MessagesFormat):
    """The wire format of `POST /v1/messages/count_tokens`: the same body, of which the answer is a number."""

    path = "/messages/count_tokens"
    answer = "a number of tokens"
    generates = False
    free = True
    needs_ceiling = False
    tried: ClassVar[Mapping[str, object]] = {"messages": [{"role": "user", "content": "hello"}]}
    reads = TokenCount, "input_tokens", DIGITS


class MessageErrors(Errors):
    """Errors in the shape of Anthropic's API. `code` is the gateway's own, which its libraries pass over."""

    def body(self, error: Refused, request_id: str) -> bytes:
        """Return the JSON body of an error."""
        told = msgspec.json.decode(render(error, request_id))["error"]
        told["type"] = TYPES.get(error.status, "invalid_request_error")
        told.pop("request_id")
        return msgspec.json.encode({"type": "error", "error": told, "request_id": request_id})

    def event(self, error: Refused, request_id: str, events: EventStream | None = None) -> bytes:
        """Return the event that ends a stream with an error. Libraries read its name."""
        return b"event: error\ndata: %b\n\n" % self.body(error, request_id)


def _turns(top: dict[str, msgspec.Raw], most: int | None) -> int:
    """Return how many times the ceiling is held: thinking may have a budget beyond it, of all rounds with tools together."""
    thinking = field(top, "thinking", _thinking, "an object")
    budget = thinking.budget_tokens or 0 if thinking is not None else 0
    return max(1, -(-budget // (most or 1)))


def check_cache(cache: _Cache | None, parts: Parts) -> None:
    """Raise `Refused` for a cache that is kept for longer than the price of written tokens is for, unless that is allowed."""
    if cache is not None and cache.ttl not in (None, SHORT_CACHE) and "cache_control" not in parts.allowed:
        raise unpriced("cache_control", f"leave out its 'ttl', or send \"{SHORT_CACHE}\"")
