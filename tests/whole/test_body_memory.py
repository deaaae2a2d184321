"""The memory of request bodies: it is free from the first byte of the answer on, and one account cannot take all of it."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from typing import Any

import pytest

from gateway import Caller, Exchange, Outcome, Plugin
from tests.patience import wait_until
from tests.whole.aftermath import assert_ended
from tests.whole.conftest import CHAIN, Serve
from tests.whole.raw import ask, chat, read_answer
from tests.whole.scripted import CHUNKED, LAST, Forever, Hold, Scripted, Step, chunk
from tests.whole.test_errors import assert_error
from tests.whole.test_stream import STREAM, WORDS

BIG = 5_000_000


class Keeper(Plugin):
    """A plugin that keeps the body from `on_request` on, and asks for it in its other hooks."""

    requires = (Caller,)

    async def on_request(self, exchange: Exchange) -> None:
        kept["first"] = await exchange.body()

    async def on_end(self, exchange: Exchange) -> None:
        kept["last"] = await exchange.body()


kept: dict[str, Any] = {}
KEEPING = CHAIN.replace("  - use: quota", f"  - use: {__name__}:Keeper\n  - use: quota").replace(
    "tokens_per_minute: 1000000", "tokens_per_minute: 100000000"
)


async def streaming(serve: Serve, body: dict[str, Any]) -> None:
    kept.clear()
    gate = asyncio.Event()
    steps: list[Step] = [CHUNKED + chunk(WORDS[0]), Forever(b"", 0.01, until=gate.is_set), chunk(STREAM) + LAST]
    async with Scripted(steps) as upstream, serve(upstream.base_url, chain=KEEPING) as gateway:
        token = await gateway.token(credit=10**9)
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        request = chat(token, body)
        size = len(request)
        writer.write(request)
        del request
        await reader.readuntil(b"\n\n")
        assert len(upstream.requests[0]) > size // 2
        upstream.requests.clear()
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - before < size // 5
        assert gateway.gateway.budget.reserved == 0
        gate.set()
        assert (await reader.readuntil(LAST)).endswith(LAST)
        await wait_until(lambda: "last" in kept)
        assert kept["first"] is kept["last"]
        assert (kept["last"].model, kept["last"].messages, dict(kept["last"].top)) == ("words", 1, {})
        assert kept["last"].size > size // 2
        writer.close()


async def test_a_large_body_is_gone_while_its_stream_runs(serve: Serve) -> None:
    body = {"messages": [{"role": "user", "content": "x" * BIG}]}
    tracemalloc.start()
    try:
        await streaming(serve, body)
    finally:
        tracemalloc.stop()


async def test_the_input_of_a_stream_without_usage_is_estimated_although_its_body_is_gone(serve: Serve) -> None:
    async with Scripted([CHUNKED + chunk(WORDS[0]), Hold]) as upstream, serve(upstream.base_url) as gateway:
        token = await gateway.token()
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(chat(token, {"messages": [{"role": "user", "content": "x" * 4000}]}))
        await reader.readuntil(b"\n\n")
        writer.transport.abort()
        record = await assert_ended(gateway, Outcome.CALLER_GONE, "input")  # the first event has no text
        assert 1000 <= record.prompt_tokens <= 1020


async def test_large_requests_in_progress_leave_the_budget_to_other_accounts(serve: Serve) -> None:
    """Eight streams whose bodies together are twice the budget run; a large request of another account is served."""
    size = 200_000
    more = f"port: {{body_budget: {4 * size}, drain: 0}}"
    script: list[Step] = [CHUNKED + chunk(WORDS[0]), Forever(b"", 0.01, until=lambda: False)]
    async with (
        Scripted(*[script] * 8, [CHUNKED + chunk(STREAM) + LAST]) as upstream,
        serve(upstream.base_url, more=more) as gateway,
    ):
        token, other = await gateway.token(), await gateway.token("other")
        writers = []
        for _ in range(8):
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writers.append(writer)
            writer.write(chat(token, {"user": "x" * size}))
            await reader.readuntil(b"\n\n")
        assert gateway.gateway.budget.reserved == 0
        answer = await ask(gateway.port, chat(other, {"user": "x" * 20_000}))
        assert (answer.status, answer.whole) == (200, True)
        for writer in writers:
            writer.transport.abort()


async def test_bodies_that_do_not_come_take_no_memory(serve: Serve) -> None:
    """Two accounts declare ten bodies, of which two fill the budget; a large request of another account is served."""
    size = 200_000
    async with (
        Scripted([CHUNKED + chunk(STREAM) + LAST]) as upstream,
        serve(upstream.base_url, more=f"port: {{body_budget: {11 * size // 5}, drain: 0}}") as gateway,
    ):
        tokens, other = [await gateway.token(name) for name in ("one", "two")], await gateway.token("other")
        writers = []
        for number in range(10):
            _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writers.append(writer)
            writer.write(chat(tokens[number % 2], {"user": "x" * size})[:-size])
        await wait_until(lambda: gateway.gateway.runner.open == 10)
        assert (await ask(gateway.port, chat(other, {"user": "x" * size}))).status == 200
        for writer in writers:
            writer.transport.abort()


async def test_a_body_for_which_the_memory_ends_while_it_arrives_is_refused(serve: Serve) -> None:
    size = 200_000
    more = f"port: {{body_budget: {3 * size // 2}, drain: 0}}"
    async with Scripted([CHUNKED + chunk(STREAM) + LAST]) as upstream, serve(upstream.base_url, more=more) as gateway:
        budget, request = gateway.gateway.budget, chat(await gateway.token(), {"user": "x" * size})
        cut, whole = [await asyncio.open_connection("127.0.0.1", gateway.port) for _ in range(2)]
        cut[1].write(request[:2000])
        await wait_until(lambda: budget.reserved > 1000)
        whole[1].write(request[: size // 2])
        await wait_until(lambda: budget.reserved > size // 3)
        cut[1].write(request[2000:-1])
        refused = await read_answer(cut[0])
        assert_error(refused, 429, "rate_limit_error", "too_many_concurrent")
        assert refused.headers["connection"] == "close"
        whole[1].write(request[size // 2 :])
        assert (await read_answer(whole[0])).status == 200
        await gateway.gateway.runner.wait_ended()
        assert budget.reserved == 0
        for _, writer in (cut, whole):
            writer.transport.abort()


async def test_an_account_takes_half_of_the_budget_before_the_first_byte(serve: Serve) -> None:
    size = 100_000
    more = f"port: {{body_budget: {5 * size}, drain: 0}}"
    async with Scripted([Hold]) as upstream, serve(upstream.base_url, more=more) as gateway:
        token, other = await gateway.token(), await gateway.token("other")
        writers = []

        async def send(whose: str) -> asyncio.StreamReader:
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writers.append(writer)
            writer.write(chat(whose, {"user": "x" * size}))
            return reader

        await send(token)
        await wait_until(lambda: len(upstream.requests) == 1)
        await send(token)
        await wait_until(lambda: len(upstream.requests) == 2)
        refused = await read_answer(await send(token))
        assert_error(refused, 429, "rate_limit_error", "too_many_concurrent")
        assert "memory" in refused.error["message"]
        await send(other)
        await wait_until(lambda: len(upstream.requests) == 3)
        for writer in writers:
            writer.transport.abort()
        await wait_until(lambda: not gateway.gateway.runner.open)
        assert gateway.gateway.budget.reserved == 0


@pytest.mark.parametrize("size", [300_000])
async def test_an_account_may_always_send_one_body(serve: Serve, size: int) -> None:
    async with (
        Scripted([CHUNKED + chunk(STREAM) + LAST]) as upstream,
        serve(upstream.base_url, more=f"port: {{body_budget: {size + 1000}}}") as gateway,
    ):
        answer = await ask(gateway.port, chat(await gateway.token(), {"user": "x" * size}))
        assert answer.status == 200
