"""What is read of single events, besides what the parser of a stream shows."""

from __future__ import annotations

import pytest

from gateway.chat.sse import completion_id, id_text, read

ROLE = b'"choices":[{"index":0,"delta":{"role":"assistant"},"finish_reason":null}]'
CALL = b'"choices":[{"delta":{"tool_calls":[{"id":"call_1"}]}}]'


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        (b'data: {"id":"chatcmpl-1",' + ROLE + b"}\n\n", "chatcmpl-1"),
        (b'data:{"id":"chatcmpl-1",' + ROLE + b"}\n\n", "chatcmpl-1"),
        (b'data: {"object":"x", "id": "gen-1-Ab", ' + ROLE + b"}\n\n", "gen-1-Ab"),
        (b"data: {" + CALL + b',"id":"chatcmpl-2"}\n\n', "chatcmpl-2"),
        (b": OPENROUTER PROCESSING\n\n" + b'data: {"id":"gen-2",' + ROLE + b"}\n\n", "gen-2"),
        (b'data: {"id":"a",' + ROLE + b'}\n\ndata: {"id":"b",' + ROLE + b"}\n\n", "a"),
        (b'event: x\r\ndata: {"id":"crlf",' + ROLE + b"}\r\n\r\n", "crlf"),
        (b"data: {" + CALL + b"}\n\n", ""),
        (b'data: {"id":"",' + ROLE + b"}\n\n", ""),
        (b'data: {"id":7,' + ROLE + b"}\n\n", ""),
        (b'data: {"id":null,' + ROLE + b"}\n\n", ""),
        (b'data: {"id":"' + b"x" * 129 + b'",' + ROLE + b"}\n\n", ""),
        (b'data: {"id":"a b",' + ROLE + b"}\n\n", ""),
        (b'data: {"id":"\\u0000",' + ROLE + b"}\n\n", ""),
        ('data: {"id":"ü",'.encode() + ROLE + b"}\n\n", ""),
        (b"data: [DONE]\n\n", ""),
        (b"data: {\n\n", ""),
        (b": nothing\n\n", ""),
        (b"", ""),
    ],
)
def test_the_id_of_a_completion_is_read_from_its_first_event(events: bytes, expected: str) -> None:
    assert completion_id(events) == expected


@pytest.mark.parametrize(
    ("data", "empty", "only_usage"),
    [
        (b'{"choices":[],"created":0,"id":"","model":"","object":"","prompt_filter_results":[]}', True, False),
        (b'{"id":"c","choices":[]}', True, False),
        (b'{"choices": [ ]}', True, False),
        (b'{"choices":null}', True, False),
        (b'{"id":"c"}', True, False),
        (b'{"choices":[],"usage":null}', True, False),
        (b'{"choices":[],"usage":{}}', True, True),
        (b'{"choices":[],"x_groq":{"usage":{"prompt_tokens":1,"completion_tokens":1}}}', True, True),
        (b'{"choices":[],"usage":{"prompt_tokens":1}}', True, True),
        (b'{"delta":{},"usage":{"prompt_tokens":1}}', False, False),
        (b'{"choices":[{}],"usage":{"prompt_tokens":1}}', False, False),
        (b'{"choices":[null]}', False, False),
        (b'{"choices":{}}', False, False),
        (b"[]", False, False),
        (b"nonsense", False, False),
        (b"{" + ROLE + b"}", False, False),
        (b'{"choices": [{"delta":{"content":"a"}}]}', False, False),
    ],
)
def test_a_chunk_without_a_choice_is_empty(data: bytes, empty: bool, only_usage: bool) -> None:
    chunk = read(b"", data)
    assert (chunk.empty, chunk.only_usage) == (empty, only_usage)


def test_an_event_that_is_parsed_has_its_id_in_json() -> None:
    chunk = read(b"", b'{"id":"c-1","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}')
    assert id_text(chunk.id) == "c-1"
    assert id_text(read(b"", b'{"choices":[{"finish_reason":"stop"}]}').id) == ""
