"""Responses: OpenAI's API for agents. Every answer passes byte for byte.

A request may name what the upstream keeps of earlier answers, by `previous_response_id`, an `item_reference`, or reasoning without
its content: those of the same account alone (`gateway.operations.kept`). `conversation`, `prompt` and `background` are refused,
and so are tools that the upstream runs, and bills, and items of types that are not known, since they may bring such tools.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec

from gateway.base.errors import Refused, render
from gateway.chat.answers import Response
from gateway.chat.events import EventStream
from gateway.chat.fields import REMEDIES, UNPRICED, FieldNames, check_names, check_option_names, unpriced
from gateway.chat.prompt import (
    ABSENT,
    DATA_URL,
    MESSAGE_ALLOWANCE,
    REQUEST_ALLOWANCE,
    TOOLS_ALLOWANCE,
    WINDOW,
    rewritten,
)
from gateway.chat.request import (
    Body,
    BodyRules,
    check_model,
    check_service_tier,
    field,
    invalid_field,
    parse_top,
    positive,
)
from gateway.chat.sse import id_text
from gateway.chat.usage import BYTES_PER_TOKEN, ReportedUsage
from gateway.config.channel import Channel
from gateway.operations.kept import TRUNCATION
from gateway.operations.prompt_parts import FILE, IMAGE, SOME, SOUND, USE_ONE, Parts, check_each, check_keys
from gateway.operations.response_events import ITEMS, ResponseEvents, WatchedResponseEvents, item_ids
from gateway.operations.typed_events import NULL
from gateway.operations.wire_format import DIGITS, LIST, CheckedBody, Errors, JsonAnswer, Reads, TokenCount, WireFormat

LEAST_CEILING: Final = 16
USE_CEILING: Final = "use 'max_output_tokens'"
PREVIOUS: Final = "previous_response_id"
WHOLE: Final = (None, "disabled")
"""Values of `truncation` with which no part of a conversation is left out."""
STATE: Final = ("conversation", "prompt")
"""Fields that name what the upstream was told elsewhere."""
FIELDS: Final = FieldNames(
    (
        "model",
        "input",
        "max_output_tokens",
        "stream",
        "stream_options",
        "tools",
        "service_tier",
        "background",
        PREVIOUS,
        "store",
        *STATE,
    ),
    (
        *("instructions", "text", "reasoning", "include", "metadata", "client_metadata", TRUNCATION, "user"),
        *("temperature", "top_p", "top_logprobs", "tool_choice", "parallel_tool_calls", "max_tool_calls"),
        *("prompt_cache_key", "safety_identifier"),
    ),
    {
        **{
            name: USE_CEILING if "max_tokens" in remedy else remedy
            for name, remedy in REMEDIES.items()
            if name != "max_output_tokens"
        },
        **dict.fromkeys(("max_tokens", "max_completion_tokens"), USE_CEILING),
        "messages": "send the conversation as 'input'",
        "n": USE_ONE,
    },
    UNPRICED | {"background_options", "context_management"},
)
OWN_TOOLS: Final = frozenset(("function", "custom", "local_shell"))
"""Types of tools that run at the caller."""
KINDS: Final = {"input_image": IMAGE, "input_audio": SOUND, "input_file": FILE, "computer_screenshot": IMAGE}
ENCODED: Final = {"input_image": "image_url", "input_file": "file_data", "computer_screenshot": "image_url"}
"""Where a part has the bytes that only a decoder can read, as an address that begins with `data:`."""
DATA: Final = {IMAGE: b'"data:image/', FILE: b'"data:application/pdf;'}
TEXTS: Final = frozenset(
    (
        *("input_text", "output_text", "text", "summary_text", "reasoning_text", "refusal"),
        *("", "message", "reasoning", "compaction", "function_call", "function_call_output"),
        *("custom_tool_call", "custom_tool_call_output", "local_shell_call", "local_shell_call_output"),
    )
)
"""Types of items and parts that have text alone, but for the parts in them."""
KNOWN_TYPES: Final = ", ".join(sorted((TEXTS | KINDS.keys()) - {""}))
REFERENCE: Final = "item_reference"
"""The type of an item that names what the upstream keeps. It may be left out."""
ENCRYPTED: Final = frozenset(("reasoning", "compaction"))
"""Types of items that name what the upstream keeps, unless they have its content."""
GENERATED: Final = ("text", "refusal", "arguments", "input", "encrypted_content")
"""The fields of a response with generated text."""
AS_JSON: Final = frozenset(("tools", "tool_choice", "text"))
"""Fields that an upstream may write into the prompt in another form of JSON."""
CALLS: Final = frozenset(("function_call", "custom_tool_call", "local_shell_call"))
QUERY: Final = frozenset(("include", "include[]", "include%5B%5D", "stream", "after", "before", "limit", "order"))
"""Parameters of requests about what an upstream keeps."""
PRINTABLE: Final = re.compile(r"[!-~]*")
RETRYABLE: Final = frozenset((500, 502, 503, 504))

_EMPTY: Final = re.compile(rb'(?:null|[\s\[\]{},:"])*')


class _Audio(msgspec.Struct):
    data: msgspec.Raw = ABSENT


class _Item(msgspec.Struct):
    type: str = ""
    id: str | None = None
    encrypted_content: msgspec.Raw = ABSENT
    content: msgspec.Raw = ABSENT
    output: msgspec.Raw = ABSENT
    summary: msgspec.Raw = ABSENT
    image_url: msgspec.Raw = ABSENT
    file_data: msgspec.Raw = ABSENT
    input_audio: _Audio | None = None


class _Tool(msgspec.Struct):
    type: str = ""
    tools: list[_Tool] | None = None

    @property
    def own(self) -> bool:
        """Return whether it runs at the caller. A namespace has tools in it."""
        if self.type == "namespace":
            return all(tool.own for tool in self.tools or ())
        return self.type in OWN_TOOLS and self.tools is None


_input = msgspec.json.Decoder(str | list[msgspec.Raw])
_item = msgspec.json.Decoder(_Item)
_raws = msgspec.json.Decoder(list[msgspec.Raw])
_tools = msgspec.json.Decoder(list[_Tool] | None)
_boolean = msgspec.json.Decoder(bool | None)
_text = msgspec.json.Decoder(str | None)
_options = msgspec.json.Decoder(dict[str, msgspec.Raw] | None)


class WholeResponse(JsonAnswer, frozen=True):
    """A response that is not a stream."""

    @property
    def usage(self) -> ReportedUsage:
        """The usage that the response reports."""
        reported = super().usage
        reported.service_tier = id_text(bytes(self.top.get("service_tier", b"")))
        return reported

    def estimate_output(self) -> int:
        """Return the estimated tokens of its output."""
        return -(-self.text_bytes("output", GENERATED) // BYTES_PER_TOKEN)


class ResponsesFormat(WireFormat):
    """The wire format of `POST /v1/responses`."""

    path = "/responses"
    answer = "a response"
    streams = True
    keeps = True
    tried: ClassVar[Mapping[str, object]] = {
        **{"input": "Say hello", "stream": True},
        **{"max_output_tokens": LEAST_CEILING, "store": False},
    }
    reads: ClassVar[Reads] = WholeResponse, "output", LIST

    def check(self, raw: bytes | bytearray, rules: BodyRules) -> Generator[None, None, Body]:
        """Return the checked body. Raises `Refused`."""
        top = yield from parse_top(raw, rules.max_depth, "'model' and 'input'")
        check_names(top, rules.allow_fields, FIELDS)
        model = check_model(top)
        for name in STATE:
            if name in top and bytes(top[name]) != b"null":
                raise not_served(name)
        if field(top, "background", _boolean, "true or false"):
            raise not_served("background")
        previous = field(top, PREVIOUS, _text, "the id of a response")
        truncation = field(top, TRUNCATION, _text, "a text")
        stored = field(top, "store", _boolean, "true or false") is not False
        yield
        check_option_names(field(top, "stream_options", _options, "an object, or left out") or {})
        given = field(top, "input", _input, "a text, or an array of items")
        if not given:
            raise invalid_field("input", "'input' is required: a text, or a non-empty array of items.")
        items = given if isinstance(given, list) else []
        parts = Parts(len(raw))
        parts.text += len(items) * MESSAGE_ALLOWANCE + REQUEST_ALLOWANCE
        yield from _check_tools(top, rules, parts)
        if previous:
            parts.refer(previous)
        yield from _count_items(items, parts, "tools" in rules.allow_fields)
        most = positive(top, "max_output_tokens", rules.max_output_tokens) if self.streams else None
        return CheckedBody(
            model=model,
            stream=self.streams and bool(field(top, "stream", _boolean, "true or false")),
            max_tokens=most if most is None else max(most, LEAST_CEILING),
            n=int(self.generates),
            asked_usage=True,
            size=len(raw),
            messages=len(items) or 1,
            prompt_tokens_estimate=parts.estimate,
            prompt_bound=parts.bound,
            _top=top,
            service_tier=check_service_tier(top, model, rules),
            ceiling="max_output_tokens" if self.streams else "",
            least=LEAST_CEILING,
            refers=tuple(parts.refers),
            goes_on=bool(previous),
            keeps=stored and self.streams,
            truncates=truncation not in WHOLE,
        )

    def events(self, body: Body, channel: Channel, *, gathered: bool, watched: bool) -> EventStream:
        """Return the parser of an answer's events. Nothing of it is dropped."""
        return WatchedResponseEvents() if watched else ResponseEvents()

    def item_ids(self, answer: EventStream | Response) -> Sequence[str]:
        """Return the ids of the items of a response."""
        if isinstance(answer, WholeResponse):
            return item_ids(answer.top.get("output", NULL))
        return answer.told.get(ITEMS, ()) if isinstance(answer, EventStream) else ()


class CompactFormat(ResponsesFormat):
    """The wire format of `POST /v1/responses/compact`: a summary of the conversation, which is billed as a response."""

    path = "/responses/compact"
    answer = "a summary of a conversation"
    streams = False
    tried: ClassVar[Mapping[str, object]] = {"input": "hello"}


class InputTokensFormat(CompactFormat):
    """The wire format of `POST /v1/responses/input_tokens`, of which the answer is a number."""

    path = "/responses/input_tokens"
    answer = "a number of tokens"
    generates = False
    free = True
    reads = TokenCount, "input_tokens", DIGITS


class StoredResponse(WireFormat):
    """The wire format of one request about a response that an upstream keeps: read, delete, cancel, or list its input."""

    answer = "a response"
    free = True
    generates = False

    def __init__(self, method: str, name: str, more: str, query: str) -> None:
        """Take the id and what follows it in the path. Raises `Refused` for a query with anything else than upstreams read."""
        self.method = "GET" if method == "HEAD" else method
        self.path = f"/responses/{name}{'/' if more else ''}{more}"
        self.query = query
        for each in filter(None, query.split("&")):
            key, _, value = each.partition("=")
            if key == "stream" and value != "false":
                raise Refused(400, "not_served", "A response is read as JSON here: leave 'stream' out.", param="stream")
            if key not in QUERY or not PRINTABLE.fullmatch(value):
                raise invalid_field("query", f"Send only {', '.join(sorted(QUERY))} in the query.")


class ResponseErrors(Errors):
    """Errors of responses: in the shape of OpenAI's API, and in a stream by two events, since no client reads but one of them."""

    def event(self, error: Refused, request_id: str, events: EventStream | None = None) -> bytes:
        """Return the events that end a stream with an error."""
        told: dict[str, Any] = msgspec.json.decode(render(error, request_id))["error"]
        known = {} if events is None else events.told
        number = known.get("sequence_number", 0)
        code = "insufficient_quota"
        if error.status in RETRYABLE:
            code = "server_error"
        elif error.status == 400:
            code = "invalid_prompt"
        response = {
            "id": events.completion_id if events is not None else "",
            **{"object": "response", "status": "failed", "model": known.get("model", ""), "output": []},
            "error": {"code": code, "message": told["message"]},
        }
        failed = {"type": "response.failed", "sequence_number": number + 1, "response": response}
        last = {"type": "error", "code": told["code"], "message": told["message"], "param": None}
        last |= {"sequence_number": number + 2, "error": told}
        return b"event: response.failed\ndata: %b\n\nevent: error\ndata: %b\n\n" % (
            msgspec.json.encode(failed),
            msgspec.json.encode(last),
        )


def not_served(param: str) -> Refused:
    """Return the error for a field that names what was not made by a request here, or that would go on after its end."""
    text = f"'{param}' is not served here. Leave it out, and send what it stands for as 'input' or 'instructions'."
    return Refused(400, "not_served", text, param=param)


def _check_tools(top: dict[str, msgspec.Raw], rules: BodyRules, parts: Parts) -> Generator[None, None, None]:
    tools = field(top, "tools", _tools, "an array of objects") or []
    yield from check_each("tools", top, bool(tools))
    if not all(tool.own for tool in tools) and "tools" not in rules.allow_fields:
        found = next((tool.type for tool in tools if not tool.own and tool.type.replace("_", "").isalnum()), "")
        shown = f"turn off {found[:64]}, and " if found else ""
        raise unpriced("tools", f"{shown}send tools that you run yourself, of the types {', '.join(sorted(OWN_TOOLS))}")
    for name in AS_JSON.intersection(top):
        parts.text += yield from rewritten(top[name])
    parts.text += TOOLS_ALLOWANCE if tools else 0


def _count_items(items: list[msgspec.Raw], parts: Parts, any_type: bool, level: int = 1) -> Generator[None, None, None]:
    """Count items and parts, and those inside of them. Raises `Refused`, also for types that are not known but for `any_type`."""
    parts.check_level("input", level)
    for number, raw in enumerate(items, 1):
        try:
            check_keys("input", raw)
            item = _item.decode(raw)
            values = (item.content, item.output, item.summary)
            nested = [_raws.decode(value) for value in values if bytes(memoryview(value)[:1]) == b"["]
        except (msgspec.DecodeError, RecursionError) as error:
            raise invalid_field("input", f"'input' has an item that is not valid: {error}.") from None
        if item.type == REFERENCE or (not item.type and item.content is ABSENT):
            if not item.id:
                raise invalid_field("input", f"'input' has an `{REFERENCE}` without 'id'.")
            parts.refer(item.id)
            continue
        empty = item.type in ENCRYPTED and not (_is_given(item.encrypted_content) or _is_given(item.content))
        if item.id and (empty or (item.type in ("", "message") and not _is_given(item.content))):
            parts.refer(item.id)
        if item.type not in (*KINDS, *TEXTS) and not any_type:
            raise unpriced("input", f"send items and parts of the types {KNOWN_TYPES}")
        kind = KINDS.get(item.type)
        if kind is not None:
            parts.add(kind, _encoded_bytes(item, kind))
        elif item.type not in TEXTS:
            parts.add(IMAGE)  # it is not known what it is
        if item.type in CALLS or item.type.endswith("_output") or item.type not in (*KINDS, *TEXTS):
            parts.text += yield from rewritten(raw)
        for inner in nested:
            yield from _count_items(inner, parts, any_type, level + 1)
        if number % SOME == 0 or len(memoryview(raw)) > WINDOW:
            yield


def _is_given(value: msgspec.Raw) -> bool:
    """Return whether a value has more than the marks of JSON: without, an upstream may look for what the item's id names."""
    return _EMPTY.fullmatch(memoryview(value)) is None


def _encoded_bytes(item: _Item, kind: int) -> int:
    """Return how many bytes of a part only a decoder can read."""
    if kind == SOUND:
        return len(memoryview(item.input_audio.data)) if item.input_audio and item.input_audio.data is not ABSENT else 0
    value = memoryview(getattr(item, ENCODED[item.type]))
    return len(value) if bytes(value[: len(DATA[kind])]) == DATA[kind] and DATA_URL.match(value) else 0
