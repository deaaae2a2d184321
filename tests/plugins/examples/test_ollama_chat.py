"""An upstream that streams lines of JSON serves callers of chat completions as any other does."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.config.channel import Channel
from gateway.plugin_kit import broken, check
from gateway.testing import Running, running
from gateway.tools.channel_test import ChannelCall, try_channel
from plugins.examples.ollama_chat import Ollama
from tests.patience import PATIENCE_S
from tests.whole.aftermath import last_end_record
from tests.whole.conftest import CHAIN
from tests.whole.raw import Answer, ask, chat
from tests.whole.scripted import LAST, Fin, Scripted, Step, chunk

USE = "plugins.examples.ollama_chat:OllamaChat"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
TEXT = [
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
  - use: {USE}
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
async def test_a_stream_of_lines(store_url: str, tmp_path: Path, size: int, ends: bytes) -> None:
    data = lines(*TEXT, END).removesuffix(b"\n") + ends
    script: list[Step] = [HEAD, *(chunk(data[at : at + size]) for at in range(0, len(data), size)), LAST]
    async with serving(tmp_path, store_url, script, script) as (gateway, token, upstream):
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


async def test_errors_cuts_and_what_cannot_be_sent(store_url: str, tmp_path: Path) -> None:
    missing = b'{"error":"model not found"}'
    refused: list[Step] = [b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n" % len(missing) + missing]
    within: list[Step] = [HEAD + chunk(lines(*TEXT, {"error": "out of memory"})) + LAST]
    cut: list[Step] = [HEAD + chunk(lines(*TEXT) + b'{"message":{"con'), LAST, Fin]
    async with serving(tmp_path, store_url, within, cut, refused) as (gateway, token, _):
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
    async with Scripted([HEAD + chunk(lines(*TEXT, END)) + LAST]) as upstream:
        channel = Channel(base_url=upstream.base_url.removesuffix("/v1"), dialect="ollama")
        verdict = await try_channel(ChannelCall(channel, "llama3.2", "", Ollama()))
        assert (verdict.good, verdict.text) == (True, "it streams")


async def test_keeps_the_contract() -> None:
    assert broken(await check(USE)) == []
