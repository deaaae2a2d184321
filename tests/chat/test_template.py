"""What is read from events by a template is what is read without one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.chat.events import EventStream
from gateway.chat.tokens import ALL, LEARN_AFTER

LIMIT = 400


def event(text: str = "", place: str = "content", finish: str | None = None, **fields: Any) -> bytes:
    choice = {"index": 0, "delta": {place: text}, "logprobs": None, "finish_reason": finish}
    data = {"id": "chatcmpl-1", "choices": [choice], **fields}
    return f"data: {json.dumps(data, separators=(',', ':'), ensure_ascii=False)}\n\n".encode()


def without_template(**settings: Any) -> EventStream:
    stream = EventStream(**settings)
    stream.template.forget()
    return stream


def facts(stream: EventStream) -> tuple[object, ...]:
    usage, output = stream.usage, stream.output
    return (
        *(stream.started, stream.events, stream.done, stream.finished, stream.concluded, stream.complete),
        *(stream.error, stream.first_error, stream.error_relayed, stream.at_boundary, stream.backlog),
        *(usage.prompt, usage.completion, usage.total, usage.final, stream.all_finished),
        *(output.tokens(), output.events, output.bytes, output.all_events),
    )


def assert_read_alike(pieces: Iterable[bytes], **settings: Any) -> EventStream:
    settings = {"drop_usage": True, "max_event_bytes": LIMIT, **settings}
    stream, reference = EventStream(**settings), without_template(**settings)
    for piece in pieces:
        assert stream.feed(piece) == reference.feed(piece)
        while stream.backlog or reference.backlog:
            assert stream.feed(b"") == reference.feed(b"")
        assert facts(stream) == facts(reference)
        assert reference.template.novel == ALL
    assert stream.close() == reference.close()
    assert facts(stream) == facts(reference)
    return stream


TELLING = (
    *("error", "usage", "finish_reason", '"error"', '"usage":{"prompt_tokens":3}', "\\", '\\"', "\n", "\r"),
    *("\u2028", "ü"),
)
TEXTS = st.one_of(
    st.text("ab ", max_size=8), st.sampled_from(TELLING), st.lists(st.sampled_from(TELLING), max_size=3).map("".join)
)
COUNTED = {"prompt_tokens": 7, "completion_tokens": 11}
EVENTS = st.one_of(
    st.builds(event, TEXTS),
    st.builds(event, TEXTS),
    st.builds(event, TEXTS, st.sampled_from(("content", "reasoning", "reasoning_content", "error", "usage"))),
    st.builds(lambda text: event(text, obfuscation="x" * len(text)), TEXTS),
    st.builds(lambda text: event(text, usage=None), TEXTS),
    st.builds(lambda text: event(text, usage=COUNTED), TEXTS),
    st.builds(lambda text: event(text, finish="stop"), TEXTS),
    st.builds(lambda size: event("a" * size), st.integers(LIMIT - 120, LIMIT + 20)),
    st.sampled_from(
        (
            *(b"data: [DONE]\n\n", b": comment\n\n", b'data: {"error":{"message":"no"}}\n\n'),
            b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}\n\n',
        )
    ),
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Return an event with a byte that is replaced, put in or left out."""
    data: bytes = draw(EVENTS)
    at = draw(st.integers(0, len(data) - 1))
    put: bytes = draw(
        st.sampled_from((b"", b'"', b"\\", b"\n", b"\r", b"\r\n", b"\n\n", b'"error":{"message":"x"},', b"{", b"\x00"))
    )
    return data[:at] + put + data[at + draw(st.integers(0, 1)) :]


PIECES = st.lists(st.one_of(EVENTS, EVENTS, EVENTS, damaged(), EVENTS.map(lambda data: data[:30])), max_size=25)


@settings(max_examples=300, deadline=None)
@given(PIECES, st.sampled_from((1, 1, 1, 2)))
@example([event("a"), event("b"), event("error"), event("c")], 1)
@example([event("a"), event("b"), event("x\r"), event("c")], 1)
@example([event("a"), event('b"'), event("c"), event("\\"), event("d")], 1)
@example([event("a"), event("b"), event("b" * LIMIT), event("c")], 1)
def test_a_stream_is_read_alike_with_and_without_a_template(pieces: list[bytes], choices: int) -> None:
    assert_read_alike(pieces, choices=choices)


@settings(max_examples=200, deadline=None)
@given(PIECES, st.data())
def test_a_stream_that_is_cut_anywhere_is_read_alike(pieces: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    assert_read_alike(whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True))


@pytest.mark.parametrize("place", ["content", "reasoning", "reasoning_content"])
def test_the_third_event_that_differs_only_in_its_text_is_not_searched(place: str) -> None:
    stream = EventStream(drop_usage=False)
    stream.feed(event("", place))
    novel = []
    for text in ("first", "second", "", 'with a "quote"', "fourth"):
        stream.feed(event(text, place))
        novel.append(stream.template.novel)
    assert novel == [ALL, 6, 0, ALL, 6]


def test_a_template_is_replaced_when_the_events_change() -> None:
    stream = EventStream(drop_usage=False)
    for _ in range(3):
        stream.feed(event("text", "reasoning"))
    fitted = 0
    for _ in range(2 * LEARN_AFTER):
        stream.feed(event("text", "content"))
        fitted += stream.template.novel != ALL
    assert fitted > LEARN_AFTER


def test_text_around_a_finish_reason_is_no_template() -> None:
    stream = EventStream(drop_usage=False)
    for reason in ("stop", "length"):
        stream.feed(event("text", finish=reason))
        stream.feed(event("other", finish=reason))
        assert stream.template.novel == ALL
    assert stream.finished


def test_no_template_is_learned_after_it_was_forgotten() -> None:
    stream = EventStream(drop_usage=False)
    for _ in range(5):
        stream.feed(event("text"))
    assert stream.template.novel == 4
    stream.template.forget()
    for _ in range(2 * LEARN_AFTER):
        stream.feed(event("text"))
        assert stream.template.novel == ALL
