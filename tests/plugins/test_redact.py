"""Redact replaces what matches in every text of a request, and leaves all else as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway import Caller, Exchange, Refused, Services
from gateway.contract import broken, check
from gateway.store.client.client import Client
from gateway.testing import exchange, run_request, services, started
from plugins.redact import Redact

CARD = "4111 1111 1111 1111"
PICTURE = "data:image/png;base64,4111111111111111"


async def redacted(given: Services, body: dict[str, Any], **settings: Any) -> tuple[Exchange, dict[str, Any]]:
    of = exchange(body)
    await run_request(await started(Redact(**settings), given), of, given)
    return of, {name: msgspec.json.decode(value) for name, value in (await of.body()).top.items()}


@pytest.fixture
async def given(store_url: str, client: Client, tmp_path: Path) -> Any:
    async with services(tmp_path, store_url) as made:
        yield made


async def test_every_text_is_searched(given: Services) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "pay", "arguments": f'{{"card":"{CARD}"}}'}}
    of, top = await redacted(
        given,
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": f"my card is {CARD}."}]},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "user", "content": f"{CARD}, ann@mail.example.org", "name": "ann"},
            ],
            "user": "ann@mail.example.org",
            "metadata": {"key": "AKIAABCDEFGHIJKLMNOP"},
            "temperature": 1.50,
        },
    )
    messages = top["messages"]
    assert messages[0]["content"][0]["text"] == "my card is [card-number]."
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == '{"card":"[card-number]"}'
    assert messages[2] == {"role": "user", "content": "[card-number], [e-mail]", "name": "ann"}
    assert (top["user"], top["metadata"]) == ("[e-mail]", {"key": "[aws-key]"})
    assert bytes((await of.body()).top["temperature"]) == b"1.5"
    assert of.changed_by == ("test",)


async def test_encoded_parts_and_names_that_mean_something_stay(given: Services) -> None:
    content = [
        {"type": "image_url", "image_url": {"url": PICTURE}},
        {"type": "input_audio", "input_audio": {"data": "4111111111111111", "format": "wav"}},
    ]
    body = {"model": "4111111111111111", "messages": [{"role": "user", "content": content}]}
    of, top = await redacted(given, body)
    assert of.changed_by == ()
    assert top["model"] == "4111111111111111"
    link = {"type": "image_url", "image_url": {"url": "https://x.example/?mail=ann@example.org"}}
    _, top = await redacted(given, {"messages": [{"role": "user", "content": [link]}]})
    assert "ann@" not in str(top)


async def test_patterns_of_the_operator_replace_the_common_ones(given: Services) -> None:
    body = {"messages": [{"role": "user", "content": f"project Falcon, {CARD}"}]}
    _, top = await redacted(given, body, patterns={r"a\1name": "(?i)falcon"})
    assert top["messages"][0]["content"] == rf"project [a\1name], {CARD}"
    with pytest.raises(ValueError, match=r"patterns\.x is no regular expression"):
        await started(Redact(patterns={"x": "("}), given)


async def test_a_large_body_is_searched_message_by_message(given: Services) -> None:
    messages = [{"role": "user", "content": "x" * 50_000 + CARD} for _ in range(3)]
    _, top = await redacted(given, {"messages": messages})
    assert all(message["content"].endswith("x[card-number]") for message in top["messages"]) is False
    assert all(CARD in message["content"] for message in top["messages"])  # within a word, it is no card number
    _, top = await redacted(given, {"messages": [{"role": "user", "content": "x " * 50_000 + CARD}] * 3})
    assert all(message["content"].endswith(" [card-number]") for message in top["messages"])


async def test_it_explains_what_it_would_replace(store_url: str, client: Client) -> None:
    assert broken(await check("plugins.redact:Redact", url=store_url)) == []


async def test_a_number_that_cannot_be_read_is_the_callers_mistake(given: Services) -> None:
    plugin = await started(Redact(), given)
    asked = exchange(b'{"model":"m","stream":true,"messages":[{"role":"user","content":"x","w":1e999}]}')
    asked[Caller] = Caller(account="alice", token_id="alice-1", group="default")
    with pytest.raises(Refused, match="'messages' has a number that is too large"):
        await plugin.on_request(asked)
