"""What an exchange held is freed when it ends, without waiting for the garbage collector, which may run much later."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gateway import Exchange
from gateway.fake_upstream import FakeUpstream
from gateway.server.listener import SEND_BUFFER
from gateway.server.protocol import ServerProtocol
from gateway.testing import Running
from tests.patience import wait_until
from tests.whole.raw import ask, chat, get

DEEP = b'{"messages":' + b"[" * 100_000
NOT_UTF_8 = b'{"messages":[{"role":"user","content":"' + b"x" * 100_000 + b'\xff"}]}'


@pytest.fixture
def exchanges() -> Iterator[Callable[[], list[str]]]:
    """Switch the garbage collector off. Yield what returns the exchanges in memory; a test that failed may have left others."""
    gc.collect()
    gc.disable()
    before = {id(each) for each in gc.get_objects() if type(each) is Exchange}
    yield lambda: [repr(each) for each in gc.get_objects() if type(each) is Exchange and id(each) not in before]
    gc.enable()


@pytest.mark.parametrize(
    ("body", "mode", "status"),
    [
        ({}, "words", 200),
        (DEEP, "words", 400),
        (NOT_UTF_8, "words", 400),
        (b"{", "words", 400),
        ({"model": "unknown"}, "words", 404),
        ({"max_tokens": 1_000_000}, "words", 429),
        ({}, "500", 502),
        ({}, "404", 404),
        ({}, "first-error", 502),
        ({}, "cut", 200),
        ({}, "html", 502),
    ],
)
async def test_a_request_is_freed_when_it_has_ended(
    body: Any, mode: str, status: int, gateway: Running, upstream: FakeUpstream, exchanges: Callable[[], list[str]]
) -> None:
    upstream.mode = mode
    answer = await ask(gateway.port, chat(await gateway.token(), body))
    assert answer.status == status
    await wait_until(lambda: exchanges() == [])


async def test_a_request_with_a_wrong_token_is_freed(gateway: Running, exchanges: Callable[[], list[str]]) -> None:
    for request in (chat("sk-wrong"), chat(None), get("/v1/unknown"), get("/v1/models", "sk-tester-0")):
        await ask(gateway.port, request)
    await wait_until(lambda: exchanges() == [])


async def test_a_request_whose_caller_left_is_freed(
    gateway: Running, upstream: FakeUpstream, exchanges: Callable[[], list[str]]
) -> None:
    upstream.mode = "stall"
    _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(chat(await gateway.token()))
    await wait_until(lambda: bool(upstream.requests))
    writer.transport.abort()
    await wait_until(lambda: exchanges() == [])


async def test_the_kernel_keeps_little_for_a_caller_that_does_not_read(gateway: Running) -> None:
    """By default it keeps some MiB, of a memory that all connections of the machine share."""
    _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(get("/healthz"))
    await wait_until(lambda: bool(connections()))
    (transport,) = connections()
    assert transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) <= 2 * SEND_BUFFER
    writer.close()


def connections() -> list[asyncio.BaseTransport]:
    """Return the transports of the gateway's connections to callers."""
    protocols = [each for each in gc.get_objects() if type(each) is ServerProtocol]
    return [each.transport for each in protocols if each.transport is not None]
