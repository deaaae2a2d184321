"""Streams of Anthropic's Messages that have more, less or other things in them than its documentation shows."""

from __future__ import annotations

from typing import Any, Final

from tests.plugins.anthropic_streams import (
    ERROR,
    PING,
    STOP,
    STREAMS,
    TEXT,
    TOOLS,
    block,
    end,
    event,
    start,
    text,
    tool,
    wire,
)

Events = list[dict[str, Any]]
END: Final = end("end_turn", output_tokens=15)
LATER: Final = {"type": "later", "index": 0, "delta": {"type": "text_delta", "text": "no"}, "message": 7, "usage": [1]}
CITATION: Final = {"type": "char_location", "cited_text": "x", "document_index": 0, "start_char_index": 0}
USE: Final = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
FOUND: Final = {
    "type": "web_search_result",
    "url": "https://h/",
    "title": "T",
    "encrypted_content": "e",
    "page_age": None,
}
RESULT: Final = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [FOUND]}
FAILED: Final = {**RESULT, "content": {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"}}

RUN: Final = {"type": "code_execution_result", "stdout": "1", "stderr": "", "return_code": 0, "content": []}


def query(index: int) -> Events:
    """Return the events of a search that the upstream runs itself."""
    asked = {"type": "input_json_delta", "partial_json": '{"query": "x"}'}
    return [*block(index, USE, asked), *block(index + 1, RESULT)]


def whole(*content: dict[str, Any], reason: str = "end_turn", **usage: Any) -> Events:
    """Return a message with some events between its start and its end."""
    return [start(), *content, end(reason, **{"output_tokens": 15, **usage}), STOP]


def said(delta: dict[str, Any]) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": 0, "delta": delta}


HELLO: Final = text(0, "Hello", " you")
WORD: Final = {"type": "text_delta", "text": "Hello"}
EMPTY: Final = {"type": "text", "text": ""}
THOUGHT: Final = {"type": "thinking", "thinking": "", "signature": ""}

SAME: Final[dict[str, bytes]] = {
    **{name: wire(events) for name, events in STREAMS.items()},
    "an event that is not known": wire([LATER, start(), LATER, *HELLO, LATER, END, LATER, STOP, LATER]),
    "a block that is not known": wire(whole(*block(0, {"type": "later", "text": "no"}, WORD), *text(1, "Hello"))),
    "a delta that is not known": wire(whole(*block(0, EMPTY, {"type": "later_delta", "text": "no"}, WORD))),
    "deltas of another block's type": wire(
        whole(
            *block(
                0,
                EMPTY,
                WORD,
                {"type": "input_json_delta", "partial_json": "{"},
                {"type": "thinking_delta", "thinking": "no"},
            ),
            *block(1, THOUGHT, WORD, {"type": "signature_delta", "signature": "s"}),
        )
    ),
    "pings everywhere": wire([PING, *(each for event_ in TEXT for each in (event_, PING))]),
    "a search of the upstream's own": wire(
        whole(*text(0, "I search."), *query(1), *text(3, "It is ", "x."), server_tool_use={"web_search_requests": 1})
    ),
    "a search that fails": wire(whole(*block(0, USE), *block(1, FAILED), *text(2, "Hello"))),
    "tools of all kinds": wire(
        whole(
            *query(0),
            *tool(2, "weather", '{"a": 1}'),
            *block(3, {"type": "code_execution_tool_result", "tool_use_id": "s", "content": RUN}),
            *block(
                4,
                {"type": "mcp_tool_use", "id": "m", "name": "n", "input": {}},
                {"type": "input_json_delta", "partial_json": "{}"},
            ),
            *tool(5, "now"),
            reason="tool_use",
        )
    ),
    "citations": wire(
        whole(*block(0, {**EMPTY, "citations": None}, WORD, {"type": "citations_delta", "citation": CITATION}, WORD))
    ),
    "several signatures": wire(
        whole(
            *block(
                0,
                THOUGHT,
                {"type": "thinking_delta", "thinking": "Hm"},
                {"type": "signature_delta", "signature": "one"},
                {"type": "signature_delta", "signature": "two"},
            ),
            *text(1, "Hello"),
        )
    ),
    "a signature without thinking": wire(
        whole(*block(0, THOUGHT, {"type": "signature_delta", "signature": "s"}), *text(1, "Hello"))
    ),
    "two redacted thoughts": wire(
        whole(
            *block(0, {"type": "redacted_thinking", "data": "a"}),
            *block(1, {"type": "redacted_thinking", "data": "b"}),
            *text(2, "Hello"),
        )
    ),
    "two texts": wire(whole(*text(0, "One."), *text(1, " Two."))),
    "text at the start of a block": wire(
        whole(*block(0, {"type": "text", "text": "Hello"}, {"type": "text_delta", "text": " you"}))
    ),
    "blocks at the same time": wire(
        whole(
            *text(0, "One")[:2],
            *tool(1, "f", '{"a"')[:2],
            *text(0, "two")[1:],
            *tool(1, "f", ": 2}")[1:],
            reason="tool_use",
        )
    ),
    "blocks that do not stop": wire(
        whole(*text(0, "One")[:-1], *tool(1, "f", '{"a":1}')[:-1], *tool(2, "g")[:-1], reason="tool_use")
    ),
    "text after its block": wire(whole(*HELLO, said(WORD))),
    "the start twice": wire([start(), start(input_tokens=9), *HELLO, start(output_tokens=900), END, STOP]),
    "output that adds up": wire(
        [start(), *HELLO, end("end_turn", output_tokens=7), end("end_turn", output_tokens=15), STOP]
    ),
    "a reason that comes later": wire(
        [start(), *HELLO, {**end("x", output_tokens=7), "delta": {"stop_reason": None}}, END, STOP]
    ),
    "a reason that is not known": wire(whole(*HELLO, reason="later")),
    "a pause": wire(whole(*HELLO, reason="pause_turn")),
    "a full window": wire(whole(*HELLO, reason="model_context_window_exceeded")),
    "no message_stop": wire(whole(*HELLO)[:-1]),
    "fields that are not known": wire(
        [
            {**each, "later": {"error": "no"}, "delta": {**each["delta"], "x": [1]}} if "delta" in each else each
            for each in TEXT
        ]
    ),
    "a tool with its input at once": wire(
        whole(
            *block(0, {"type": "tool_use", "id": "t", "name": "f", "input": {"a": [1.5, "\u00e9"]}}), reason="tool_use"
        )
    ),
    "an input of small pieces": wire(
        whole(*tool(0, "f", "", *'{"a": "\\u00e9\\n \U0001f600", "b": 12345678901234567890123}', ""), reason="tool_use")
    ),
    "empty deltas": wire(whole(*text(0, "", "Hello", ""), *tool(1, "f", "", ""), reason="tool_use")),
    "nulls in the usage": wire(
        [
            start(cache_creation_input_tokens=None, cache_read_input_tokens=None, server_tool_use=None),
            *HELLO,
            end("end_turn", input_tokens=None, output_tokens=15, cache_read_input_tokens=None),
            STOP,
        ]
    ),
    "more in the usage": wire(
        whole(
            *HELLO,
            service_tier="batch",
            iterations=[{"input_tokens": 9}],
            later={"output_tokens": 1},
            inference_geo=None,
        )
    ),
    "half characters": wire(whole(*HELLO)).replace(b"Hello", b"\\ud83d").replace(b" you", b"\\ude00!"),
    "line ends of two characters": wire(TOOLS).replace(b"\n", b"\r\n"),
    "line ends of a carriage return": wire(TOOLS).replace(b"\n", b"\r"),
    "comments and a byte order mark": b"\xef\xbb\xbf"
    + wire(TEXT).replace(b"event:", b": keep-alive\n\nid: 7\nretry: 1\nevent:"),
    "data on several lines": wire(TEXT).replace(b'"index":', b'\ndata: "index":').replace(b"data: {", b"data:{"),
    "the same key twice": wire(TEXT).replace(b'"output_tokens": 15', b'"output_tokens": 7, "output_tokens": 15'),
}
"""Streams of which Anthropic's own client reads a whole message, and ours is to be the same."""

USED: Final = 15 * 15
"""What 15 tokens of output cost."""


class Odd(dict[str, Any]):
    """`data`: a stream; `text`, `finish_reason`, and `usage`: the prompt's and the output's tokens, None for what is estimated."""


def odd(events: Events | bytes, *usage: int | None, text: str = "Hello you", finish_reason: str = "stop") -> Odd:
    data = events if isinstance(events, bytes) else wire(events)
    return Odd(data=data, usage=usage or (25, 15), text=text, finish_reason=finish_reason)


def ended(**usage: Any) -> Events:
    return [start(), *HELLO, end("end_turn", **usage), STOP]


START_OF: Final = start()
DELTA: Final = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}
LOOSE: Final[dict[str, Odd]] = {
    "nulls in blocks and deltas": odd(
        whole(
            *block(0, {"type": "text", "text": None}, {"type": "text_delta", "text": None}, WORD),
            *block(
                1,
                {"type": "tool_use", "id": None, "name": None, "input": None},
                {"type": "input_json_delta", "partial_json": None},
            ),
            {"type": "content_block_start", "index": None, "content_block": None},
            {"type": "content_block_delta", "index": None, "delta": None},
            {"type": "content_block_stop", "index": None},
            {"type": "message_start", "message": None},
        ),
        text="Hello",
    ),
    "other types than they should have": odd(
        [
            {"type": "message_start", "message": [1]},
            {**START_OF, "message": {**START_OF["message"], "id": 7, "model": None}},
            *block(0, EMPTY, {"type": "text_delta", "text": 7}, {"type": 7}, WORD),
            {"type": "content_block_start", "content_block": "x"},
            {"type": "content_block_delta", "index": {}, "delta": [2]},
            {**END, "delta": {"stop_reason": 9, "stop_details": "x"}},
            STOP,
        ],
        text="Hello",
    ),
    "no index": odd([{name: each[name] for name in each if name != "index"} for each in whole(*HELLO)]),
    "no start of a block": odd(whole(*HELLO[1:])),
    "no reason": odd([start(), *HELLO, {**END, "delta": {"stop_reason": None}}, STOP]),
    "no delta at the end": odd([start(), *HELLO, {"type": "message_delta", "usage": {"output_tokens": 15}}, STOP]),
    "no reason after a call": odd(
        [start(), *tool(0, "f"), {**END, "delta": {}}, STOP], text="", finish_reason="tool_calls"
    ),
    "no usage at the end": odd([start(), *HELLO, DELTA, STOP], None, None),
    "no usage at all": odd(
        [{"type": "message_start", "message": {"id": "msg_01Abc"}}, *HELLO, DELTA, STOP], None, None
    ),
    "no output in the last usage": odd(ended(input_tokens=25), 25, None),
    "null for the usage": odd([start(), *HELLO, {**DELTA, "usage": None}, STOP], None, None),
    "a text for the usage": odd([start(), *HELLO, {**DELTA, "usage": "15"}, STOP], None, None),
    "texts in the usage": odd(ended(output_tokens="15"), None, None),
    "a negative output": odd(ended(output_tokens=-15), None, None),
    "a negative part of the prompt": odd(ended(cache_read_input_tokens=-15, output_tokens=15), None, 15),
    "fractions": odd(ended(input_tokens=24.5, output_tokens=14.2)),
    "a huge output": odd(ended(output_tokens=10**30), None, None),
    "a number that is none": odd(wire(ended(output_tokens=15)).replace(b": 15", b": 1e999"), None, None),
    "a usage with thousands of names": odd(ended(output_tokens=15, **{f"n{number}": "x" for number in range(1000)})),
    "usage beside a text": odd([start(), {**HELLO[0], "usage": {"output_tokens": 99}}, *HELLO[1:], END, STOP]),
    "usage in the last event": odd([start(), *HELLO, DELTA, {**STOP, "usage": {"output_tokens": 15}}]),
    "an unknown event that is no JSON": odd(
        b"event: later\ndata: {]\n\nevent: later\ndata: \xff\n\n" + wire(ended(output_tokens=15))
    ),
    "a ping that is no JSON": odd(b"event: ping\ndata: \xff\n\nevent: ping\n\n" + wire(ended(output_tokens=15))),
    "no names of events": odd(b"".join(event(each).partition(b"\n")[2] for each in ended(output_tokens=15))),
    "no types in events": odd(
        b"".join(event(each).replace(b'{"type"', b'{"kind"', 1) for each in ended(output_tokens=15))
    ),
    "an error that is none": odd([{**each, "error": None} for each in ended(output_tokens=15)]),
    "an error after the end": odd([*ended(output_tokens=15), ERROR]),
}
"""Streams that Anthropic's own client fails at, or of which it reads less."""


def named(data: bytes) -> bytes:
    return b"event: error\ndata: " + data + b"\n\n"


ERRORS: Final[dict[str, tuple[bytes, str]]] = {
    "the documented one": (event(ERROR), "Overloaded"),
    "a text": (event({"type": "error", "error": "Overloaded"}), "Overloaded"),
    "without a type": (named(b'{"error": {"message": "Overloaded"}}'), "Overloaded"),
    "a message alone": (named(b'{"message": "Overloaded"}'), "Overloaded"),
    "of another type": (named(b'{"type": "later", "error": "Overloaded"}'), "Overloaded"),
    "nested twice": (named(b'{"type": "error", "error": {"type": "error", "error": {"message": "Overloaded"}}}'), "Overloaded"),
    "nested without an end": (named(b'{"error":' * 50_000 + b"1" + b"}" * 50_000), "no reason given"),
    "no JSON": (named(b"Overloaded"), "Overloaded"),
    "JSON that is a text": (named(b'"Overloaded"'), "Overloaded"),
    "a list": (named(b'[{"error": {"message": "Overloaded"}}]'), "Overloaded"),
    "without a message": (named(b'{"type": "error", "error": {"type": "overloaded_error"}}'), "no reason given"),
    "nulls": (named(b'{"type": "error", "error": {"type": null, "message": null}}'), "no reason given"),
    "an error of null": (named(b'{"type": "error", "error": null}'), "no reason given"),
    "numbers": (named(b'{"type": "error", "error": {"type": 5, "message": 7}}'), "no reason given"),
    "without a name": (event(ERROR).partition(b"\n")[2], "Overloaded"),
    "in an event of its own": (event({"type": "later", "error": {"message": "Overloaded"}}), "Overloaded"),
}  # fmt: skip
"""Errors as events, and what they say."""
