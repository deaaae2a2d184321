"""Words are found in every text of an answer, across events, and only there."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway import Exchange, Refused, Services
from gateway.chat.request import BodyRules, check
from gateway.store.client.client import Client
from gateway.testing import exchange, run_request, services, started
from plugins.stop_words import MOST_TEXTS, StopWords


@pytest.fixture
async def given(store_url: str, client: Client, tmp_path: Path) -> AsyncIterator[Services]:
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


async def test_a_request_that_is_not_streamed_is_refused(given: Services) -> None:

    plugin, of = await started(StopWords(words=("x",)), given), exchange()

    async def read() -> Any:
        raw = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
        return check(raw, BodyRules(allow_non_streaming=True))

    plain = Exchange(of.request, read)
    with pytest.raises(Refused, match="Answers are checked while they are streamed"):
        await run_request(plugin, plain, given)


def test_words_have_a_length() -> None:
    for words in ((), ("",), ("x" * 1001,)):
        with pytest.raises(ValueError, match="words must be one or more, each of 1 to 1000 characters"):
            StopWords(words=words)
