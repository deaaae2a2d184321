"""Card numbers do not reach the caller, wherever the events of the answer end; tool calls and the charge stay as they are."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from aiohttp import ClientSession
from hypothesis import given
from hypothesis import strategies as st

from gateway import Delta, Outcome, Refused
from gateway.plugin_kit import broken, check
from gateway.proxy.chunk_hooks import Rewriting
from gateway.store.client.client import Client
from gateway.testing import FakeUpstream, configuration, exchange, running
from plugins.examples.masked_answers import MaskedAnswers
from tests.whole.aftermath import last_end_record
from tests.whole.raw import ask, chat

USE = "plugins.examples.masked_answers:MaskedAnswers"
CARD = "4111 1111 1111 1111"
TEXT = f"In 2024, {CARD} and 4111111111111111-5 were 1 of 2."
MASKED = "In 2024, [card-number] and [card-number] were 1 of 2."


def masked(*pieces: str) -> str:
    plugin, of, sent = MaskedAnswers(), exchange(), ""
    held = ""
    for number, piece in enumerate(pieces):
        answer = plugin.on_delta(of, Delta(0, "content", held + piece, 0), number == len(pieces) - 1)
        assert answer is not None
        sent, held = sent + answer[0], answer[1]
    return sent + held


@given(st.lists(st.integers(0, len(TEXT)), max_size=8))
def test_a_number_is_found_wherever_pieces_end(cuts: list[int]) -> None:
    ends = sorted(cuts)
    pieces = [TEXT[begin:end] for begin, end in zip([0, *ends], [*ends, len(TEXT)], strict=True)]
    assert masked(*pieces, "") == MASKED


def test_other_text_is_not_held_back() -> None:
    event = b'data: {"choices":[{"index":0,"delta":{"content": " words, 12 "}}]}\n\n'
    plain = event.replace(b"12 ", b"")
    rewriting = Rewriting(exchange(), "masks", MaskedAnswers().on_delta)
    assert rewriting.events(plain) == plain
    assert json.loads(rewriting.events(event)[6:])["choices"][0]["delta"]["content"] == " words, "
    assert masked("9" * 200) == "[card-number]" * 10 + "9" * 10


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("gathered", [False, True])
async def test_an_answer_is_masked_and_charged_as_it_was(
    store_url: str, client: Client, tmp_path: Path, streams: bool, gathered: bool
) -> None:
    charges = []
    for plugins in ([], [{"use": USE}]):
        async with FakeUpstream(pace_s=0, words=f"it is {CARD} or so") as upstream:
            yaml = configuration(upstream.base_url, *plugins).replace(
                '"fake":{', f'"fake":{{"upstream_stream":{str(gathered).lower()},'
            )
            yaml = yaml[:-1] + ',"port":{"allow_non_streaming":true}}'
            async with running(yaml, tmp_path, store_url) as gateway:
                token = await gateway.token(f"tester{len(plugins)}")
                answer = await ask(gateway.port, chat(token, {"model": "words", "stream": streams}))
                record = await last_end_record(gateway)
                charges.append((record.prompt_tokens, record.completion_tokens, record.charge_micros))
                assert (answer.whole, record.outcome) == (True, Outcome.COMPLETED)
                assert (b"1111" in answer.body, b"[card-number]" in answer.body) == (not plugins, bool(plugins))
                assert record.changed_by == ([USE] if plugins else [])
    assert charges[0] == charges[1] and charges[0][2] > 0


async def test_a_caller_that_leaves_gets_nothing_of_what_is_held_back(
    store_url: str, client: Client, tmp_path: Path
) -> None:
    async with (
        FakeUpstream(pace_s=0, mode="stall", words=f"it is {'1 ' * 10} end") as upstream,
        running(
            configuration(upstream.base_url, {"use": USE}).replace('"fake":{', '"fake":{"on_caller_gone":"cancel",'),
            tmp_path,
            store_url,
        ) as gateway,
        ClientSession() as session,
    ):
        headers = {"Authorization": f"Bearer {await gateway.token()}"}
        body = {"model": "words", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
        async with session.post(f"{gateway.base_url}/chat/completions", json=body, headers=headers) as response:
            read = b""
            while b"is" not in read:
                read += await response.content.readany()
        record = await last_end_record(gateway)
        assert (record.outcome, record.changed_by) == (Outcome.CALLER_GONE, [])
        assert re.search(rb'"content": *"[^"]*1', read) is None


async def test_an_answer_that_cannot_be_masked_is_refused() -> None:
    plugin = MaskedAnswers()
    await plugin.on_request(exchange(path="/v1/completions"))
    await plugin.on_request(exchange(path="/v1/embeddings"))
    for path in ("/v1/messages", "/v1/responses"):
        with pytest.raises(Refused, match="send the request to /v1/chat/completions"):
            await plugin.on_request(exchange(path=path))


async def test_keeps_the_contract() -> None:
    assert broken(await check(USE)) == []
