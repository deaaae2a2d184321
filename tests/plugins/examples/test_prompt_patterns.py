"""A prompt that matches is refused with the name of the pattern, wherever in the messages the match is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway import Refused, Services
from gateway.testing import exchange, services, started
from plugins.examples.prompt_patterns import PromptPatterns

CARD = "4111 1111 1111 1111"


@pytest.fixture
async def given(store_url: str, tmp_path: Path) -> AsyncIterator[Services]:
    async with services(tmp_path, store_url) as given:
        yield given


async def refusal(patterns: PromptPatterns, message: dict[str, object]) -> Refused:
    with pytest.raises(Refused) as refused:
        await patterns.on_request(exchange({"messages": [{"role": "user", **message}]}))
    return refused.value


@pytest.mark.parametrize(
    "message",
    [
        {"content": f"my card is {CARD}."},
        {"content": "my card is 4111-1111-1111-1111"},
        {"content": [{"type": "text", "text": "hello"}, {"type": "text", "text": CARD}]},
        {"content": "", "tool_calls": [{"function": {"name": "pay", "arguments": f'{{"card": "{CARD}"}}'}}]},
    ],
)
async def test_every_string_of_the_messages_is_searched(given: Services, message: dict[str, object]) -> None:
    refused = await refusal(await started(PromptPatterns(), given), message)
    assert (refused.status, refused.code, refused.param) == (400, "prompt_forbidden", "messages")
    assert "(card-number)" in refused.message
    assert "4111" not in refused.message


async def test_escaped_characters_are_searched_as_well(given: Services) -> None:
    patterns = await started(PromptPatterns(patterns={"word": "secret"}), given)
    escaped = rb'{"model": "m", "stream": true, "messages": [{"role": "user", "content": "\u0073ecret"}]}'
    with pytest.raises(Refused, match="word"):
        await patterns.on_request(exchange(escaped))


@pytest.mark.parametrize("content", ["hello", "order 4111 1111 of 2026", "BEGIN PRIVATE KEY"])
async def test_a_prompt_without_a_match_passes(given: Services, content: str) -> None:
    patterns = await started(PromptPatterns(), given)
    await patterns.on_request(exchange({"messages": [{"role": "user", "content": content}]}))


async def test_a_request_without_a_prompt_passes(given: Services) -> None:
    patterns = await started(PromptPatterns(), given)
    await patterns.on_request(exchange(b"", method="GET", path="/v1/models"))


async def test_a_broken_pattern_stops_the_start_and_is_named(given: Services) -> None:
    with pytest.raises(ValueError, match=r"patterns\.broken is no regular expression"):
        await started(PromptPatterns(patterns={"broken": "("}), given)
