"""Exchanges and connections create no reference cycles: all their objects are freed without the garbage collector."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.fake_upstream import FakeUpstream
from gateway.server.protocol import ServerProtocol
from gateway.testing import Running, running
from tests.patience import wait_until
from tests.whole.conftest import configuration
from tests.whole.raw import ask, chat, read_answer
from tests.whole.scripted import Fin, Scripted


@pytest.fixture
def garbage() -> Iterator[list[object]]:
    """Disable the collector, and yield the list into which `gc.collect()` puts what it finds instead of freeing it."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    yield gc.garbage
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()


@asynccontextmanager
async def answering(folder: Path, store_url: str, *, pace_s: float) -> AsyncIterator[Running]:
    """Run a gateway whose upstream sends a word every `pace_s`."""
    async with (
        FakeUpstream(pace_s=pace_s) as upstream,
        running(configuration(upstream.base_url), folder, store_url) as gateway,
    ):
        yield gateway


async def test_streams_are_freed_as_they_end(tmp_path: Path, store_url: str, garbage: list[object]) -> None:
    async with answering(tmp_path, store_url, pace_s=0) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        token = await gateway.token()
        for _ in range(20):
            writer.write(chat(token))
            assert (await read_answer(reader)).status == 200
        assert ours(garbage) == {}
        writer.close()


async def test_connections_are_freed_as_they_close(tmp_path: Path, store_url: str, garbage: list[object]) -> None:
    async with answering(tmp_path, store_url, pace_s=0) as gateway:
        token = await gateway.token("closing")
        for _ in range(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            for _ in range(2):
                writer.write(chat(token))
                assert (await read_answer(reader)).status == 200
            writer.close()
        await connections_closed()
        assert ours(garbage) == {}


LARGE = {"metadata": {"a": "x" * 200_000}}
REFUSED = {
    "not JSON": (b'{"model":', 400),
    "a wrong field": ({"messages": []}, 400),
    "an unknown model": ({"model": "none"}, 404),
    "too expensive": ({}, 402),
    "large, not JSON": (b'{"model":"%b' % (b"x" * 200_000), 400),
    "large, not UTF-8": (b'{"model":"%b"}' % (b"\xff" * 200_000), 400),
    "large, a wrong field": (LARGE | {"messages": []}, 400),
    "large, an unknown model": (LARGE | {"model": "none"}, 404),
    "large, too expensive": (LARGE, 402),
}
CHUNKED = b"POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n"


@pytest.mark.parametrize("refused", REFUSED)
async def test_refused_requests_are_freed_as_they_end(
    tmp_path: Path, store_url: str, garbage: list[object], refused: str
) -> None:
    body, status = REFUSED[refused]
    async with running(configuration("http://127.0.0.1:9/v1"), tmp_path, store_url) as gateway:
        token = await gateway.token("refused", credit=1)
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        for _ in range(3):
            writer.write(chat(token, body))
            assert (await read_answer(reader)).status == status
        assert ours(garbage) == {}
        writer.close()


async def test_a_body_with_broken_framing_is_freed(tmp_path: Path, store_url: str, garbage: list[object]) -> None:
    async with running(configuration("http://127.0.0.1:9/v1"), tmp_path, store_url) as gateway:
        token = await gateway.token("broken")
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(CHUNKED + b"Authorization: Bearer %b\r\n\r\n5\r\n" % token.encode())
        await asyncio.sleep(0.05)
        writer.write(b"{----\r\nx\r\n")
        assert (await read_answer(reader)).status == 400
        writer.close()
        await connections_closed()
        assert ours(garbage) == {}


@pytest.mark.parametrize("sent", [10_000, -1, None])
async def test_requests_of_callers_that_leave_are_freed(
    tmp_path: Path, store_url: str, garbage: list[object], sent: int | None
) -> None:
    async with answering(tmp_path, store_url, pace_s=10) as gateway:
        token = await gateway.token("leaving")
        for _ in range(3):
            _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writer.write(chat(token, LARGE)[:sent])
            await writer.drain()
            await asyncio.sleep(0.05)
            writer.close()
        await connections_closed()
        assert ours(garbage) == {}


async def test_a_request_is_freed_whose_upstream_closes_the_connection(
    tmp_path: Path, store_url: str, garbage: list[object]
) -> None:
    async with (
        Scripted([Fin]) as upstream,
        running(configuration(upstream.base_url), tmp_path, store_url) as gateway,
    ):
        assert (await ask(gateway.port, chat(await gateway.token()))).status == 502
        await wait_until(lambda: not gateway.gateway.connections.open)
        assert ours(garbage) == {}


async def connections_closed() -> None:
    """Wait until no connection is left."""
    async with asyncio.timeout(30):
        while any(isinstance(each, ServerProtocol) for each in gc.get_objects()):
            await asyncio.sleep(0.05)


def ours(garbage: list[object]) -> dict[str, int]:
    """Collect, and count the objects of the packages that exchanges and connections are made of."""
    gc.collect()
    counts = Counter(type(each).__module__.partition(".")[0] for each in garbage)
    return {name: counts[name] for name in ("gateway", "plugins", "httptools", "aiohttp") if counts[name]}
