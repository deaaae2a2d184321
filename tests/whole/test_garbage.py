"""Exchanges and connections create no reference cycles: all their objects are freed without the garbage collector."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.fake_upstream import FakeUpstream
from gateway.server.protocol import ServerProtocol
from gateway.testing import running
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


async def test_streams_are_freed_as_they_end(tmp_path: Path, store_url: str, garbage: list[object]) -> None:
    async with (
        FakeUpstream(pace_s=0) as upstream,
        running(configuration(upstream.base_url), tmp_path, store_url) as gateway,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        token = await gateway.token()
        for _ in range(20):
            writer.write(chat(token))
            assert (await read_answer(reader)).status == 200
        assert ours(garbage) == {}
        writer.close()


async def test_connections_are_freed_as_they_close(tmp_path: Path, store_url: str, garbage: list[object]) -> None:
    async with (
        FakeUpstream(pace_s=0) as upstream,
        running(configuration(upstream.base_url), tmp_path, store_url) as gateway,
    ):
        token = await gateway.token("closing")
        for _ in range(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            for _ in range(2):
                writer.write(chat(token))
                assert (await read_answer(reader)).status == 200
            writer.close()
        async with asyncio.timeout(30):
            while any(isinstance(each, ServerProtocol) for each in gc.get_objects()):
                await asyncio.sleep(0.05)
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


async def test_a_request_is_freed_whose_caller_leaves_while_it_sends(
    tmp_path: Path, store_url: str, garbage: list[object]
) -> None:
    async with running(configuration("http://127.0.0.1:1/v1"), tmp_path, store_url) as gateway:
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(chat(await gateway.token())[:-1])
        await wait_until(lambda: gateway.gateway.budget.reserved > 0)
        writer.transport.abort()
        await wait_until(lambda: not gateway.gateway.runner.open)
        await wait_until(lambda: not gateway.gateway.connections.open)
        assert ours(garbage) == {}


def ours(garbage: list[object]) -> dict[str, int]:
    """Collect, and count the objects of the packages that exchanges and connections are made of."""
    gc.collect()
    counts = Counter(type(each).__module__.partition(".")[0] for each in garbage)
    return {name: counts[name] for name in ("gateway", "plugins", "httptools", "aiohttp") if counts[name]}
