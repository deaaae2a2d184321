"""The official OpenAI client against the whole gateway: streamed text, errors as the client's classes, no useless retries."""

from __future__ import annotations

import openai
import pytest

from gateway.fake_upstream import FakeUpstream
from gateway.testing import Running


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
