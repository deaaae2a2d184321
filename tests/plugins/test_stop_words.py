"""Words are found in every text of an answer, across events, and only there."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway import Services
from gateway.chat.answers import WholeAnswer
from gateway.testing import exchange, run_request, services, started
from plugins.stop_words import MOST_TEXTS, StopWords


@pytest.fixture
async def given(store_url: str, tmp_path: Path) -> AsyncIterator[Services]:
    async with services(tmp_path, store_url) as made:
        yield made


def event(index: int = 0, **delta: Any) -> bytes:
    return b"data: %b\n\n" % json.dumps({"choices": [{"index": index, "delta": delta}]}).encode()


async def stopped_at(given: Services, chunks: list[bytes], *words: str, **settings: Any) -> tuple[int, int] | None:
    """Return the number of the chunk in which the stream ends, and how much of it is kept; None where it does not end."""
    plugin, of = await started(StopWords(words=words, **settings), given), exchange()
    await run_request(plugin, of, given)
    for number, chunk in enumerate(chunks):
        plugin.on_chunk(of, chunk)
        if of.stopped is not None:
            assert (of.stopped.status, of.stopped.code) == (400, "content_stopped")
            return number, of.kept
    return None


async def test_a_word_is_found_however_it_is_split(given: Services) -> None:
    first, second, third = event(content="a wo"), event(content="r"), event(content="d.")
    assert await stopped_at(given, [first, second, third], "word") == (2, 0)
    assert await stopped_at(given, [first + second + third], "word") == (0, len(first + second))
    assert await stopped_at(given, [first, second, third], "WORD", "other") == (2, 0)
    assert await stopped_at(given, [first, second, third], "WORD", ignore_case=False) is None
    assert await stopped_at(given, [event(content="x")] * 50 + [event(content="!")], "x!") == (50, 0)
    assert await stopped_at(given, [event(content="y")], "y") == (0, 0)


@pytest.mark.parametrize(
    "arguments", [r'{"x": "na\u00efve"}', r'{"x": "\u006E\u0061\u00cf\\u0076e"}', r'{"x": "a \ud83d\ude00"}']
)
async def test_a_word_that_json_in_a_text_escapes_is_found_however_it_is_split(given: Services, arguments: str) -> None:
    def call(text: str) -> bytes:
        return event(tool_calls=[{"index": 0, "function": {"arguments": text}}])

    for size in (1, 2, 5, len(arguments)):
        pieces = [arguments[at : at + size] for at in range(0, len(arguments), size)]
        found = await stopped_at(given, [call(piece) for piece in pieces], "naïve", "\U0001f600")
        assert found is not None, size
    assert await stopped_at(given, [call(arguments)], "u00ef!", "ude01") is None


@pytest.mark.parametrize("backslashes", [1, 2, 4, 8])
@pytest.mark.parametrize("word", ["forbidden", "\U0001f600", "\U0001f600\U0001f601"])
async def test_a_word_is_found_where_each_character_is_escaped(given: Services, word: str, backslashes: int) -> None:
    units = word.encode("utf-16-be").hex(" ", 2).split()
    escaped = "".join("\\" * backslashes + "u" + unit for unit in units)
    for size in (1, 2, 5, 11, len(escaped)):
        pieces = [escaped[at : at + size] for at in range(0, len(escaped), size)]
        calls = [event(tool_calls=[{"index": 0, "function": {"arguments": piece}}]) for piece in pieces]
        assert await stopped_at(given, calls, word) == (len(pieces) - 1, 0), size


async def test_too_many_texts_are_told_apart_from_a_word(given: Services) -> None:
    plugin, of = await started(StopWords(words=("word",), message="A word."), given), exchange()
    await run_request(plugin, of, given)
    for number in range(MOST_TEXTS + 1):
        assert of.stopped is None
        plugin.on_chunk(of, event(number, content="x"))
    assert of.stopped is not None
    assert "more than 256 texts" in of.stopped.message


async def test_texts_of_different_kinds_and_choices_are_not_joined(given: Services) -> None:
    mixed = [
        event(content="wo"),
        event(1, content="rd"),
        event(reasoning="rd"),
        event(refusal="rd"),
        event(content="od"),
    ]
    assert await stopped_at(given, mixed, "word") is None
    call = [{"index": 1, "function": {"arguments": "rd"}}]
    begun = [{"index": 1, "function": {"arguments": "wo"}}]
    assert await stopped_at(given, [event(tool_calls=begun), *mixed, event(tool_calls=call)], "word") == (6, 0)


async def test_what_cannot_be_searched_ends_the_stream(given: Services) -> None:
    assert await stopped_at(given, [event(content="a"), b"data: {" + b"x" * 2000], "word") == (1, 0)
    many = [event(index, content="a") for index in range(MOST_TEXTS + 1)]
    assert await stopped_at(given, many, "word") == (MOST_TEXTS, 0)


SPLIT: list[list[dict[str, Any]]] = [
    [{"refusal": "wo"}, {"refusal": "rd"}],
    [{"reasoning": "wo"}, {"reasoning_content": "rd"}],
    [{"reasoning_content": "wo", "reasoning": "x"}, {"reasoning_content": "rd", "reasoning": "y"}],
    [{"reasoning": "wo"}, {"reasoning_content": "x"}, {"reasoning": "rd"}],
    [{"reasoning_content": "wo", "reasoning": "wo"}, {"reasoning_content": "rd", "reasoning": "rd"}],
    [{"reasoning_details": [{"text": "wo"}]}, {"reasoning_details": [{"text": "rd"}]}],
    [
        {"reasoning_details": [{"summary": "wo", "index": 1}]},
        {"content": "x", "reasoning_details": [{"summary": "rd", "index": 1}]},
    ],
    [{"thinking_blocks": [{"thinking": "a word"}]}],
    [
        {"tool_calls": [{"index": 0, "custom": {"input": "wo"}}]},
        {"tool_calls": [{"index": 0, "custom": {"input": "rd"}}]},
    ],
    [{"tool_calls": [{"index": 0, "function": {"name": "word"}}]}],
    [
        {"tool_calls": [{"index": 0, "function": {"arguments": "w"}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "ord"}}]},
    ],
    [{"function_call": {"arguments": "wo"}}, {"function_call": {"arguments": "rd"}}],
    [{"audio": {"transcript": "wo"}}, {"audio": {"data": "AAAA"}}, {"audio": {"transcript": "rd"}}],
    [{"content": [{"type": "text", "text": "wo"}]}, {"content": "rd"}],
    [{"annotations": [{"url_citation": {"title": "a word"}}]}],
    [{"anything": {"else": ["word"]}}],
]


@pytest.mark.parametrize("deltas", SPLIT)
async def test_every_text_of_an_answer_is_searched(given: Services, deltas: list[dict[str, Any]]) -> None:
    chunks = [event(**delta) for delta in deltas]
    assert await stopped_at(given, chunks, "word") == (len(chunks) - 1, 0)
    assert await stopped_at(given, chunks, "nothing") is None


@pytest.mark.parametrize(
    "data",
    [b"data: word", b'data: {"choices":[{"delta":{"content":"wo', b'data: {"choices":[{"delta":' + b'{"a":' * 5000],
)
async def test_what_is_no_json_ends_the_stream(given: Services, data: bytes) -> None:
    first = event(content="a")
    assert await stopped_at(given, [first + data + b"\n\n"], "other") == (0, len(first))


ANSWERS: list[dict[str, Any]] = [
    {"content": "a word"},
    {"content": None, "refusal": "a word"},
    {"content": None, "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": '{"a":"word"}'}}]},
    {
        "content": None,
        "tool_calls": [{"id": "c"}, {"id": "d", "type": "custom", "custom": {"name": "f", "input": "word"}}],
    },
    {"content": None, "function_call": {"name": "f", "arguments": "word"}},
    {"content": "x", "audio": {"id": "a", "data": "AAAA", "transcript": "a word"}},
    {"content": "x", "reasoning_details": [{"type": "reasoning.text", "text": "word"}]},
]


@pytest.mark.parametrize("message", ANSWERS)
async def test_an_answer_in_json_is_searched(given: Services, message: dict[str, Any]) -> None:
    for words, status in (("word", 400), ("nothing", None)):
        answer = {"id": "word", "choices": [{"index": 0, "message": message}]}
        plugin, of = await started(StopWords(words=(words,)), given), exchange(answer=answer)
        await run_request(plugin, of, given)
        plugin.on_response(of)
        assert status == (of.stopped and of.stopped.status)
        assert of.answer["choices"][0]["message"] == message


async def test_an_answer_that_cannot_be_read_is_not_sent(given: Services) -> None:
    plugin, of = await started(StopWords(words=("x",)), given), exchange()
    await run_request(plugin, of, given)
    of.texts = WholeAnswer(b"<html>")
    plugin.on_response(of)
    assert of.stopped is not None
    assert "cannot be checked" in of.stopped.message


def test_words_have_a_length() -> None:
    for words in ((), ("",), ("x" * 1001,)):
        with pytest.raises(ValueError, match="words must be one or more, each of 1 to 1000 characters"):
            StopWords(words=words)
