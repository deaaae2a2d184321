"""The events of a response: relayed byte for byte wherever they are cut, with their usage, errors and end."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.base.errors import Refused
from gateway.chat.usage import Usage
from gateway.operations.response_events import ResponseEvents, WatchedResponseEvents
from gateway.operations.responses import ResponseErrors
from tests.operations.test_message_events import _feed, event, fed

USAGE = {
    "input_tokens": 1840,
    "input_tokens_details": {"cached_tokens": 1536, "cache_write_tokens": 0},
    "output_tokens": 212,
    "output_tokens_details": {"reasoning_tokens": 180},
    "total_tokens": 2052,
}


def response(status: str, usage: dict[str, Any] | None = None, **fields: Any) -> bytes:
    made = {"id": "resp_7a", "object": "response", "model": "m-1", "output": [], "usage": usage, **fields}
    return event(f"response.{status}", sequence_number=4, response=made)


def delta(text: str, kind: str = "output_text") -> bytes:
    return event(f"response.{kind}.delta", sequence_number=2, delta=text, obfuscation="x" * 50)


CREATED = event("response.created", sequence_number=0, response={"id": "resp_7a", "model": "m-1", "usage": None})
DONE = event("response.output_text.done", text="Rain falls — ☔")
COMPLETED = response("completed", USAGE, service_tier="default")
WHOLE = CREATED + b": ping\n\n" + delta("hm", "reasoning_summary_text") + delta("Rain falls — ☔") + DONE + COMPLETED


def usage(data: bytes) -> Usage:
    events, _ = fed(data, events=ResponseEvents())
    return events.usage.usage(lambda: 7, events.output.tokens)


@pytest.mark.parametrize("data", [WHOLE, WHOLE.replace(b"\n", b"\r\n")], ids=["LF", "CRLF"])
def test_a_response_is_relayed_as_it_came_wherever_it_is_cut(data: bytes) -> None:
    for cut in range(1, len(data)):
        events = ResponseEvents()
        relayed = _feed(events, data[:cut]) + _feed(events, data[cut:]) + events.close()
        assert relayed == data
        assert (events.completion_id, events.complete, events.usage.service_tier) == ("resp_7a", True, "default")
        assert events.usage.usage(lambda: 7, events.output.tokens) == Usage(1840, 212, "upstream", 1536, 0, 1)


@pytest.mark.parametrize("size", [1, 3, 50])
def test_it_is_the_same_where_plugins_see_the_events(size: int) -> None:
    watched = WatchedResponseEvents()
    _, relayed = fed(WHOLE, size, watched)
    assert relayed == WHOLE
    watched.withdraw(0)
    assert not watched.done


@pytest.mark.parametrize(
    ("told", "prompt", "output", "source"),
    [
        (CREATED + response("incomplete", USAGE), 1840, 212, "upstream"),
        (CREATED + response("cancelled", USAGE), 1840, 212, "upstream"),
        (CREATED + response("failed", USAGE, error={"code": "server_error"}), 1840, 212, "upstream"),
        (CREATED + delta("x" * 400) + response("completed", None), 7, 100, "estimated"),
        (CREATED + delta("x" * 400), 7, 100, "estimated"),
        (CREATED + delta("x" * 400, "function_call_arguments"), 7, 100, "estimated"),
        (CREATED + delta("x" * 400, "audio"), 7, 0, "estimated"),
        (CREATED + event("response.output_text.done", text="x" * 400), 7, 0, "estimated"),
        (CREATED + response("in_progress", USAGE) + delta("x" * 4000), 1840, 1000, "estimated"),
    ],
)
def test_usage_is_that_of_the_event_that_ends_the_answer(told: bytes, prompt: int, output: int, source: str) -> None:
    found = usage(told)
    assert (found.prompt_tokens, found.completion_tokens, found.source) == (prompt, output, source)


def test_the_usage_of_a_last_event_that_is_passed_on_in_pieces_is_read_and_its_text_is_not_counted_again() -> None:
    text = "x y" * 1_000_000
    item = {"type": "message", "content": [{"type": "output_text", "text": text}]}
    last = response("completed", USAGE, output=[item])
    events, relayed = fed(CREATED + last, 50_000, ResponseEvents())
    assert relayed == CREATED + last
    assert events.usage.usage(lambda: 7, events.output.tokens).completion_tokens == 212
    assert (events.complete, events.output.tokens()) == (True, 0)


def test_an_error_is_relayed_and_ends_the_answer() -> None:
    untyped = b'data: {"error":{"message":"no"}}\n\n'
    for error in (event("error", code="oops", message="no"), response("failed", None, error={"code": "oops"}), untyped):
        events, relayed = fed(CREATED + error + delta("x"), events=ResponseEvents())
        assert (events.first_error, events.error_relayed, relayed) == (False, True, CREATED + error)
        events, _ = fed(error, events=ResponseEvents())
        assert events.first_error


@pytest.mark.parametrize(
    ("data", "complete"),
    [
        (CREATED + delta("x"), False),
        (CREATED + delta("x") + b"data: [DONE]\n\n", False),
        (CREATED + COMPLETED + b"data: [DONE]\n\n", True),
        (CREATED + COMPLETED.rstrip(), True),
        (CREATED + response("incomplete"), True),
    ],
)
def test_a_response_is_whole_by_its_last_event(data: bytes, complete: bool) -> None:
    events, _ = fed(data, events=ResponseEvents())
    assert events.complete is complete


@pytest.mark.parametrize(
    ("status", "code"), [(504, "server_error"), (400, "invalid_prompt"), (402, "insufficient_quota")]
)
def test_the_end_that_the_gateway_writes_is_known_to_every_client(status: int, code: str) -> None:
    events, _ = fed(CREATED + delta("x"), events=ResponseEvents())
    told, _ = fed(ResponseErrors().event(Refused(status, "why", "Because."), "id-1", events), events=ResponseEvents())
    assert told.error is not None
    failed, last = (
        json.loads(each.partition(b"data: ")[2])
        for each in ResponseErrors().event(Refused(status, "why", "Because."), "id-1", events).split(b"\n\n")[:2]
    )
    assert (failed["type"], failed["sequence_number"], failed["response"]["status"]) == ("response.failed", 3, "failed")
    assert (failed["response"]["id"], failed["response"]["error"]) == ("resp_7a", {"code": code, "message": "Because."})
    assert (last["type"], last["sequence_number"], last["code"], last["error"]["code"]) == ("error", 4, "why", "why")


@pytest.mark.parametrize(
    "odd",
    [
        {"sequence_number": 10**30},
        {"sequence_number": "7"},
        {"response": []},
        {"response": {"usage": [], "id": 7}},
        {"delta": 7},
    ],
)
def test_an_event_of_another_form_ends_nothing(odd: dict[str, Any]) -> None:
    data = event("response.output_text.delta", **odd)
    events, relayed = fed(CREATED + data + COMPLETED, events=ResponseEvents())
    assert (relayed, events.complete) == (CREATED + data + COMPLETED, True)
    assert events.usage.usage(lambda: 7, events.output.tokens).completion_tokens == 212
    assert ResponseErrors().event(Refused(502, "why", "Because."), "id-1", events)
