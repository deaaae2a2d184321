"""The events of a message: relayed byte for byte wherever they are cut, with their usage, errors and end."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.chat.events import EventStream
from gateway.chat.usage import Usage
from gateway.operations.message_events import MessageEvents, WatchedMessageEvents

Told = dict[str, Any]


def event(kind: str, *, named: bool = True, **fields: Any) -> bytes:
    name = b"event: %b\n" % kind.encode() if named else b""
    return name + b"data: %b\n\n" % json.dumps({"type": kind, **fields}).encode()


def start(**usage: Any) -> bytes:
    told = {"input_tokens": 27, "cache_read_input_tokens": 61_000, "cache_creation_input_tokens": 4100}
    message = {"id": "msg_5", "usage": told | {"output_tokens": 2} | usage}
    return event("message_start", message=message)


def delta(text: str, kind: str = "text") -> bytes:
    return event("content_block_delta", index=0, delta={"type": f"{kind}_delta", kind: text})


def end(reason: str | None = "end_turn", **usage: Any) -> bytes:
    return event("message_delta", delta={"stop_reason": reason}, usage=usage)


STOP = event("message_stop")
WHOLE = (
    event("ping")
    + start()
    + event("content_block_start", index=0, content_block={"type": "thinking", "thinking": ""})
    + delta("Weather, so ", "thinking")
    + event("content_block_stop", index=0)
    + delta("Rain falls — ☔", "text")
    + end(output_tokens=212)
    + STOP
)


def fed(data: bytes, size: int = 0, events: EventStream | None = None) -> tuple[EventStream, bytes]:
    """Return the parser after all data, in pieces of `size`, and what it relayed."""
    events = MessageEvents() if events is None else events
    size = size or len(data)
    relayed = b"".join(_feed(events, data[at : at + size]) for at in range(0, len(data), size))
    return events, relayed + events.close()


def _feed(events: EventStream, data: bytes) -> bytes:
    relayed = events.feed(data)
    while events.backlog:
        relayed += events.feed(b"")
    return relayed


def usage(data: bytes) -> Usage:
    events, _ = fed(data)
    return events.usage.usage(lambda: 7, events.output.tokens)


@pytest.mark.parametrize("data", [WHOLE, WHOLE.replace(b"\n", b"\r\n")], ids=["LF", "CRLF"])
def test_a_message_is_relayed_as_it_came_wherever_it_is_cut(data: bytes) -> None:
    expected = Usage(65_127, 212, "upstream", 61_000, 4100, 1)
    for cut in range(1, len(data)):
        events = MessageEvents()
        relayed = _feed(events, data[:cut]) + _feed(events, data[cut:]) + events.close()
        assert relayed == data
        assert (events.completion_id, events.complete, events.concluded) == ("msg_5", True, True)
        assert events.usage.usage(lambda: 7, events.output.tokens) == expected


@pytest.mark.parametrize("size", [1, 3, 50])
def test_it_is_the_same_where_plugins_see_the_events(size: int) -> None:
    watched = WatchedMessageEvents()
    _, relayed = fed(WHOLE, size, watched)
    assert relayed == WHOLE
    watched.withdraw(0)
    assert not watched.done


@pytest.mark.parametrize(
    ("told", "prompt", "output", "source"),
    [
        (start() + end(output_tokens=9), 65_127, 9, "upstream"),
        (start() + end(None, output_tokens=5) + end(output_tokens=9), 65_127, 9, "upstream"),
        (start() + end(output_tokens=9, input_tokens=27), 65_127, 9, "upstream"),
        # The whole prompt at first, and how it is made up of at the end.
        (
            start(input_tokens=65_127, cache_read_input_tokens=None, cache_creation_input_tokens=None)
            + end(input_tokens=4127, cache_read_input_tokens=61_000, output_tokens=9),
            *(65_127, 9, "upstream"),
        ),
        (start() + end(output_tokens=9, input_tokens=None), 65_127, 9, "upstream"),
        (start() + delta("x" * 400), 65_127, 100, "estimated"),
        (start() + delta("x" * 400) + end(None, output_tokens=300), 65_127, 300, "estimated"),
        (delta("x" * 400) + end(), 7, 100, "estimated"),
        (start(input_tokens=-1) + end(output_tokens=9), 65_100, 9, "estimated"),
        (start(input_tokens=0) + end(output_tokens=9), 65_100, 9, "upstream"),
        (
            start() + end(output_tokens=9, iterations=[{"input_tokens": 70_000, "output_tokens": 90}] * 2),
            *(140_000, 180, "upstream"),
        ),
    ],
)
def test_usage_is_read_by_field_and_never_added_up(told: bytes, prompt: int, output: int, source: str) -> None:
    found = usage(told)
    assert (found.prompt_tokens, found.completion_tokens, found.source) == (prompt, output, source)


def test_an_event_without_a_name_is_read_by_its_type() -> None:
    events, relayed = fed(WHOLE.replace(b"event: message_stop\n", b""))
    assert events.done
    assert relayed.endswith(b'data: {"type": "message_stop"}\n\n')


def test_a_ping_is_no_first_byte() -> None:
    events = MessageEvents()
    assert events.feed(event("ping"))
    assert not events.started
    assert events.feed(start())
    assert events.started


def test_an_error_is_relayed_if_libraries_know_it() -> None:
    error = event("error", error={"type": "overloaded_error", "message": "busy"})
    events, relayed = fed(error)
    assert (events.first_error, events.error_relayed, events.concluded, relayed) == (True, True, True, error)
    events, relayed = fed(start() + error + delta("x"))
    assert (events.first_error, events.error_relayed, relayed) == (False, True, start() + error)
    for unnamed in (event("error", named=False, error={"message": "busy"}), b'data: {"error":{"message":"busy"}}\n\n'):
        events, relayed = fed(start() + unnamed)
        assert (events.error is not None, events.error_relayed, relayed) == (True, False, start())


@pytest.mark.parametrize(
    ("data", "complete"),
    [
        (start() + delta("x"), False),
        (start() + delta("x") + end(output_tokens=1), True),
        (start() + delta("x") + end(output_tokens=1) + b'event: content_block', False),
        (start() + delta("x") + end(output_tokens=1) + STOP.rstrip(), True),
        (start() + end(output_tokens=1) + b"data: [DONE]\n\n", True),
        (start() + b"data: [DONE]\n\n", False),
    ],
)  # fmt: skip
def test_a_message_is_whole_by_its_end(data: bytes, complete: bool) -> None:
    events, _ = fed(data)
    assert events.complete is complete


def test_the_usage_of_an_event_that_is_passed_on_in_pieces_is_read() -> None:
    long = event(
        "message_delta", padding="x" * 3_000_000, delta={"stop_reason": "end_turn"}, usage={"output_tokens": 9}
    )
    events, relayed = fed(start() + long + STOP, 50_000)
    assert relayed == start() + long + STOP
    assert events.usage.usage(lambda: 7, events.output.tokens).completion_tokens == 9


HUGE = 10**30


@pytest.mark.parametrize(
    "odd",
    [
        {"usage": []},
        {"usage": {"input_tokens": HUGE, "output_tokens": 9}},
        {"usage": {"output_tokens": HUGE}},
        {"usage": {"output_tokens": 9, "iterations": [7, None, {"output_tokens": HUGE}]}},
        {"usage": {f"field{number}": number for number in range(5000)}},
        {"delta": "text"},
        {"delta": {"text": None, "thinking": 7, "stop_reason": None}},
        *({"message": []}, {"message": {"id": 7, "usage": 7}}, {"type": 7}),
    ],
)
def test_an_event_of_another_form_ends_nothing(odd: Told) -> None:
    data = event("message_delta", **odd) if "type" not in odd else b"data: %b\n\n" % json.dumps(odd).encode()
    events, relayed = fed(start() + data + delta("x") + end(output_tokens=9) + STOP)
    assert relayed == start() + data + delta("x") + end(output_tokens=9) + STOP
    assert events.complete
    assert len(events.told) <= 64
    found = events.usage.usage(lambda: 7, events.output.tokens)
    assert found.completion_tokens in (1, 9)
