"""A gathered stream is the answer that the official client makes of it, and right where that client is not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai._models import construct_type
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from gateway.chat.answers import GatheredCompletion

Chunk = dict[str, Any]


def chunk(delta: Chunk | None, *, index: int = 0, finish: str | None = None, **fields: Any) -> Chunk:
    choice = {"index": index, "delta": delta, "finish_reason": finish, **fields.pop("choice", {})}
    return {"id": "c-1", "object": "chat.completion.chunk", "created": 7, "model": "m", "choices": [choice], **fields}


def gathered(*chunks: Chunk | str) -> Chunk:
    completion = GatheredCompletion()
    for each in chunks:
        completion.add(each.encode() if isinstance(each, str) else json.dumps(each).encode())
    answer: Chunk = json.loads(completion.encode())
    return answer


def message(*deltas: Chunk) -> Chunk:
    return dict(gathered(*map(chunk, deltas))["choices"][0]["message"])


def accumulated(chunks: list[Chunk]) -> ChatCompletion:
    """Return what the official client makes of a stream."""
    state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
    for each in chunks:
        state.handle_chunk(construct_type(type_=ChatCompletionChunk, value=each))  # type: ignore[arg-type]
    return state.current_completion_snapshot


def said(value: Any) -> Any:
    """Return a value without what is null."""
    if isinstance(value, dict):
        return {name: said(each) for name, each in value.items() if each is not None}
    return [said(each) for each in value] if isinstance(value, list) else value


def call(index: int, arguments: str, **more: Any) -> Chunk:
    return {"index": index, "function": {"arguments": arguments, **more.pop("function", {})}, **more}


TOKEN = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}
USAGE = {"prompt_tokens": 7, "completion_tokens": 11, "total_tokens": 18}
STREAMS: dict[str, list[Chunk]] = {
    "text": [
        chunk({"role": "assistant", "content": "", "refusal": None}, service_tier="default"),
        chunk({"content": "Grüße, "}, obfuscation="xyz"),
        chunk({"content": "世界 😀"}),
        chunk({}, finish="stop", system_fingerprint="fp"),
    ],
    "reasoning": [
        chunk({"role": "assistant", "content": None, "reasoning_content": ""}),
        chunk({"content": None, "reasoning_content": "think"}),
        chunk({"content": None, "reasoning_content": "ing"}),
        chunk({"content": "done", "reasoning_content": None}),
        chunk({}, finish="length"),
    ],
    "refusal": [chunk({"role": "assistant", "refusal": "I "}), chunk({"refusal": "can't"}), chunk({}, finish="stop")],
    "tools": [
        chunk({"role": "assistant", "content": None}),
        chunk({"tool_calls": [call(0, "", id="call_a", type="function", function={"name": "get"})]}),
        chunk({"tool_calls": [call(0, '{"a":')]}),
        chunk({"tool_calls": [call(0, '"1"}'), call(1, "{", id="call_b", type="function", function={"name": "set"})]}),
        chunk({"tool_calls": [call(1, "}")]}),
        chunk({}, finish="tool_calls"),
    ],
    "several choices": [
        chunk({"role": "assistant", "content": "a"}),
        chunk({"role": "assistant", "content": "b"}, index=1),
        chunk({"content": "c"}, index=1),
        chunk({"content": "d"}),
        chunk({}, finish="stop"),
        chunk({}, index=1, finish="length"),
    ],
    "log probabilities": [
        chunk({"role": "assistant", "content": "a"}, choice={"logprobs": {"content": [TOKEN], "refusal": None}}),
        chunk({"content": "a"}, choice={"logprobs": {"content": [TOKEN, TOKEN], "refusal": None}}),
        chunk({}, finish="stop", choice={"logprobs": None}),
    ],
}


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
@pytest.mark.parametrize("usage", [True, False])
def test_it_is_what_the_official_client_accumulates(stream: list[Chunk], usage: bool) -> None:
    chunks = json.loads(json.dumps(stream))
    if usage:
        chunks.append({**chunks[-1], "choices": [], "usage": USAGE})
    ours = construct_type(type_=ChatCompletion, value=gathered(*chunks))
    assert isinstance(ours, ChatCompletion)
    theirs = accumulated(chunks)
    for mine, other in zip(ours.choices, theirs.choices, strict=True):
        expected = said(other.message.to_dict())
        for each in expected.get("tool_calls", ()):
            each.pop("index", None)
        assert {"role": "assistant"} | expected == said(mine.message.to_dict())
        assert (mine.index, mine.finish_reason) == (other.index, other.finish_reason)
        assert (mine.logprobs and mine.logprobs.to_dict()) == (other.logprobs and other.logprobs.to_dict())
    for name in ("id", "created", "model", "service_tier", "system_fingerprint"):
        assert getattr(ours, name) == getattr(theirs, name) or getattr(theirs, name) is None
    assert (ours.object, ours.usage and ours.usage.to_dict()) == ("chat.completion", USAGE if usage else None)
    ChatCompletion.model_validate(gathered(*chunks))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=8), min_size=1, max_size=12))
def test_any_text_in_any_pieces(pieces: list[str]) -> None:
    assert message(*({"content": piece} for piece in pieces))["content"] == "".join(pieces)


def test_what_names_a_thing_is_taken_once_where_an_upstream_repeats_it() -> None:
    made = {"id": "call_a", "type": "function", "index": 0}
    assert message(
        {"role": "assistant", "content": "a", "tool_calls": [{**made, "function": {"name": "get", "arguments": "{"}}]},
        {"role": "assistant", "content": "b", "tool_calls": [{**made, "function": {"name": "get", "arguments": "}"}}]},
    ) == {
        "role": "assistant",
        "content": "ab",
        "tool_calls": [{"id": "call_a", "type": "function", "function": {"name": "get", "arguments": "{}"}}],
    }


@pytest.mark.parametrize("index", [{}, {"index": 0}])
def test_calls_that_all_have_the_same_index_or_none_stay_apart(index: Chunk) -> None:
    def whole(name: str, **more: Any) -> Chunk:
        return {**index, **more, "type": "function", "function": {"name": name, "arguments": "{}"}}

    calls = message(
        {"tool_calls": [whole("get", id="a"), whole("get", id="b")]}, {"tool_calls": [whole("set", id="c")]}
    )["tool_calls"]
    assert [(each["id"], each["function"]["name"]) for each in calls] == [("a", "get"), ("b", "get"), ("c", "set")]
    fragments = message(
        {"tool_calls": [{**index, "id": "a", "function": {"name": "get", "arguments": "{"}}]},
        {"tool_calls": [{**index, "function": {"arguments": "}"}}]},
    )["tool_calls"]
    assert fragments == [{"id": "a", "function": {"name": "get", "arguments": "{}"}}]


def test_content_in_parts_goes_on_part_by_part() -> None:
    def thinking(text: str) -> Chunk:
        return {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": text}]}]}

    assert message({"content": ""}, thinking("Well"), thinking(", so"), {"content": "The "}, {"content": "end"}) == {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": [{"type": "text", "text": "Well, so"}]},
            {"type": "text", "text": "The end"},
        ],
    }
    link = {"type": "url_citation", "url_citation": {"url": "http://a"}}
    assert message({"annotations": [link]}, {"annotations": [link]})["annotations"] == [link, link]


def test_details_of_reasoning_go_on_by_index_and_type() -> None:
    text = {"type": "reasoning.text", "index": 0, "format": "f", "text": "ab"}
    sealed = {"type": "reasoning.encrypted", "index": 0, "data": "xyz"}
    parts = [text, {**text, "text": "cd"}, sealed]
    assert message(*({"reasoning_details": [part]} for part in parts))["reasoning_details"] == [
        {**text, "text": "abcd"},
        sealed,
    ]


def test_fields_of_the_answer_are_the_first_or_the_last_that_say_something() -> None:
    azure = {"id": "", "created": 0, "model": "", "object": "", "choices": [], "prompt_filter_results": [{"x": 1}]}
    answer = gathered(
        azure,
        chunk({"content": "a", "channel": "analysis"}, system_fingerprint=None),
        chunk({"content": "b", "channel": "final"}, choice={"content_filter_results": {"hate": 1}, "text": "b"}),
        chunk({}, finish="stop", system_fingerprint="fp", x_groq={"id": "r", "usage": USAGE}, provider="p"),
    )
    assert (answer["id"], answer["created"], answer["model"], answer["object"]) == ("c-1", 7, "m", "chat.completion")
    assert answer["prompt_filter_results"] == [{"x": 1}]
    assert (answer["system_fingerprint"], answer["provider"], answer["usage"]) == ("fp", "p", USAGE)
    choice = answer["choices"][0]
    assert choice == {
        "index": 0,
        "message": {"role": "assistant", "content": "ab", "channel": "final"},
        "finish_reason": "stop",
        "content_filter_results": {"hate": 1},
    }


def test_halves_of_a_character_and_infinite_numbers_are_read_as_clients_read_them() -> None:
    head = '{"choices":[{"index":0,"delta":{"content":"'
    assert message_of(head + '\\ud83d"}}]}', head + '\\ude00"},"score":-Infinity}]}') == "😀"
    assert message_of(head + 'a\\ud83d"}}]}') == "a\ufffd"


def message_of(*chunks: str) -> str:
    return str(gathered(*chunks)["choices"][0]["message"]["content"])


@pytest.mark.parametrize("data", [b"nonsense", b"[]", b"5", b'"x"', b"null", b"[" * 100_000, b'{"choices":'])
def test_what_is_no_chunk_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        GatheredCompletion().add(data)


@pytest.mark.parametrize("data", [b"{}", b'{"choices":null}', b'{"choices":[]}', b'{"choices":[5]}'])
def test_a_stream_without_a_choice_is_no_answer(data: bytes) -> None:
    completion = GatheredCompletion()
    completion.add(data)
    with pytest.raises(ValueError):
        completion.encode()


def test_odd_values_end_nothing() -> None:
    answer = gathered(
        '{"id":5,"choices":[{"index":"x","delta":null},{"delta":{"content":"a","tool_calls":[5,null],"n":1,"b":true}}]}',
        '{"choices":[{"delta":{"content":{"a":"b"},"tool_calls":"x","n":2,"b":false,"c":[1]}}],"usage":[1]}',
        '{"choices":[{"delta":{"content":"c","c":["d"]},"logprobs":5},{"logprobs":{"content":5}}]}',
    )
    assert answer["choices"][0]["message"]["n"] == 2


NAMES = ("content", "tool_calls", "function", "name", "arguments", "index", "id", "type", "text", "role", "thinking")
values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["", "a", "text", "function"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)
choices = st.fixed_dictionaries(
    {"index": st.just(0)}, optional={"delta": values, "logprobs": values, "finish_reason": values}
)
chunks = st.fixed_dictionaries(
    {"choices": st.lists(choices | values, max_size=3)}, optional={"usage": values, "id": values}
)


@settings(max_examples=150, deadline=None)
@given(st.lists(chunks, min_size=1, max_size=4))
def test_no_json_breaks_it(stream: list[Chunk]) -> None:
    completion = GatheredCompletion()
    for each in stream:
        completion.add(json.dumps(each).encode())
    if any(isinstance(choice, dict) for each in stream for choice in each["choices"]):
        assert json.loads(completion.encode())["object"] == "chat.completion"
    else:
        with pytest.raises(ValueError, match="no choice"):
            completion.encode()
