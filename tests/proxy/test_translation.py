"""The answer of another dialect becomes the same chunks however it is cut, and nothing is made up where it breaks off."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from gateway import AnswerDelta, AnswerReader, Dialect
from gateway.chat.events import EventStream
from gateway.chat.usage import ReportedUsage
from gateway.proxy.translation import MAX_EVENT, Translation
from plugins.anthropic import Messages
from tests.plugins.anthropic_streams import ERROR, PING, STOP, STREAMS, TEXT, end, start, text, wire


class Scripted(Dialect):
    """A dialect whose events are lists of deltas in Python."""

    name = "scripted"
    path = "/scripted"

    def reader(self) -> AnswerReader:
        return _Reader()


class _Reader(AnswerReader):
    def read(self, name: str, data: bytes) -> Iterable[AnswerDelta]:
        for each in json.loads(data):
            yield AnswerDelta(**each)


def translation(dialect: Dialect | None = None) -> Translation:
    made = Translation(dialect or Messages(), ReportedUsage())
    made._created = 1
    return made


def chunks(data: bytes) -> list[Any]:
    """Return the chunks of a stream."""
    return [
        json.loads(event.removeprefix(b"data: ")) for event in data.split(b"\n\n") if event and b"[DONE]" not in event
    ]


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_that_ends_at_any_byte_is_never_complete_before_its_finish(name: str) -> None:
    data = wire(STREAMS[name])
    finish = data.index(b"event: message_stop")
    for at in range(len(data)):
        made, events = translation(), EventStream(drop_usage=False)
        sent = events.feed(made.feed(data[:at]))
        rest, whole = made.close()
        sent += events.feed(rest) + events.close()
        complete = whole and events.complete
        ended = at >= len(data) - 2  # as of any stream, the last line ends may be missing
        assert (b"[DONE]" in sent) == ended
        assert complete is (at == finish or ended), at
        if at >= finish:
            assert events.usage.prompt_final
            assert events.usage.completion_final


def test_nothing_is_sent_before_a_caller_can_see_something() -> None:
    made = translation()
    assert made.feed(wire([start(), PING])) == b""
    assert made.feed(wire(text(0, "Hi")[:1])) == b""
    (chunk,) = chunks(made.feed(wire(text(0, "Hi")[1:2])))
    assert chunk == {
        **{"id": "msg_01Abc", "object": "chat.completion.chunk", "created": 1, "model": "claude-sonnet-4-5-20250929"},
        "choices": [{"index": 0, "delta": {"role": "assistant", "content": "Hi"}, "finish_reason": None}],
    }


def test_usage_before_the_finish_is_noted_and_not_sent() -> None:
    made = translation()
    made.feed(wire(TEXT[:4]))
    assert (made._usage.prompt, made._usage.prompt_final) == (25, False)
    sent = made.feed(wire([end("end_turn", output_tokens=7)]))
    finish, usage = chunks(sent)
    assert finish["choices"][0]["finish_reason"] == "stop"
    assert usage["choices"] == []
    assert usage["usage"]["total_tokens"] == 32
    assert json.loads(made.reported)["input_tokens"] == 25


def test_usage_that_is_told_before_the_finish_alone_is_sent_with_the_end() -> None:
    made = translation(Scripted())
    told = {"prompt_tokens": 3, "completion_tokens": 2}
    made.feed(b'data: [{"usage": %b, "message": {"content": "a"}}]\n\n' % json.dumps(told).encode())
    sent = made.feed(b'data: [{"finish_reason": "stop"}, {"done": true}]\n\n')
    assert [chunk.get("usage") for chunk in chunks(sent)] == [None, told | {"total_tokens": 5}]
    assert sent.endswith(b"[DONE]\n\n")


def test_an_end_without_a_reason_is_an_error() -> None:
    sent = translation().feed(wire([start(), STOP]))
    assert b"it ends without a reason" in sent
    assert b"[DONE]" not in sent


def test_an_error_ends_the_stream_in_the_shape_that_clients_raise_on() -> None:
    made = translation()
    sent = made.feed(wire([*TEXT[:5], ERROR, *TEXT[5:]]))
    assert chunks(sent)[-1] == {
        "error": {"message": "Overloaded", "type": "overloaded_error", "param": None, "code": "overloaded_error"}
    }
    assert made.status == 529
    assert made.feed(wire(TEXT)) == b""


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"data: no json\n\n", "an event cannot be read"),
        (b'data: {"type": 7}\n\n', "an event cannot be read"),
        (b'data: {"type":"x\xff"}\n\n', "an event cannot be read"),
        (b"data: " + b"[" * 100_000 + b"\n\n", "an event cannot be read"),
        (b"data: " + b"x" * MAX_EVENT, "an event is too long"),
    ],
)
def test_what_cannot_be_read_ends_the_stream_with_an_error(data: bytes, what: str) -> None:
    made = translation()
    (chunk,) = chunks(made.feed(data))
    assert what in chunk["error"]["message"]
    assert (chunk["error"]["code"], chunk["error"]["type"]) == ("upstream_error", "upstream_error")
    assert made.feed(wire(TEXT)) == b""
    assert made.close() == (b"", True)


def test_a_reader_that_gives_what_is_no_json_ends_the_stream_with_an_error() -> None:
    class Wrong(_Reader):
        def read(self, name: str, data: bytes) -> Iterable[AnswerDelta]:
            yield AnswerDelta(message={"content": object()})

    dialect = Scripted()
    dialect.reader = Wrong  # type: ignore[method-assign]
    assert b"cannot be read" in translation(dialect).feed(b"data: 1\n\n")


def test_what_is_not_known_is_passed_over() -> None:
    data = wire(
        [{"type": "content_block_delta", "index": 9, "delta": {"type": "input_json_delta", "partial_json": "x"}}]
    )
    data += wire([{"type": "later"}, {"type": "content_block_stop", "index": 9}]) + b": comment\n\n"
    assert translation().feed(data) == b""
