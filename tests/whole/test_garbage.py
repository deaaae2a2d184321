"""Exchanges and connections are freed when they end, without the garbage collector: nothing holds them, also no reference cycle."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from gateway.domain.exchange import Exchange
from gateway.fake_upstream import FakeUpstream
from gateway.server.listener import SEND_BUFFER
from gateway.server.protocol import ServerProtocol
from gateway.testing import Running
from tests.patience import wait_until
from tests.whole.conftest import Serve
from tests.whole.raw import ask, chat, get, read_answer
from tests.whole.scripted import Fin, Scripted


class Garbage:
    """What is left of requests: objects in reference cycles, and exchanges that something still holds."""

    def __init__(self) -> None:
        self._before = {id(each) for each in _exchanges()}  # a test that failed may have left some

    async def assert_none(self) -> None:
        await wait_until(lambda: all(id(each) in self._before for each in _exchanges()))
        gc.collect()
        counts = Counter(type(each).__module__.partition(".")[0] for each in gc.garbage)
        assert [name for name in ("gateway", "plugins", "httptools", "aiohttp") if counts[name]] == []


def _exchanges() -> list[Exchange]:
    return [each for each in gc.get_objects() if type(each) is Exchange]


@pytest.fixture
def garbage() -> Iterator[Garbage]:
    """Disable the collector: `gc.collect()` puts what it finds into a list instead of freeing it."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    yield Garbage()
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()


@asynccontextmanager
async def answering(serve: Serve, *, pace_s: float) -> AsyncIterator[Running]:
    """Run a gateway whose upstream sends a word every `pace_s`."""
    async with FakeUpstream(pace_s=pace_s) as upstream, serve(upstream.base_url) as gateway:
        yield gateway


async def test_streams_are_freed_as_they_end(serve: Serve, garbage: Garbage) -> None:
    async with answering(serve, pace_s=0) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        token = await gateway.token()
        for _ in range(20):
            writer.write(chat(token))
            assert (await read_answer(reader)).status == 200
        await garbage.assert_none()
        writer.close()


async def test_connections_are_freed_as_they_close(serve: Serve, garbage: Garbage) -> None:
    async with answering(serve, pace_s=0) as gateway:
        token = await gateway.token("closing")
        for _ in range(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            for _ in range(2):
                writer.write(chat(token))
                assert (await read_answer(reader)).status == 200
            writer.close()
        await connections_closed()
        await garbage.assert_none()


LARGE = {"metadata": {"a": "x" * 200_000}}
REFUSED = {
    "not JSON": (b'{"model":', 400),
    "too deep": (b'{"messages":' + b"[" * 100_000, 400),
    "a wrong field": ({"messages": []}, 400),
    "beyond a limit": ({"max_tokens": 1_000_000}, 429),
    "an unknown model": ({"model": "none"}, 404),
    "too expensive": ({}, 402),
    "large, not JSON": (b'{"model":"%b' % (b"x" * 200_000), 400),
    "large, not UTF-8": (b'{"model":"%b"}' % (b"\xff" * 200_000), 400),
    "large, a wrong field": (LARGE | {"messages": []}, 400),
    "large, an unknown model": (LARGE | {"model": "none"}, 404),
    "large, too expensive": (LARGE, 402),
}
CHUNKED = b"POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n"


async def test_refused_requests_are_freed_as_they_end(serve: Serve, garbage: Garbage) -> None:
    async with serve("http://127.0.0.1:9/v1") as gateway:
        token = await gateway.token("refused", credit=1)
        for refused, (body, status) in REFUSED.items():
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            for _ in range(3):
                writer.write(chat(token, body))
                assert (await read_answer(reader)).status == status, refused
            writer.close()
        await garbage.assert_none()


async def test_requests_without_a_token_are_freed(gateway: Running, garbage: Garbage) -> None:
    for request in (chat("sk-wrong"), chat(None), get("/v1/unknown"), get("/v1/models", "sk-tester-0")):
        await ask(gateway.port, request)
    await garbage.assert_none()


@pytest.mark.parametrize("mode", ["500", "404", "first-error", "cut", "html"])
async def test_requests_whose_upstream_fails_are_freed(
    gateway: Running, upstream: FakeUpstream, garbage: Garbage, mode: str
) -> None:
    upstream.mode = mode
    await ask(gateway.port, chat(await gateway.token()))
    await garbage.assert_none()


async def test_a_body_with_broken_framing_is_freed(serve: Serve, garbage: Garbage) -> None:
    async with serve("http://127.0.0.1:9/v1") as gateway:
        token = await gateway.token("broken")
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(CHUNKED + b"Authorization: Bearer %b\r\n\r\n5\r\n" % token.encode())
        await asyncio.sleep(0.05)
        writer.write(b"{----\r\nx\r\n")
        assert (await read_answer(reader)).status == 400
        writer.close()
        await connections_closed()
        await garbage.assert_none()


async def test_requests_of_callers_that_leave_are_freed(serve: Serve, garbage: Garbage) -> None:
    async with answering(serve, pace_s=10) as gateway:
        token = await gateway.token("leaving")
        for sent in (10_000, -1, None) * 3:
            _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writer.write(chat(token, LARGE)[:sent])
            await writer.drain()
            await asyncio.sleep(0.05)
            writer.close()
        await connections_closed()
        await garbage.assert_none()


async def test_a_request_is_freed_whose_upstream_closes_the_connection(serve: Serve, garbage: Garbage) -> None:
    async with Scripted([Fin]) as upstream, serve(upstream.base_url) as gateway:
        assert (await ask(gateway.port, chat(await gateway.token()))).status == 502
        await wait_until(lambda: not gateway.gateway.connections.open)
        await garbage.assert_none()


async def connections_closed() -> None:
    """Wait until no connection is left."""
    async with asyncio.timeout(30):
        while any(isinstance(each, ServerProtocol) for each in gc.get_objects()):
            await asyncio.sleep(0.05)


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
