"""The bytes of a body are freed as its request ends, however it ends, and not only when the garbage collector runs.

In a worker it runs once in thousands of requests, and counts objects: it does not know that a body has megabytes.
"""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from gateway.testing import Running
from tests.cli.processes import free_port
from tests.patience import wait_until
from tests.whole.conftest import Serve
from tests.whole.raw import ask, chat
from tests.whole.scripted import CHUNKED, LAST, Fin, Scripted, Step, chunk
from tests.whole.test_stream import STREAM

SIZE = 1_000_000
REQUESTS = 4
MORE = "port: {max_body: 2000000}"


@pytest.fixture
def taken() -> Iterator[Callable[[], int]]:
    """Disable the collector, and yield what returns the bytes that were allocated since and are not free."""
    gc.collect()
    gc.disable()
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    gc.enable()


@asynccontextmanager
async def in_front_of(base_url: str, serve: Serve) -> AsyncIterator[tuple[Running, str]]:
    """Yield a gateway that has served a request, so that all that stays is made, and a token."""
    async with serve(base_url, more=MORE) as gateway:
        token = await gateway.token(credit=10**9)
        await ask(gateway.port, chat(token))
        yield gateway, token


def large(token: str) -> bytes:
    return chat(token, {"messages": [{"role": "user", "content": "x" * SIZE}]})


ANSWERS: dict[str, list[Step]] = {
    "in full": [CHUNKED + chunk(STREAM) + LAST],
    "with an error": [b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\nContent-Type: application/json\r\n\r\n{}"],
    "with a page": [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Type: text/html\r\n\r\nhi"],
    "with no HTTP": [b"nonsense\r\n\r\n"],
    "not at all": [Fin],
}


@pytest.mark.parametrize("how", ANSWERS)
async def test_a_large_body_is_freed_where_the_upstream_answers(
    how: str, serve: Serve, taken: Callable[[], int]
) -> None:
    async with (
        Scripted(ANSWERS[how]) as upstream,
        in_front_of(upstream.base_url, serve) as (gateway, token),
    ):
        before = taken()
        for _ in range(REQUESTS):
            await ask(gateway.port, large(token))
            upstream.requests.clear()
        await ended(gateway)
        assert taken() - before < SIZE // 2


async def test_a_large_body_is_freed_where_no_upstream_is_reached(serve: Serve, taken: Callable[[], int]) -> None:
    async with in_front_of(f"http://127.0.0.1:{free_port()}/v1", serve) as (gateway, token):
        before = taken()
        for _ in range(REQUESTS):
            assert (await ask(gateway.port, large(token))).status in (502, 503)  # the channel cools down at the end
        await ended(gateway)
        assert taken() - before < SIZE // 2


@pytest.mark.parametrize("wrong", [b"[" * SIZE, b'{"model": "words", "messages": "' + b"x" * SIZE + b'"}'])
async def test_a_large_body_that_is_refused_is_freed(wrong: bytes, serve: Serve, taken: Callable[[], int]) -> None:
    async with in_front_of("http://127.0.0.1:1/v1", serve) as (gateway, token):
        before = taken()
        for _ in range(REQUESTS):
            assert (await ask(gateway.port, chat(token, wrong))).status == 400
        await ended(gateway)
        assert taken() - before < SIZE // 2


async def test_what_was_read_of_a_body_is_freed_when_its_caller_leaves(serve: Serve, taken: Callable[[], int]) -> None:
    async with in_front_of("http://127.0.0.1:1/v1", serve) as (gateway, token):
        before = taken()
        for _ in range(REQUESTS):
            _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writer.write(large(token)[:-1])
            await wait_until(lambda: gateway.gateway.budget.reserved >= SIZE)
            writer.transport.abort()
            await ended(gateway)
        assert taken() - before < SIZE // 2


async def ended(gateway: Running) -> None:
    """Wait until no request is in progress, and its connection is closed on both sides."""
    await wait_until(lambda: not gateway.gateway.runner.open and not gateway.gateway.budget.reserved)
    await asyncio.sleep(0.05)
