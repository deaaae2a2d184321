"""What each event adds to which text is read right, however events and reads cut the text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.chat.answers import DeltaReader, WholeAnswer
from gateway.chat.events import EventStream


def event(*choices: dict[str, Any], end: str = "\n\n", ascii_only: bool = True) -> bytes:
    return f"data: {json.dumps({'choices': choices}, ensure_ascii=ascii_only)}{end}".encode()


def choice(index: int = 0, **delta: Any) -> dict[str, Any]:
    return {"index": index, "delta": delta}


def read(*chunks: bytes) -> list[tuple[int, str, int, str]]:
    reader = DeltaReader()
    return [(d.choice, d.kind, d.call, d.text) for chunk in chunks for d in reader.read(chunk)]


def test_every_kind_of_text_is_told_apart() -> None:
    calls = [
        {"index": 0, "function": {"name": "pay", "arguments": '{"a'}},
        {"index": 1, "function": {"arguments": "{}"}},
    ]
    chunk = event(choice(content="a", refusal="r"), choice(1, reasoning_content="why", reasoning="why")) + event(
        choice(2, tool_calls=calls, audio={"transcript": "said"}), {"index": 3, "text": "old"}
    )
    assert read(chunk) == [
        (0, "content", 0, "a"),
        (0, "refusal", 0, "r"),
        (1, "reasoning", 0, "why"),
        (2, "tool_name", 0, "pay"),
        (2, "tool_call", 0, '{"a'),
        (2, "tool_call", 1, "{}"),
        (2, "transcript", 0, "said"),
        (3, "content", 0, "old"),
    ]


def test_parts_of_content_and_the_function_call_of_earlier_models_are_read() -> None:
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "so"}]
    assert read(event(choice(content=parts, function_call={"name": "f", "arguments": "1"}))) == [
        (0, "content", 0, "hm"),
        (0, "content", 0, "so"),
        (0, "tool_name", 0, "f"),
        (0, "tool_call", 0, "1"),
    ]


NO_TEXT = (
    *(b"data: [DONE]\n\n", b": comment\n\n", b"data: []\n\n", b"\n\n"),
    *(
        b'data: {"choices":{"a":1}}\n\n',
        b'data: {"id":"word","model":"word","choices":[{"finish_reason":"word","delta":{"role":"word"}}]}\n\n',
        b'data: {"choices":[7,{"delta":7},{"delta":{"content":7,"tool_calls":[1,{}]}}]}\n\n',
    ),
)


@pytest.mark.parametrize("data", NO_TEXT)
def test_what_has_no_text_is_passed_over(data: bytes) -> None:
    assert read(data) == []


@pytest.mark.parametrize("data", [b"no JSON", b'{"choices":[{"delta":{"content":"word', b"[" * 100_000])
def test_what_is_no_json_is_told(data: bytes) -> None:
    """A client in another language may read of it what this one cannot."""
    assert read(b"data: %b\n\n" % data) == [(0, "unread", 0, "")]


OTHERS: list[tuple[dict[str, Any], list[tuple[str, str, int, str]]]] = [
    (
        {"tool_calls": [{"index": 2, "type": "custom", "custom": {"name": "run", "input": "word"}}]},
        [("tool_name", "name", 2, "run"), ("tool_call", "input", 2, "word")],
    ),
    (
        {"reasoning_details": [{"type": "reasoning.text", "text": "word", "index": 1, "signature": "word"}]},
        [("other", "reasoning_details.text", 1, "word")],
    ),
    (
        {"reasoning_details": [{"summary": "a"}, {"summary": "b"}]},
        [("other", "reasoning_details.summary", 0, "a"), ("other", "reasoning_details.summary", 0, "\nb")],
    ),
    (
        {"reasoning": "one", "reasoning_content": "other"},
        [("reasoning", "reasoning", 0, "one"), ("reasoning", "reasoning_content", 0, "other")],
    ),
    ({"thinking_blocks": [{"thinking": "word"}]}, [("other", "thinking_blocks.thinking", 0, "word")]),
    (
        {"audio": {"data": "word", "transcript": "word", "more": "x"}},
        [("transcript", "transcript", 0, "word"), ("other", "audio.more", 0, "x")],
    ),
    ({"annotations": [{"url_citation": {"title": "word"}}]}, [("other", "annotations.url_citation.title", 0, "word")]),
    ({"images": [{"image_url": {"url": "data:image/png;base64,word"}}]}, []),
    ({"content": [{"type": "x", "more": "word"}]}, [("other", "content.more", 0, "word")]),
    ({"content": {"text": "word"}}, [("other", "content.text", 0, "word")]),
    ({"anything": {"at": [["all"]]}}, [("other", "anything.at", 0, "all")]),
    ({"tool_calls": "word"}, [("other", "tool_calls", 0, "word")]),
    ({"tool_calls": ["word"]}, [("other", "tool_calls", 0, "word")]),
    ({"function_call": {"arguments": {"a": "word"}}}, [("other", "function.arguments.a", 0, "word")]),
]


@pytest.mark.parametrize(("delta", "found"), OTHERS)
def test_every_other_string_of_an_answer_is_a_text_too(
    delta: dict[str, Any], found: list[tuple[str, str, int, str]]
) -> None:
    deltas = DeltaReader().read(event(choice(**delta)))
    assert [(each.kind, each.field, each.call, each.text) for each in deltas] == found


def test_texts_outside_of_the_delta_are_read() -> None:
    tokens = {"content": [{"token": "a", "top_logprobs": [{"token": "b"}, {"token": "c"}]}]}
    outside = {
        **{"choices": [{"delta": {"content": "a"}, "message": {"content": "b"}, "text": "c", "logprobs": tokens}, "d"]},
        **{"citations": ["e", "f"], "error": {"message": "g"}},
    }
    deltas = DeltaReader().read(b"data: %b\n\n" % json.dumps(outside).encode())
    assert [(each.kind, each.field, each.text) for each in deltas] == [
        ("content", "content", "a"),
        ("content", "message.content", "b"),
        ("content", "text", "c"),
        ("other", "logprobs.content.token", "\na"),
        ("other", "logprobs.content.top_logprobs.token", "\nb"),
        ("other", "logprobs.content.top_logprobs.token", "\n\nc"),
        ("other", "choices", "d"),
        ("other", "citations", "e"),
        ("other", "citations", "\nf"),
        ("other", "error.message", "g"),
    ]


def test_a_whole_answer_is_read_call_by_call() -> None:
    calls = [{"id": "a", "function": {"name": "f", "arguments": "1"}}, {"custom": {"name": "g", "input": "2"}}]
    message = {"role": "assistant", "content": "said", "reasoning": "why", "tool_calls": calls}
    whole = WholeAnswer(json.dumps({"id": "x", "choices": [{"index": 0, "message": message}]}).encode())
    assert [(each.kind, each.call, each.text, each.start) for each in whole.read()] == [
        ("content", 0, "said", 0),
        ("reasoning", 0, "why", 0),
        ("tool_name", 0, "f", 0),
        ("tool_call", 0, "1", 0),
        ("tool_name", 1, "g", 0),
        ("tool_call", 1, "2", 0),
    ]
    assert whole.value["choices"][0]["message"]["content"] == "said"
    for text in (b"no JSON", b"[" * 100_000):
        unread = WholeAnswer(text)
        assert ([each.kind for each in unread.read()], unread.value) == (["unread"], None)
    assert DeltaReader().read(None) == ()


def test_a_character_that_two_events_share_is_put_together() -> None:
    first, second = (
        rb'data: {"choices":[{"delta":{"content":"a\ud83d"}}]}',
        rb'data: {"choices":[{"delta":{"content":"\ude00b"}}]}',
    )
    other = event(choice(1, content="x"))
    assert read(first + b"\n\n", other, second + b"\n\n") == [
        (0, "content", 0, "a"),
        (1, "content", 0, "x"),
        (0, "content", 0, "\U0001f600b"),
    ]
    assert read(second + b"\n\n") == [(0, "content", 0, "\ufffdb")]


def test_the_place_of_a_delta_is_that_of_its_event() -> None:
    first, second = event(choice(content="a"), end="\r\n\r\n"), event(choice(content="b"), end="\r\r")
    reader = DeltaReader()
    chunk = b": c\n\n" + first + second
    deltas = reader.read(chunk)
    assert [delta.start for delta in deltas] == [5, 5 + len(first)]
    assert reader.read(chunk) is deltas


def test_of_an_event_that_is_passed_on_in_pieces_nothing_is_read() -> None:
    whole, after = event(choice(content="x" * 40)), event(choice(content="after"))
    pieces = [event(choice(content="a")) + whole[:20], whole[20:30], whole[30:] + after]
    assert read(*pieces) == [(0, "content", 0, "a"), (0, "unread", 0, ""), (0, "content", 0, "after")]


texts = st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=6)


@settings(max_examples=40, deadline=None)
@given(texts, st.sampled_from(["\n\n", "\r\n\r\n", "\r\r"]), st.booleans(), st.data())
def test_the_text_is_the_same_however_the_stream_is_cut(
    words: list[str], end: str, escaped: bool, data: st.DataObject
) -> None:
    stream = b"".join(event(choice(content=word), end=end, ascii_only=escaped) for word in words)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    events, reader, seen = EventStream(drop_usage=False), DeltaReader(), ""
    for begin, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        if whole := events.feed(stream[begin:stop]):
            seen += "".join(delta.text for delta in reader.read(whole))
    if whole := events.close():
        seen += "".join(delta.text for delta in reader.read(whole))
    assert seen == "".join(words)
