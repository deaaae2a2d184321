"""Chunks without a choice: they are dropped unless the channel passes them on, and a stream does not begin with them."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import openai
import pytest

from gateway.domain.exchange import Outcome
from gateway.store.client.client import Client
from gateway.testing import Running, running
from tests.whole.aftermath import charged, last_end_record
from tests.whole.conftest import configuration
from tests.whole.raw import ask, chat
from tests.whole.scripted import CHUNKED, LAST, Hold, Scripted, Step, chunk
from tests.whole.test_stream import CHARGE, DONE, USAGE, WORDS

AZURE = (
    b'data: {"choices":[],"created":0,"id":"","model":"","object":"","prompt_filter_results":[{"prompt_index":0,'
    b'"content_filter_results":{"hate":{"filtered":false,"severity":"safe"}}}]}\n\n'
)
NO_CHOICES = b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m"}\n\n'
EMPTY = (AZURE, NO_CHOICES, AZURE.replace(b"[]", b"null", 1), AZURE.replace(b":[]", b": []", 1))
TEXT = b"".join(WORDS)
ASKED: dict[str, object] = {"stream_options": {"include_usage": True}}


@asynccontextmanager
async def playing(
    scripts: Sequence[Sequence[Step]], url: str, folder: Path, channel: str = "", second: str = ""
) -> AsyncIterator[tuple[Running, str]]:
    """Yield a gateway in front of an upstream that plays the scripts, and a token. `second`: a channel behind the first."""
    async with Scripted(*scripts) as upstream:
        yaml = configuration(upstream.base_url, channel=channel)
        if second:
            yaml = yaml.replace("\nmodels:", f'\n  spare: {{base_url: "{second}"}}\nmodels:', 1)
            yaml = yaml.replace("channels: [fake]}", "channels: [fake, {use: spare, priority: 1}]}", 1)
        async with running(yaml, folder, url) as gateway:
            yield gateway, await gateway.token()


async def test_they_are_dropped_wherever_they_are(store_url: str, client: Client, tmp_path: Path) -> None:
    script: list[Step] = []
    async with playing([script], store_url, tmp_path) as (gateway, token):
        spent = 0
        for empty in EMPTY:
            for body, passed in (({}, TEXT + DONE), (ASKED, TEXT + USAGE + DONE)):
                sent = empty + WORDS[0] + empty + b"".join(WORDS[1:]) + empty + USAGE + DONE
                for steps in ([chunk(sent)], [chunk(sent[: len(empty)]), 0.01, chunk(sent[len(empty) :])]):
                    script[:] = [CHUNKED, *steps, LAST]
                    answer = await ask(gateway.port, chat(token, body))
                    assert (answer.status, answer.whole, answer.body) == (200, True, passed)
                    record = await last_end_record(gateway)
                    assert (record.outcome, record.events) == (Outcome.COMPLETED, passed.count(b"data:"))
                    spent += CHARGE
                    assert await charged(gateway) == spent


async def test_a_channel_may_pass_them_on(store_url: str, client: Client, tmp_path: Path) -> None:
    sent = AZURE + TEXT + NO_CHOICES + USAGE + DONE
    script = [CHUNKED + chunk(sent) + LAST]
    async with playing([script], store_url, tmp_path, ", empty_choices: pass") as (gateway, token):
        assert (await ask(gateway.port, chat(token))).body == sent.replace(USAGE, b"")
        assert (await ask(gateway.port, chat(token, ASKED))).body == sent
        assert await charged(gateway) == 2 * CHARGE


async def test_usage_that_an_upstream_tells_of_its_own_accord_is_charged_and_dropped(
    store_url: str, client: Client, tmp_path: Path
) -> None:
    script = [CHUNKED + chunk(TEXT + USAGE + DONE) + LAST]
    async with playing([script], store_url, tmp_path, ", ask_usage: false") as (gateway, token):
        assert (await ask(gateway.port, chat(token))).body == TEXT + DONE
        assert (await ask(gateway.port, chat(token, ASKED))).body == TEXT + USAGE + DONE
        assert await charged(gateway) == 2 * CHARGE


@pytest.mark.parametrize(
    "after",
    [
        [chunk(b'data: {"error":{"message":"filtered","type":"x","param":null,"code":"x"}}\n\n') + LAST],
        [LAST],
        [Hold],
    ],
    ids=["error", "end", "silence"],
)
async def test_another_channel_answers_where_nothing_else_came(
    store_url: str, client: Client, tmp_path: Path, after: list[Step]
) -> None:
    first: list[Step] = [CHUNKED + chunk(AZURE), 0.01, *after]
    async with Scripted([CHUNKED + chunk(TEXT + USAGE + DONE) + LAST]) as spare:
        timers = ", timers: {first_byte: 0.5}"
        async with playing([first], store_url, tmp_path, timers, spare.base_url) as (gateway, token):
            answer = await ask(gateway.port, chat(token))
            assert (answer.status, answer.whole, answer.body) == (200, True, TEXT + DONE)
            record = await last_end_record(gateway)
            assert (record.outcome, record.channel) == (Outcome.COMPLETED, "spare")
            assert len(record.attempts) == 2


async def test_the_first_byte_is_that_of_the_first_choice(store_url: str, client: Client, tmp_path: Path) -> None:
    script: list[Step] = [CHUNKED + chunk(AZURE), 0.3, chunk(TEXT + USAGE + DONE) + LAST]
    async with playing([script], store_url, tmp_path) as (gateway, token):
        began = time.monotonic()
        await ask(gateway.port, chat(token))
        record = await last_end_record(gateway)
        assert record.first_byte_ms is not None
        assert 290 <= record.first_byte_ms <= (time.monotonic() - began) * 1000


async def test_upstreams_that_send_nothing_else_are_ended(store_url: str, client: Client, tmp_path: Path) -> None:
    script: list[Step] = [CHUNKED + chunk(AZURE) + LAST]
    async with playing([script], store_url, tmp_path) as (gateway, token):
        answer = await ask(gateway.port, chat(token))
        assert (answer.status, answer.error["code"]) == (502, "upstream_error")
        assert await charged(gateway) == 0


async def test_every_example_on_the_web_works(store_url: str, client: Client, tmp_path: Path) -> None:
    """Take the first choice of each chunk without looking, as the interface promises that it may."""
    script: list[Step] = [CHUNKED + chunk(AZURE), 0.01, chunk(TEXT + AZURE + USAGE + DONE) + LAST]
    async with playing([script], store_url, tmp_path) as (gateway, token):
        async with openai.AsyncOpenAI(base_url=gateway.base_url, api_key=token, max_retries=0) as library:
            stream = await library.chat.completions.create(
                model="words", messages=[{"role": "user", "content": "hi"}], stream=True
            )
            text = "".join([part.choices[0].delta.content or "" async for part in stream])
        assert text == "".join(json.loads(word[6:])["choices"][0]["delta"].get("content", "") for word in WORDS)
