"""Example plugins that change an answer: card numbers are masked wherever events end; an upstream of JSON lines is translated."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from hypothesis import given
from hypothesis import strategies as st

from gateway import Delta, Outcome, Refused
from gateway.config.channel import Channel
from gateway.plugin_kit import broken, check
from gateway.proxy.chunk_hooks import Rewriting
from gateway.testing import FakeUpstream, Running, configuration, exchange, running
from gateway.tools.channel_test import ChannelCall, try_channel
from plugins.examples.masked_answers import MaskedAnswers
from plugins.examples.ollama_chat import Ollama
from tests.patience import PATIENCE_S
from tests.place import Place
from tests.whole.aftermath import last_end_record
from tests.whole.conftest import CHAIN
from tests.whole.raw import Answer, ask, chat
from tests.whole.scripted import LAST, Fin, Scripted, Step, chunk

OLLAMA = "plugins.examples.ollama_chat:OllamaChat"
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
async def test_an_answer_is_masked_and_charged_as_it_was(place: Place, streams: bool, gathered: bool) -> None:
    charges = []
    for plugins in ([], [{"use": USE}]):
        async with FakeUpstream(pace_s=0, words=f"it is {CARD} or so") as upstream:
            yaml = configuration(upstream.base_url, *plugins).replace(
                '"fake":{', f'"fake":{{"upstream_stream":{str(gathered).lower()},'
            )
            yaml = yaml[:-1] + ',"port":{"allow_non_streaming":true}}'
            async with running(yaml, *place) as gateway:
                token = await gateway.token(f"tester{len(plugins)}")
                answer = await ask(gateway.port, chat(token, {"model": "words", "stream": streams}))
                record = await last_end_record(gateway)
                charges.append((record.prompt_tokens, record.completion_tokens, record.charge_micros))
                assert (answer.whole, record.outcome) == (True, Outcome.COMPLETED)
                assert (b"1111" in answer.body, b"[card-number]" in answer.body) == (not plugins, bool(plugins))
                assert record.changed_by == ([USE] if plugins else [])
    assert charges[0] == charges[1] and charges[0][2] > 0


async def test_a_caller_that_leaves_gets_nothing_of_what_is_held_back(store_url: str, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("use", [USE, OLLAMA])
async def test_keeps_the_contract(use: str) -> None:
    assert broken(await check(use)) == []


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
THOUGHT = [
    {"message": {"role": "assistant", "thinking": "Hm."}},
    *({"message": {"content": each}} for each in ("Grü", "ße")),
]
END = {"message": {"content": ""}, "done": True, "done_reason": "stop", "prompt_eval_count": 3, "eval_count": 2}


def lines(*values: dict[str, Any]) -> bytes:
    return b"".join(json.dumps({"model": "llama3.2", **each}, ensure_ascii=False).encode() + b"\n" for each in values)


@asynccontextmanager
async def serving(folder: Path, url: str, *scripts: list[Step]) -> AsyncIterator[tuple[Running, str, Scripted]]:
    async with Scripted(*scripts) as upstream:
        text = f"""
channels: {{own: {{base_url: "{upstream.base_url.removesuffix("/v1")}", dialect: ollama}}}}
models: {{words: {{input: 1, output: 2, channels: [{{use: own, model: llama3.2}}]}}}}
groups: {{default: {{}}}}
port: {{allow_non_streaming: true}}
store: {{timeout: {PATIENCE_S}}}
{CHAIN}
  - use: {OLLAMA}
"""
        async with running(text, folder, url) as gateway:
            yield gateway, await gateway.token(), upstream


def said(answer: Answer) -> tuple[str, str]:
    """Return the reasoning and the text of a stream."""
    chunks = [json.loads(line[6:]) for line in answer.body.splitlines() if line.startswith(b"data: {")]
    deltas = [choice["delta"] for each in chunks for choice in each["choices"]]
    return "".join(d.get("reasoning_content", "") for d in deltas), "".join(d.get("content", "") for d in deltas)


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("ends", [b"\n", b""])
async def test_a_stream_of_lines(place: Place, size: int, ends: bytes) -> None:
    data = lines(*THOUGHT, END).removesuffix(b"\n") + ends
    script: list[Step] = [HEAD, *(chunk(data[at : at + size]) for at in range(0, len(data), size)), LAST]
    async with serving(*place, script, script) as (gateway, token, upstream):
        answer = await ask(gateway.port, chat(token, {"max_tokens": 50, "temperature": 0.5}))
        assert answer.whole and answer.body.endswith(b"data: [DONE]\n\n")
        assert said(answer) == ("Hm.", "Grüße")
        record = await last_end_record(gateway)
        assert (record.prompt_tokens, record.completion_tokens, record.charge_micros) == (3, 2, 3 + 2 * 2)
        first = json.loads(answer.body[6:].partition(b"\n")[0])
        assert (first["model"], first["id"]) == ("words", f"chatcmpl-{record.id}") and record.completion_id == first[
            "id"
        ]
        whole = await ask(gateway.port, chat(token, {"stream": False}))
        assert json.loads(whole.body)["choices"][0]["message"]["content"] == "Grüße"
        head, _, body = upstream.requests[0].partition(b"\r\n\r\n")
        assert head.startswith(b"POST /api/chat HTTP/1.1\r\n") and b"Accept: application/x-ndjson\r\n" in head
        assert json.loads(body) == {
            "model": "llama3.2",
            "messages": [{"role": "user", "content": "hi"}],
            "stream": True,
            "options": {"temperature": 0.5, "num_predict": 50},
        }


async def test_errors_cuts_and_what_cannot_be_sent(place: Place) -> None:
    missing = b'{"error":"model not found"}'
    refused: list[Step] = [b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n" % len(missing) + missing]
    within: list[Step] = [HEAD + chunk(lines(*THOUGHT, {"error": "out of memory"})) + LAST]
    cut: list[Step] = [HEAD + chunk(lines(*THOUGHT) + b'{"message":{"con'), LAST, Fin]
    async with serving(*place, within, cut, refused) as (gateway, token, _):
        for outcome in ("upstream_error_in_stream", "upstream_truncated"):
            assert not (await ask(gateway.port, chat(token))).whole
            assert (await last_end_record(gateway)).outcome == outcome
        assert (await ask(gateway.port, chat(token))).status in (404, 502)
        picture = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
        answer = await ask(gateway.port, chat(token, {"messages": picture}))
        assert (answer.status, answer.error["param"]) == (400, "messages")
        answer = await ask(gateway.port, chat(token, {"logit_bias": {"5": 1}}))
        assert (answer.status, answer.error["param"]) == (400, "logit_bias")


async def test_a_channel_is_tried() -> None:
    async with Scripted([HEAD + chunk(lines(*THOUGHT, END)) + LAST]) as upstream:
        channel = Channel(base_url=upstream.base_url.removesuffix("/v1"), dialect="ollama")
        verdict = await try_channel(ChannelCall(channel, "llama3.2", "", Ollama()))
        assert (verdict.good, verdict.text) == (True, "it streams")
