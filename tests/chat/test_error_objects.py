"""What is an error, in every dialect, and what of it is shown."""

from __future__ import annotations

import pytest

from gateway.chat import upstream_errors
from tests.chat.dialects import DIALECTS, MESSAGE, NOT_ERRORS
from tests.chat.test_events import DONE, chunk, event, feed_cut, read, text

LLAMA_FIELD = b'error: {"code":500,"message":"the model fell over","type":"server_error"}\n\n'


@pytest.mark.parametrize(("data", "raises"), DIALECTS.values(), ids=DIALECTS)
def test_an_error_in_any_dialect_is_recognised_and_has_its_message(data: str, raises: bool) -> None:
    value = upstream_errors.decode(data.encode())
    assert upstream_errors.is_error(value)
    assert upstream_errors.raises_in_clients(value) is raises
    assert upstream_errors.details(value)["message"] == MESSAGE
    assert all(isinstance(each, str) for each in upstream_errors.details(value).values())


@pytest.mark.parametrize("data", NOT_ERRORS.values(), ids=NOT_ERRORS)
def test_what_is_no_error(data: str) -> None:
    assert not upstream_errors.is_error(upstream_errors.decode(data.encode()))


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
