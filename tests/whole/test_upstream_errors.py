"""Errors of upstreams in every dialect: what the caller and the official client get, the outcome and the charge."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import openai
import pytest

from gateway import Outcome
from gateway.store.channels import CooldownRules
from gateway.store.client.client import Client
from gateway.testing import Running, running
from tests.chat.dialects import DIALECTS, MESSAGE, NOT_ERRORS
from tests.whole.aftermath import charged, last_end_record
from tests.whole.conftest import configuration
from tests.whole.raw import ask, chat
from tests.whole.scripted import CHUNKED, LAST, Scripted, Step, chunk
from tests.whole.test_stream import DONE, STREAM, USAGE, WORDS

HALF = b"".join(WORDS[:4])
FINISHED = b"".join(WORDS)
LONG = MESSAGE + " again" * 200


def data_event(data: str, name: str = "") -> bytes:
    return (f"event: {name}\n" if name else "").encode() + f"data: {data}\n\n".encode()


@asynccontextmanager
async def playing(script: list[Step], store_url: str, folder: Path, more: str = "") -> AsyncIterator[Running]:
    async with (
        Scripted(script) as upstream,
        running(configuration(upstream.base_url, more=more), folder, store_url) as gateway,
    ):
        gateway.gateway.services.store.channels.cooldown = CooldownRules(min_failures=100)  # more follow
        yield gateway


@pytest.mark.parametrize(
    "before", [HALF, FINISHED, FINISHED + USAGE], ids=["in the middle", "at the end", "after usage"]
)
async def test_an_error_event_after_the_first_byte(
    before: bytes, store_url: str, client: Client, tmp_path: Path
) -> None:
    script: list[Step] = []
    async with playing(script, store_url, tmp_path) as gateway:
        token = await gateway.token()
        spent = 0
        for data, raises in DIALECTS.values():
            failing = data_event(data.replace(MESSAGE, LONG))
            # The error and `[DONE]` in one read, as vLLM sends them.
            script[:] = [CHUNKED + chunk(before), 0.01, chunk(failing + DONE) + LAST]
            answer = await ask(gateway.port, chat(token))
            assert (answer.status, answer.whole) == (200, False)
            relayed = before.replace(USAGE, b"")
            assert answer.body.startswith(relayed + (failing if raises else b"data: "))
            error = json.loads(answer.body.removeprefix(relayed)[6:])["error"]
            assert MESSAGE in error["message"]
            assert all(error.get(name) is None or isinstance(error[name], str) for name in ("type", "param", "code"))
            record = await last_end_record(gateway)
            assert (record.outcome, record.error_code) == (Outcome.UPSTREAM_ERROR_IN_STREAM, "")
            assert record.completion_tokens <= 9
            spent += record.charge_micros
            assert await charged(gateway) == spent
            assert (record.usage_source == "upstream") is (USAGE in before)


@pytest.mark.parametrize("dialect", ["OpenAI", "vLLM", "TGI", "FastAPI", "Google", "OpenRouter"])
async def test_an_error_event_before_the_first_byte_is_an_error_and_costs_nothing(
    dialect: str, store_url: str, client: Client, tmp_path: Path
) -> None:
    failing = data_event(DIALECTS[dialect][0])
    async with playing([CHUNKED + chunk(b": wait\n\n" + failing + DONE) + LAST], store_url, tmp_path) as gateway:
        answer = await ask(gateway.port, chat(await gateway.token()))
        assert (answer.status, answer.error["code"]) == (502, "upstream_error")
        record = await last_end_record(gateway)
        assert (record.outcome, record.charge_micros) == (Outcome.UPSTREAM_FAILED, 0)


async def test_what_is_no_error_ends_nothing_and_the_answer_is_complete(
    store_url: str, client: Client, tmp_path: Path
) -> None:
    script: list[Step] = []
    async with playing(script, store_url, tmp_path) as gateway:
        token = await gateway.token()
        for data in NOT_ERRORS.values():
            for stream in (data_event(data) + STREAM, HALF + data_event(data) + STREAM[len(HALF) :]):
                script[:] = [CHUNKED + chunk(stream) + LAST]
                answer = await ask(gateway.port, chat(token))
                assert (answer.status, answer.whole) == (200, True)
                without_choice = b"choices" not in data_event(data) or b'"choices":[]' in data_event(data)
                dropped = data_event(data) if without_choice and data != "[]" else b""
                assert answer.body == stream.replace(USAGE, b"").replace(dropped, b"")
                assert (await last_end_record(gateway)).outcome is Outcome.COMPLETED


async def test_the_official_client_raises_on_every_error_event(store_url: str, client: Client, tmp_path: Path) -> None:
    script: list[Step] = []
    async with playing(script, store_url, tmp_path) as gateway:
        token = await gateway.token()
        async with openai.AsyncOpenAI(base_url=gateway.base_url, api_key=token, max_retries=0) as library:
            for data, _ in DIALECTS.values():
                for name in ("", "error"):
                    script[:] = [CHUNKED + chunk(HALF), 0.01, chunk(data_event(data, name) + DONE) + LAST]
                    text = ""
                    with pytest.raises(openai.APIError, match=MESSAGE):
                        async for part in await library.chat.completions.create(
                            model="words", messages=[{"role": "user", "content": "hi"}], stream=True
                        ):
                            text += part.choices[0].delta.content or ""
                    assert text == " word0 word1 word2"


async def test_the_credential_is_redacted_in_an_error_that_is_replaced(
    store_url: str, client: Client, tmp_path: Path
) -> None:
    failing = data_event('{"object":"error","message":"bad key channel-credential-4711"}')
    script: list[Step] = [CHUNKED + chunk(HALF), 0.01, chunk(failing) + LAST]
    async with playing(script, store_url, tmp_path) as gateway:
        answer = await ask(gateway.port, chat(await gateway.token()))
        assert b"4711" not in answer.body
        assert b"bad key [redacted]" in answer.body


def in_json(data: str, status: str) -> list[Step]:
    body = data.encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return [head.encode() + body]


async def test_an_error_as_json_with_a_status_of_the_caller_is_passed_on(
    store_url: str, client: Client, tmp_path: Path
) -> None:
    script: list[Step] = []
    async with playing(script, store_url, tmp_path) as gateway:
        token = await gateway.token()
        for data, _ in DIALECTS.values():
            script[:] = in_json(data, "422 Unprocessable")
            answer = await ask(gateway.port, chat(token))
            assert (answer.status, answer.error["message"]) == (422, MESSAGE)
            record = await last_end_record(gateway)
            assert (record.outcome, record.charge_micros) == (Outcome.UPSTREAM_FAILED, 0)


ANSWER = {"id": "c", "object": "chat.completion", "choices": [{"index": 0, "message": {"content": "x" * 40}}]}
INPUT = -(-len('[{"role": "user", "content": "hi"}]') // 4)


@pytest.mark.parametrize(
    ("usage", "prompt", "completion"),
    [
        ({"prompt_tokens": 7, "completion_tokens": 11}, 7, 11),
        ({}, INPUT, 10),
        (None, INPUT, 10),
        ({"total_tokens": 90}, INPUT, 90 - INPUT),
        ({"prompt_tokens": 7, "total_tokens": 18}, 7, 11),
        ({"prompt_tokens": None, "completion_tokens": 11}, INPUT, 11),
        ({"prompt_tokens": 7, "completion_tokens": 0}, 7, 10),
        ({"prompt_tokens": -7, "completion_tokens": 1.5}, INPUT, 10),
        ({"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 18}, 7, 11),
    ],
)
async def test_a_json_answer_is_charged_by_its_usage_or_by_its_text(
    usage: object, prompt: int, completion: int, store_url: str, client: Client, tmp_path: Path
) -> None:
    script = in_json(json.dumps({**ANSWER, "padding": "y" * 4000, "usage": usage}), "200 OK")
    async with playing(script, store_url, tmp_path, "port: {allow_non_streaming: true}") as gateway:
        answer = await ask(gateway.port, chat(await gateway.token(), {"stream": False}))
        assert (answer.status, answer.whole) == (200, True)
        record = await last_end_record(gateway)
        assert (record.outcome, record.prompt_tokens, record.completion_tokens) == (
            Outcome.COMPLETED,
            prompt,
            completion,
        )
        assert await charged(gateway) == prompt + 2 * completion


@pytest.mark.parametrize("dialect", ["OpenAI", "vLLM", "TGI", "FastAPI", "Google", "xAI"])
async def test_an_error_as_json_with_200_is_an_error_and_costs_nothing(
    dialect: str, store_url: str, client: Client, tmp_path: Path
) -> None:
    script = in_json(DIALECTS[dialect][0], "200 OK")
    async with playing(script, store_url, tmp_path, "port: {allow_non_streaming: true}") as gateway:
        answer = await ask(gateway.port, chat(await gateway.token(), {"stream": False}))
        assert (answer.status, answer.error["code"]) == (502, "upstream_error")
        assert MESSAGE in answer.error["message"]
        record = await last_end_record(gateway)
        assert (record.outcome, record.charge_micros) == (Outcome.UPSTREAM_FAILED, 0)
