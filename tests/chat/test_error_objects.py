"""Errors and complete answers of upstreams."""

from __future__ import annotations

import json

import pytest

from gateway.chat import upstream_errors
from gateway.chat.answers import Response
from gateway.chat.usage import ReportedUsage, Usage
from tests.chat.dialects import DIALECTS, MESSAGE, NOT_ERRORS
from tests.chat.test_events import DONE, chunk, event, feed_cut, read, text

# What is an error, in every dialect, and what of it is shown.
LLAMA_FIELD = b'error: {"code":500,"message":"the model fell over","type":"server_error"}\n\n'


@pytest.mark.parametrize("error", ["500", "true", "0.5", "[1]", '"no"', '{"a":1}'])
def test_whatever_the_official_client_raises_on_is_an_error_beside_choices(error: str) -> None:
    data = f'{{"id":"c","error":{error},"choices":[{{"index":0,"delta":{{"content":"a"}}}}]}}'
    stream, relayed = feed_cut(event(data))
    assert stream.error == data.encode() and not (stream.error_relayed or any(relayed))
    assert upstream_errors.details(upstream_errors.decode(stream.error)).get("message", "no") == "no"


@pytest.mark.parametrize(
    "data", ["", "{", "5", '"x"', "null", "[" * 9999, '{"error":{"message":[[]]}}', '{"detail":[[5]]}']
)
def test_any_data_has_details_without_an_exception(data: str) -> None:
    assert "message" not in upstream_errors.details(upstream_errors.decode(data.encode())) or data == '"x"'


@pytest.mark.parametrize("data", NOT_ERRORS.values(), ids=NOT_ERRORS)
@pytest.mark.parametrize("spaced", [False, True])
def test_an_event_that_is_no_error_is_relayed(data: str, spaced: bool) -> None:
    whole = event(data.replace(":", ": ") if spaced else data)
    stream = read(event(text("a")), whole, event(chunk(finish="stop")), DONE)
    assert stream.error is None and stream.complete


@pytest.mark.parametrize(("data", "raises"), DIALECTS.values(), ids=DIALECTS)
@pytest.mark.parametrize("name", ["", "error"])
@pytest.mark.parametrize("spaced", [False, True])
def test_an_error_event_ends_what_is_relayed(data: str, raises: bool, name: str, spaced: bool) -> None:
    failing = event(data.replace('":', '": ') if spaced else data, name)
    body = event(text("a")) + failing + event(text("b")) + event(chunk(finish="stop")) + DONE
    expected = event(text("a")) + (failing if raises else b"")
    for cuts in ((), range(len(body)), (len(event(text("a")) + failing),)):
        stream, relayed = feed_cut(body, *cuts)
        assert b"".join(relayed) == expected
        assert stream.error is not None and stream.error_relayed is raises and not stream.first_error
        assert stream.output.tokens() == 1
        assert stream.concluded
    assert read(failing).first_error if raises else feed_cut(failing)[0].first_error


@pytest.mark.parametrize(
    "failing",
    [
        event("the model fell over", "error"),
        event("", "error"),
        b"event: error\n\n",
        event('{"choices":[]}', "error"),
        LLAMA_FIELD,
    ],
)
def test_an_event_named_error_is_one_whatever_its_data(failing: bytes) -> None:
    stream, relayed = feed_cut(event(text("a")) + failing + DONE)
    assert stream.error is not None and not stream.error_relayed
    assert b"".join(relayed) == event(text("a"))


def test_the_field_error_of_llama_cpp_has_the_error_as_data() -> None:
    stream, _ = feed_cut(LLAMA_FIELD)
    assert stream.error is not None
    assert upstream_errors.details(upstream_errors.decode(stream.error))["message"] == MESSAGE


# What a complete JSON response says.
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
