"""The events of Anthropic's Messages, read as deltas of a chat completion.

- Text is `content`. Thinking is `reasoning_content`, and the same in `thinking_blocks`, which has the signature of each block at
  its end: a caller sends the blocks back in its next request.
- Each `tool_use` is a call in `tool_calls`. One without an input has the arguments `{}`.
- The usage counts the tokens that were read from the cache or written to it as part of the prompt, as OpenAI does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
"""A reason that is not known counts as `stop`."""

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


class _Block(msgspec.Struct):
    type: str = ""
    text: str = ""
    thinking: str = ""
    signature: str = ""
    data: str = ""
    id: str = ""
    name: str = ""
    input: msgspec.Raw = msgspec.Raw(b"{}")


class _StopDetails(msgspec.Struct):
    explanation: str | None = None


class _Delta(msgspec.Struct):
    type: str = ""
    text: str = ""
    partial_json: str = ""
    thinking: str = ""
    signature: str = ""
    stop_reason: str | None = None
    stop_details: _StopDetails | None = None


class _Message(msgspec.Struct):
    id: str = ""
    model: str = ""
    usage: dict[str, Any] | None = None


class _Error(msgspec.Struct):
    type: str = "api_error"
    message: str = ""


class _Event(msgspec.Struct):
    type: str
    index: int = 0
    message: _Message | None = None
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: dict[str, Any] | None = None
    error: _Error | None = None


class _Open(msgspec.Struct):
    """A content block that is not complete. `call`: the index of a tool's call. `written`: its arguments have begun."""

    block: _Block
    call: int = 0
    written: bool = False


_event: Final = msgspec.json.Decoder(_Event)


class MessageReader(AnswerReader):
    """Reads the events of one message."""

    def __init__(self) -> None:
        self._open: dict[int, _Open] = {}
        self._calls = 0
        self._usage: dict[str, Any] = {}

    def read(self, name: str, data: bytes) -> Iterator[AnswerDelta]:
        """Return what an event adds. Pings, and what is not known, add nothing."""
        event = _event.decode(data)
        if event.type == "error" or event.error is not None:
            yield _error(event.error or _Error())
        elif event.type == "content_block_delta" and event.delta is not None:
            yield from self._add(event.index, event.delta)
        elif event.type == "content_block_start" and event.content_block is not None:
            yield from self._start(event.index, event.content_block)
        elif event.type == "content_block_stop":
            yield from self._stop(event.index)
        elif event.type == "message_start" and event.message is not None:
            yield AnswerDelta(id=event.message.id, model=event.message.model, **self._used(event.message.usage))
        elif event.type == "message_delta":
            yield from self._finish(event)
        elif event.type == "message_stop":
            yield AnswerDelta(done=True)

    def _start(self, index: int, block: _Block) -> Iterator[AnswerDelta]:
        opened = self._open[index] = _Open(block)
        if block.type == "tool_use":
            opened.call, self._calls = self._calls, self._calls + 1
            function = {"name": block.name, "arguments": ""}
            yield _called({"index": opened.call, "id": block.id, "type": "function", "function": function})
        elif block.type == "text" and block.text:
            yield AnswerDelta(message={"content": block.text})
        elif block.type == "thinking" and block.thinking:
            yield _thought(index, block.thinking)

    def _add(self, index: int, delta: _Delta) -> Iterator[AnswerDelta]:
        opened = self._open.get(index)
        if opened is None:
            return
        block = opened.block
        if delta.type == "text_delta" and block.type == "text" and delta.text:
            yield AnswerDelta(message={"content": delta.text})
        elif delta.type == "input_json_delta" and block.type == "tool_use" and delta.partial_json:
            opened.written = True
            yield _called({"index": opened.call, "function": {"arguments": delta.partial_json}})
        elif delta.type == "thinking_delta" and block.type == "thinking" and delta.thinking:
            yield _thought(index, delta.thinking)
        elif delta.type == "signature_delta" and block.type == "thinking":
            block.signature = delta.signature

    def _stop(self, index: int) -> Iterator[AnswerDelta]:
        opened = self._open.pop(index, None)
        if opened is None:
            return
        block = opened.block
        if block.type == "tool_use" and not opened.written:
            yield _called({"index": opened.call, "function": {"arguments": bytes(block.input).decode()}})
        elif block.type == "thinking" and block.signature:
            signed = {"index": index, "type": block.type, "signature": block.signature}
            yield AnswerDelta(message={"thinking_blocks": [signed]})
        elif block.type == "redacted_thinking":
            yield AnswerDelta(message={"thinking_blocks": [{"index": index, "type": block.type, "data": block.data}]})

    def _finish(self, event: _Event) -> Iterator[AnswerDelta]:
        delta = event.delta or _Delta()
        details = delta.stop_details
        refusal = {"refusal": details.explanation} if details is not None and details.explanation else {}
        reason = FINISH_REASONS.get(delta.stop_reason, "stop") if delta.stop_reason else ""
        yield AnswerDelta(message=refusal, finish_reason=reason, **self._used(event.usage))

    def _used(self, told: dict[str, Any] | None) -> dict[str, Any]:
        """Return the usage that is known by now. Each report has totals, and leaves out what has not changed."""
        self._usage.update({name: value for name, value in (told or {}).items() if value is not None})
        return {"usage": _in_common_shape(self._usage), "reported": msgspec.json.encode(self._usage)} if told else {}


def _called(call: dict[str, Any]) -> AnswerDelta:
    return AnswerDelta(message={"tool_calls": [call]})


def _thought(index: int, text: str) -> AnswerDelta:
    part = {"index": index, "type": "thinking", "thinking": text}
    return AnswerDelta(message={"reasoning_content": text, "thinking_blocks": [part]})


def _error(error: _Error) -> AnswerDelta:
    said = {"message": error.message, "type": error.type, "code": error.type}
    return AnswerDelta(error=said, status=STATUSES.get(error.type, 500))


def _in_common_shape(told: Mapping[str, Any]) -> dict[str, Any]:
    read, written = _count(told, "cache_read_input_tokens"), _count(told, "cache_creation_input_tokens")
    prompt, completion = _count(told, "input_tokens") + read + written, _count(told, "output_tokens")
    usage: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": read, "cache_write_tokens": written},
    }
    details = told.get("output_tokens_details")
    if isinstance(details, dict) and (thinking := _count(details, "thinking_tokens")):
        usage["completion_tokens_details"] = {"reasoning_tokens": thinking}
    return usage


def _count(told: Mapping[str, Any], name: str) -> int:
    value = told.get(name)
    return value if type(value) is int and value > 0 else 0
