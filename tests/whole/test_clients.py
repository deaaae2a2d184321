"""The official clients of OpenAI and Anthropic against the whole gateway: text, errors as their classes, no useless retries."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anthropic
import openai
import pytest
from anthropic.types import MessageParam

from gateway.fake_upstream import FakeUpstream
from gateway.operations.operation import SERVED
from gateway.testing import Running
from tests.whole.conftest import Serve


def client_of(gateway: Running, token: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=gateway.base_url, api_key=token, max_retries=2)


async def streamed(client: openai.AsyncOpenAI, model: str = "words") -> list[str]:
    stream = await client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "hi"}], stream=True
    )
    return [chunk.choices[0].delta.content or "" async for chunk in stream]


async def test_text_arrives_piece_by_piece(gateway: Running) -> None:
    async with client_of(gateway, await gateway.token()) as client:
        pieces = await streamed(client)
        assert len([piece for piece in pieces if piece]) > 3
        assert [model.id async for model in client.models.list()] == ["words", "other"]


@pytest.mark.parametrize(
    ("token", "credit", "model", "error", "code"),
    [
        ("sk-nobody-aaaaaaaa-bbbb", 1, "words", openai.AuthenticationError, "token_invalid"),
        ("", 5_000_000, "no-such-model", openai.NotFoundError, "model_not_found"),
        ("", 0, "words", openai.APIStatusError, "insufficient_balance"),
    ],
)
async def test_errors_raise_the_clients_own_classes_and_are_never_retried(
    gateway: Running,
    upstream: FakeUpstream,
    token: str,
    credit: int,
    model: str,
    error: type[openai.APIStatusError],
    code: str,
) -> None:
    valid = await gateway.token(credit=credit)
    async with client_of(gateway, token or valid) as client:
        with pytest.raises(error) as raised:
            await streamed(client, model)
    assert raised.value.code == code
    assert upstream.requests == []


@pytest.mark.parametrize("mode", ["cut", "truncate", "error-event"])
async def test_a_broken_stream_raises_an_error(gateway: Running, upstream: FakeUpstream, mode: str) -> None:
    upstream.mode = mode
    async with client_of(gateway, await gateway.token()) as client:
        with pytest.raises(openai.APIError):
            await streamed(client)
    assert len(upstream.requests) == 1


ASKED: list[MessageParam] = [{"role": "user", "content": "hi there"}]


@pytest.fixture
async def gateway_for_agents(upstream: FakeUpstream, serve: Serve) -> AsyncIterator[Running]:
    channel = f", operations: [{', '.join(SERVED)}]"
    async with serve(upstream.base_url, channel=channel) as whole:
        yield whole


def claude(gateway_for_agents: Running, token: str) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=gateway_for_agents.base_url.removesuffix("/v1"), api_key=token)


def gpt(gateway_for_agents: Running, token: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=gateway_for_agents.base_url, api_key=token)


async def test_messages_by_anthropics_library(gateway_for_agents: Running) -> None:
    async with claude(gateway_for_agents, await gateway_for_agents.token()) as client:
        async with client.messages.stream(model="words", max_tokens=100, messages=ASKED) as stream:
            pieces = [text async for text in stream.text_stream]
            final = await stream.get_final_message()
        assert len(pieces) > 3
        assert (final.stop_reason, final.usage.input_tokens, final.usage.output_tokens) == ("end_turn", 2, len(pieces))
        whole = await client.messages.create(model="words", max_tokens=3, messages=ASKED)
        assert (whole.stop_reason, whole.usage.output_tokens) == ("max_tokens", 3)
        counted = await client.messages.count_tokens(model="words", messages=ASKED)
        assert counted.input_tokens == 2
        assert [model.id async for model in client.models.list()] == ["words", "other"]


@pytest.mark.parametrize(
    ("credit", "model", "error", "code"),
    [
        (1, "no-such-model", anthropic.NotFoundError, "model_not_found"),
        (0, "words", anthropic.APIStatusError, "insufficient_balance"),
        (-1, "words", anthropic.AuthenticationError, "token_invalid"),
    ],
)
async def test_a_refusal_raises_the_librarys_own_class_once(
    gateway_for_agents: Running,
    upstream: FakeUpstream,
    credit: int,
    model: str,
    error: type[anthropic.APIStatusError],
    code: str,
) -> None:
    token = await gateway_for_agents.token(credit=max(credit, 0)) if credit >= 0 else "sk-nobody-aaaaaaaa-bbbb"
    async with claude(gateway_for_agents, token) as client:
        with pytest.raises(error) as raised:
            await client.messages.create(model=model, max_tokens=10, messages=ASKED)
    assert isinstance(raised.value.body, dict)
    assert (raised.value.body["error"]["code"], raised.value.request_id) == (code, raised.value.body["request_id"])
    assert upstream.requests == []


@pytest.mark.parametrize("mode", ["cut", "truncate", "error-event", "first-error", "500", "429"])
async def test_a_broken_message_raises_an_error(gateway_for_agents: Running, upstream: FakeUpstream, mode: str) -> None:
    upstream.mode = mode
    async with claude(gateway_for_agents, await gateway_for_agents.token()).with_options(max_retries=0) as client:
        with pytest.raises((anthropic.APIError, anthropic.APIConnectionError)):
            async with client.messages.stream(model="words", max_tokens=100, messages=ASKED) as stream:
                await stream.until_done()


async def test_responses_by_openais_library(gateway_for_agents: Running) -> None:
    async with gpt(gateway_for_agents, await gateway_for_agents.token()) as client:
        async with client.responses.stream(model="words", input="hi there", store=False) as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_response()
        assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
        assert final.usage is not None
        assert final.usage.output_tokens == kinds.count("response.output_text.delta")
        whole = await client.responses.create(model="words", input="hi there", max_output_tokens=100, store=False)
        assert whole.output_text == final.output_text
        assert (await client.responses.input_tokens.count(model="words", input="hi there")).input_tokens == 2


@pytest.mark.parametrize("mode", ["cut", "truncate", "error-event"])
@pytest.mark.parametrize("helper", [False, True])
async def test_a_broken_response_raises_an_error(
    gateway_for_agents: Running, upstream: FakeUpstream, mode: str, helper: bool
) -> None:
    upstream.mode = mode
    async with gpt(gateway_for_agents, await gateway_for_agents.token()) as client:
        with pytest.raises(openai.APIError):
            if helper:
                async with client.responses.stream(model="words", input="hi") as events:
                    await events.get_final_response()
            else:
                async for _ in await client.responses.create(model="words", input="hi", stream=True):
                    pass
    assert len(upstream.requests) == 1


async def test_embeddings_by_openais_library(gateway_for_agents: Running, upstream: FakeUpstream) -> None:
    async with gpt(gateway_for_agents, await gateway_for_agents.token()) as client:
        found = await client.embeddings.create(model="words", input=["one two", "three"], encoding_format="float")
        assert ([len(each.embedding) for each in found.data], found.usage.prompt_tokens) == ([8, 8], 3)
        await client.embeddings.create(model="words", input="one")
    assert b'"encoding_format":"base64"' in upstream.requests[-1].body


async def test_completions_and_moderations_by_openais_library(gateway_for_agents: Running) -> None:
    async with gpt(gateway_for_agents, await gateway_for_agents.token()) as client:
        stream = await client.completions.create(model="words", prompt="hi there", max_tokens=100, stream=True)
        pieces = [chunk.choices[0].text async for chunk in stream]
        whole = await client.completions.create(model="words", prompt="hi there", max_tokens=100)
        assert "".join(pieces) == whole.choices[0].text
        assert whole.usage is not None
        assert (whole.usage.completion_tokens, whole.choices[0].finish_reason) == (len(pieces) - 2, "stop")
        found = await client.moderations.create(model="words", input=["a", "b"])
        assert [result.flagged for result in found.results] == [False, False]
