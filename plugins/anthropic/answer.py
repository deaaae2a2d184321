"""The events of Anthropic's Messages, read as deltas of a chat completion, with its usage and its errors.

- Text is `content`. Thinking is `reasoning_content`, and the same in `thinking_blocks`, which has the signature of each block at
  its end: a caller sends the blocks back in its next request.
- Each `tool_use` is a call in `tool_calls`. One without an input has the arguments `{}`.
- Anthropic adds events, blocks, deltas and fields as it likes: what is not known, or has another type, is passed over. So are the
  blocks of tools that Anthropic runs itself, and citations.
- Tokens of the prompt that were read from the cache or written to it count as part of it, as OpenAI counts them.
- Each report of usage has totals, and leaves out numbers that have not changed. The output in `message_start` is the number of
  tokens at that moment, not a part of the total.
- A number that is no count (negative, a text, beyond 2^40) makes its side of the usage unknown, and the gateway takes no side of it
  as certain. A fraction counts as the next whole number.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from math import ceil
from typing import Any, Final

import msgspec

from gateway import AnswerDelta, AnswerReader

FINISH_REASONS: Final[Mapping[str, str]] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
"""A reason that is not known counts as `tool_calls` where there was a call, else as `stop`."""
KNOWN: Final = frozenset(
    (
        *("message_start", "message_delta", "message_stop", "error"),
        *("content_block_start", "content_block_delta", "content_block_stop"),
    )
)
BLOCKS: Final[Mapping[str, str]] = {"text_delta": "text", "thinking_delta": "thinking"}
"""Deltas that say enough without the start of their block, and the type of it."""
MAX_OPEN: Final = 1000
"""Blocks that may be incomplete at a time. Anthropic sends one after another."""
READ: Final = "cache_read_input_tokens"
WRITTEN: Final = "cache_creation_input_tokens"
COUNTS: Final = ("input_tokens", READ, WRITTEN, "output_tokens")
MAX_COUNT: Final = 1 << 40
UNKNOWN: Final = -1
MAX_REPORT: Final = 4096
"""Bytes of a report that is kept as it came. Of a larger one the counts alone are."""
STATUSES: Final[Mapping[str, int]] = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""The status that a response with an error of a type has; in a stream there is none."""
MAX_DEPTH: Final = 8
MAX_MESSAGE: Final = 2000


class _Event(msgspec.Struct):
    type: Any = None
    index: Any = 0
    message: Any = None
    content_block: Any = None
    delta: Any = None
    usage: Any = None
    error: Any = None


class _Open(msgspec.Struct):
    """A content block that is not complete. `call`: the index of a tool's call. `written`: its arguments have begun."""

    type: str
    call: int = 0
    arguments: str = "{}"
    written: bool = False
    signature: str = ""
    data: str = ""


_decoder: Final = msgspec.json.Decoder(_Event)


class MessageReader(AnswerReader):
    """Reads the events of one message."""

    def __init__(self) -> None:
        self._open: dict[int, _Open] = {}
        self._calls = 0
        self._begun = self._ending = self._finished = False
        self._usage = MessageUsage()

    def read(self, name: str, data: bytes) -> Iterator[AnswerDelta]:
        """Return what an event adds. Pings, and what is not known, add nothing.

        Raises `ValueError` for a known event that is not JSON, and for one without a type: it is of another API.
        """
        if name == "ping":
            return
        if name == "error":
            yield error_delta(data)
            return
        try:
            event = _decoded(data)
        except ValueError:
            if name in KNOWN or not name:
                raise
            return
        kind = event.type if isinstance(event.type, str) else name
        if not kind:
            raise ValueError("an event without a type")
        if kind == "error" or event.error:
            yield error_delta(data)
        elif kind in KNOWN:
            yield from self._read(kind, event)

    def _read(self, kind: str, event: _Event) -> Iterator[AnswerDelta]:
        index = event.index if isinstance(event.index, int) else 0
        if kind == "content_block_delta":
            yield from self._add(index, _fields(event.delta))
        elif kind == "content_block_start":
            yield from self._start(index, _fields(event.content_block))
        elif kind == "content_block_stop":
            yield from self._stop(index)
        elif kind == "message_start":
            yield from self._begin(_fields(event.message))
        elif kind == "message_delta":
            yield from self._finish(_fields(event.delta))
        if event.usage:
            yield AnswerDelta(**self._usage.told(event.usage))
        if kind == "message_stop":
            unsaid = self._ending and not self._finished
            yield AnswerDelta(finish_reason=self._reason("") if unsaid else "", done=True)

    def _begin(self, message: Mapping[str, Any]) -> Iterator[AnswerDelta]:
        if message and not self._begun:
            self._begun = True
            used = self._usage.begun(message.get("usage"))
            yield AnswerDelta(id=_text(message, "id"), model=_text(message, "model"), **used)

    def _start(self, index: int, block: Mapping[str, Any]) -> Iterator[AnswerDelta]:
        if not block:
            return
        opened = self._open[index] = _Open(_text(block, "type"))
        if len(self._open) > MAX_OPEN:
            raise ValueError("too many incomplete blocks")
        if opened.type == "tool_use":
            opened.call, self._calls = self._calls, self._calls + 1
            if isinstance(block.get("input"), dict):
                opened.arguments = _json(block["input"])
            function = {"name": _text(block, "name"), "arguments": ""}
            yield _called({"index": opened.call, "id": _text(block, "id"), "type": "function", "function": function})
        elif opened.type == "text" and (text := _text(block, "text")):
            yield AnswerDelta(message={"content": text})
        elif opened.type == "thinking":
            opened.signature = _text(block, "signature")
            if thought := _text(block, "thinking"):
                yield _thought(index, thought)
        elif opened.type == "redacted_thinking":
            opened.data = _text(block, "data")

    def _add(self, index: int, delta: Mapping[str, Any]) -> Iterator[AnswerDelta]:
        kind, opened = _text(delta, "type"), self._open.get(index)
        block = opened.type if opened is not None else BLOCKS.get(kind)
        if kind == "text_delta" and block == "text" and (text := _text(delta, "text")):
            yield AnswerDelta(message={"content": text})
        elif kind == "thinking_delta" and block == "thinking" and (thought := _text(delta, "thinking")):
            yield _thought(index, thought)
        elif opened is None:
            return
        elif kind == "input_json_delta" and block == "tool_use" and (piece := _text(delta, "partial_json")):
            opened.written = True
            yield _called({"index": opened.call, "function": {"arguments": piece}})
        elif kind == "signature_delta" and block == "thinking":
            opened.signature = _text(delta, "signature")

    def _stop(self, index: int) -> Iterator[AnswerDelta]:
        opened = self._open.pop(index, None)
        if opened is None:
            return
        if opened.type == "tool_use" and not opened.written:
            yield _called({"index": opened.call, "function": {"arguments": opened.arguments}})
        elif opened.type == "thinking" and opened.signature:
            signed = {"index": index, "type": opened.type, "thinking": "", "signature": opened.signature}
            yield AnswerDelta(message={"thinking_blocks": [signed]})
        elif opened.type == "redacted_thinking":
            redacted = {"index": index, "type": opened.type, "data": opened.data}
            yield AnswerDelta(message={"thinking_blocks": [redacted]})

    def _finish(self, delta: Mapping[str, Any]) -> Iterator[AnswerDelta]:
        self._ending = True
        explanation = _text(_fields(delta.get("stop_details")), "explanation")
        reason = self._reason(delta["stop_reason"]) if delta.get("stop_reason") else ""
        self._finished = self._finished or bool(reason)
        for index in list(self._open) if reason else ():
            yield from self._stop(index)
        yield AnswerDelta(message={"refusal": explanation} if explanation else {}, finish_reason=reason)

    def _reason(self, told: object) -> str:
        known = FINISH_REASONS.get(told) if isinstance(told, str) else None
        return known or ("tool_calls" if self._calls else "stop")


def _decoded(data: bytes) -> _Event:
    """Return an event. Raises `ValueError`."""
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError:  # clients accept more: half of a character, for example
        try:
            return msgspec.convert(json.loads(data.decode()), _Event)
        except RecursionError:
            raise ValueError("nested too deeply") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _json(value: object) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        return json.dumps(value)


def _fields(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""


def _called(call: dict[str, Any]) -> AnswerDelta:
    return AnswerDelta(message={"tool_calls": [call]})


def _thought(index: int, text: str) -> AnswerDelta:
    part = {"index": index, "type": "thinking", "thinking": text}
    return AnswerDelta(message={"reasoning_content": text, "thinking_blocks": [part]})


class MessageUsage:
    """The usage that is known of a message by now."""

    def __init__(self) -> None:
        self._told: dict[str, Any] = {}

    def begun(self, told: object) -> dict[str, Any]:
        """Return the usage of a message that has begun, as arguments of a delta."""
        return self.told(told, begun=True)

    def told(self, told: object, *, begun: bool = False) -> dict[str, Any]:
        """Take a further report, and return all that is known, as arguments of a delta."""
        if not isinstance(told, dict):
            return {}
        self._told |= {name: value for name, value in told.items() if value is not None}
        reported = _encoded(self._told)
        if not 0 < len(reported) <= MAX_REPORT:
            self._told = {name: _number(self._told[name]) for name in COUNTS if name in self._told}
            reported = _encoded(self._told)
        if begun:
            self._told.pop("output_tokens", None)
        usage = in_common_shape(self._told)
        return {"usage": usage, "reported": reported} if usage else {}


def in_common_shape(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return a usage as OpenAI writes it, with 0 for a side that is not told, and -1 for one whose numbers are no counts."""
    parts = {name: _count(told.get(name, 0)) for name in COUNTS}
    given, read, written, completion = parts.values()
    prompt = given + read + written if "input_tokens" in told else 0
    if UNKNOWN in (given, read, written):
        prompt = UNKNOWN
    if not (prompt or completion):
        return {}
    usage: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    if prompt > 0:
        usage["prompt_tokens_details"] = {"cached_tokens": read, "cache_write_tokens": written}
    details = told.get("output_tokens_details")
    if isinstance(details, dict) and (thinking := _count(details.get("thinking_tokens"))) > 0:
        usage["completion_tokens_details"] = {"reasoning_tokens": thinking}
    return usage


def _count(value: object) -> int:
    if type(value) is float and 0 <= value <= MAX_COUNT:
        return ceil(value)
    return value if type(value) is int and 0 <= value <= MAX_COUNT else UNKNOWN


def _number(value: object) -> object:
    return value if isinstance(value, int | float) else None


def _encoded(told: Mapping[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(told)
    except (UnicodeEncodeError, RecursionError):  # half of a character
        return b""


def error_delta(data: bytes) -> AnswerDelta:
    """Return what an event with an error says. One that is not JSON is its own message."""
    kind, message = error_of(data)
    if not (message or data.startswith((b"{", b"["))):
        message = data.decode(errors="replace")[:MAX_MESSAGE]
    return AnswerDelta(error={"message": message, "type": kind, "code": kind}, status=STATUSES.get(kind, 500))


def error_of(data: bytes) -> tuple[str, str]:
    """Return the type and the message of an error in JSON. Its type is `api_error`, and its message empty, where it says none."""
    try:
        value = msgspec.json.decode(data)
    except (ValueError, RecursionError):
        value = None
    kind = message = ""
    for _ in range(MAX_DEPTH):
        if isinstance(value, list) and value:
            value = value[0]
        if not isinstance(value, dict):
            break
        kind = _text(value, "type") or kind
        message = _text(value, "message") or _text(value, "detail") or message
        value = value.get("error")
    if isinstance(value, str):
        message = value or message
    return (kind if kind not in ("", "error") else "api_error"), message[:MAX_MESSAGE]
