"""The events of Anthropic's Messages, read as deltas of a chat completion.

- Text is `content`. Thinking is `reasoning_content`, and the same in `thinking_blocks`, which has the signature of each block at
  its end: a caller sends the blocks back in its next request.
- Each `tool_use` is a call in `tool_calls`. One without an input has the arguments `{}`.
- Anthropic adds events, blocks, deltas and fields as it likes: what is not known, or has another type, is passed over. So are the
  blocks of tools that Anthropic runs itself, and citations.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from gateway import AnswerDelta, AnswerReader
from plugins.anthropic_errors import error_delta
from plugins.anthropic_usage import MessageUsage

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
