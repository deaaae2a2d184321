"""What a complete JSON response says."""

from __future__ import annotations

import json

import pytest

from gateway.chat.answers import Response
from gateway.chat.usage import ReportedUsage, Usage


@pytest.mark.parametrize("body", ["[]", "5", "{}", '{"choices":null}', '{"choices":{}}'])
def test_what_has_no_choices_is_no_response(body: str) -> None:
    assert Response.read(body.encode()) is None


@pytest.mark.parametrize("body", ["", "{", "[" * 9999, "\ud7ff", '{"choices":[]'])
def test_what_cannot_be_decoded_is_an_error(body: str) -> None:
    with pytest.raises(ValueError):
        Response.read(body.encode())


@pytest.mark.parametrize("value", [b'"\\ud83d"', b"-Infinity", b"NaN", b"1e400", b'"\xff"', b'"\xed\xa0\x80"'])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_what_the_decoders_of_clients_read_is_passed_on_and_read(value: bytes, mark: bytes) -> None:
    body = b'{"choices":[{"logprob":%b}],"usage":{"prompt_tokens":7,"completion_tokens":11}}' % value
    response = Response.read(mark + body)
    assert response is not None
    assert response.text == mark + body
    assert response.usage.usage(lambda: 0, lambda: 0) == Usage(7, 11, "upstream", answers=1)


def test_an_error_is_one_whatever_the_status() -> None:
    response = Response.read(b'{"error":"no"}')
    assert response is not None
    assert response.error


def test_the_text_of_the_message_is_estimated_and_nothing_else() -> None:
    message = {
        "role": "assistant",
        "content": "x" * 40,
        "reasoning_content": "y" * 40,
        "tool_calls": [{"id": "c" * 99, "type": "function", "function": {"name": "f" * 20, "arguments": "a" * 20}}],
    }
    body = {"id": "z" * 400, "choices": [{"index": 0, "message": message}, {"index": 1, "message": message}]}
    response = Response.read(json.dumps(body).encode())
    assert response is not None
    assert response.estimate_output() == 60
    assert response.usage == ReportedUsage()


def test_its_usage_is_final() -> None:
    response = Response.read(b'{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":11}}')
    assert response is not None
    assert response.usage.usage(lambda: 0, lambda: 0) == Usage(7, 11, "upstream", answers=1)
