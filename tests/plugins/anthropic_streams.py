"""Streams of Anthropic's Messages, event by event in the order and the shape of its documentation, with what they cost."""

from __future__ import annotations

import json
from typing import Any, Final

START: Final[dict[str, Any]] = {
    "id": "msg_01Abc",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-4-5-20250929",
    "content": [],
    "stop_reason": None,
    "stop_sequence": None,
}
PING: Final = {"type": "ping"}
STOP: Final = {"type": "message_stop"}


def event(data: dict[str, Any]) -> bytes:
    """Return an event as it is on the wire."""
    return f"event: {data['type']}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


def start(**usage: Any) -> dict[str, Any]:
    """Return the first event."""
    told = {"input_tokens": 25, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 1}
    return {"type": "message_start", "message": {**START, "usage": {**told, "service_tier": "standard", **usage}}}


def block(index: int, content: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events of one content block."""
    return [
        {"type": "content_block_start", "index": index, "content_block": content},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def text(index: int, *pieces: str) -> list[dict[str, Any]]:
    """Return the events of a text."""
    return block(index, {"type": "text", "text": ""}, *({"type": "text_delta", "text": piece} for piece in pieces))


def tool(index: int, name: str, *pieces: str) -> list[dict[str, Any]]:
    """Return the events of a call of a tool."""
    content = {"type": "tool_use", "id": f"toolu_{index}", "name": name, "input": {}}
    return block(index, content, *({"type": "input_json_delta", "partial_json": piece} for piece in pieces))


def end(reason: str, *, details: dict[str, Any] | None = None, **usage: Any) -> dict[str, Any]:
    """Return the event with the reason of the end and the usage."""
    delta = {"stop_reason": reason, "stop_sequence": None, **({"stop_details": details} if details else {})}
    return {"type": "message_delta", "delta": delta, "usage": usage}


ERROR: Final = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}, "request_id": "req_1"}

TEXT: Final = [
    start(),
    PING,
    *text(0, "Hello", ", \u201cworld\u201d \U0001f600", "!\n"),
    PING,
    end("end_turn", output_tokens=15),
    STOP,
]
TOOLS: Final = [
    start(input_tokens=472),
    *text(0, "I look", " it up."),
    *tool(1, "weather", "", '{"location":', ' "San Francisco", "un', 'it": "\u00b0C"}'),
    *tool(2, "now", ""),
    end("tool_use", output_tokens=89),
    STOP,
]
THINKING: Final = [
    start(input_tokens=40),
    *block(
        0,
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "thinking_delta", "thinking": "First, 27 * 453"},
        {"type": "thinking_delta", "thinking": " = 12231."},
        {"type": "signature_delta", "signature": "EqQBCgIYAhIM"},
    ),
    *block(1, {"type": "redacted_thinking", "data": "EmwKAhgBEgy3va3p"}),
    *text(2, "It is ", "12231."),
    end("end_turn", output_tokens=60, output_tokens_details={"thinking_tokens": 40}),
    STOP,
]
CACHED: Final = [
    start(
        input_tokens=21,
        cache_creation_input_tokens=1000,
        cache_read_input_tokens=20_000,
        cache_creation={"ephemeral_5m_input_tokens": 1000, "ephemeral_1h_input_tokens": 0},
    ),
    *text(0, "From the cache."),
    end(
        "max_tokens", input_tokens=21, cache_creation_input_tokens=1000, cache_read_input_tokens=20_000, output_tokens=9
    ),
    STOP,
]
REFUSAL: Final = [
    start(),
    *text(0, "I "),
    end("refusal", details={"type": "refusal", "category": "cyber", "explanation": "I cannot help."}, output_tokens=4),
    STOP,
]
EMPTY: Final = [start(), end("end_turn", output_tokens=2), STOP]

STREAMS: Final = {
    "text": TEXT,
    "tools": TOOLS,
    "thinking": THINKING,
    "cached": CACHED,
    "refusal": REFUSAL,
    "empty": EMPTY,
}
"""Whole streams."""

PRICE: Final = {"input": 3, "cached_input": "0.3", "cache_write": "3.75", "output": 15}
MICROS: Final = {
    "text": 25 * 3 + 15 * 15,
    "tools": 472 * 3 + 89 * 15,
    "thinking": 40 * 3 + 60 * 15,
    "cached": 21 * 3 + 3750 + 6000 + 9 * 15,
    "refusal": 25 * 3 + 4 * 15,
    "empty": 25 * 3 + 2 * 15,
}
"""What each costs, by hand."""


def wire(events: list[dict[str, Any]]) -> bytes:
    """Return the bytes of a stream."""
    return b"".join(map(event, events))
