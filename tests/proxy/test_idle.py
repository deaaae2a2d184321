"""A connection goes to the pool and back without a pause of its reading, and aiohttp learns what happens to it there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from gateway.proxy.upstream import IdleConnection, take
from tests.patience import PATIENCE_S


class Pooled(asyncio.Protocol):
    """What stands for aiohttp's protocol: it keeps what it was called with."""

    def __init__(self) -> None:
        self.received = b""
        self.ended = False
        self.lost = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.received += data

    def eof_received(self) -> None:
        self.ended = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)


class Reading(asyncio.BufferedProtocol):
    """What stands for a call of an upstream."""

    def __init__(self) -> None:
        self.buffer = bytearray(64)
        self.received = b""

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self.buffer[:nbytes]


class Counted:
    """A transport whose pauses are counted."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.pauses = 0

    def pause_reading(self) -> None:
        self.pauses += 1
        self.transport.pause_reading()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)


Loop = Callable[[], asyncio.AbstractEventLoop]
every_loop = pytest.mark.parametrize(
    "new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)


class Connected:
    """Both ends of a connection."""

    def __init__(self, transport: Any, pooled: Pooled, upstream: asyncio.StreamWriter) -> None:
        self.transport, self.pooled, self.upstream = transport, pooled, upstream


@asynccontextmanager
async def connect() -> AsyncIterator[Connected]:
    accepted: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()
    server = await asyncio.start_server(lambda _, writer: accepted.set_result(writer), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    transport, pooled = await asyncio.get_running_loop().create_connection(Pooled, "127.0.0.1", port)
    yield Connected(Counted(transport), pooled, await accepted)
    transport.abort()
    (await accepted).close()
    server.close()


async def eventually(protocol: Pooled | Reading, expected: bytes) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while protocol.received != expected:
            await asyncio.sleep(0.001)


@every_loop
def test_reading_is_paused_only_when_a_new_connection_is_taken(new_loop: Loop) -> None:
    async def check() -> None:
        async with connect() as connected:
            for number in range(3):
                reading = Reading()
                take(connected.transport, reading)
                connected.upstream.write(b"answer %d" % number)
                await eventually(reading, b"answer %d" % number)
                connected.transport.set_protocol(IdleConnection(connected.pooled))
                assert connected.transport.pauses == 1
            assert connected.pooled.received == b""

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(check())


@every_loop
def test_what_happens_in_the_pool_is_passed_on(new_loop: Loop) -> None:
    async def check() -> None:
        async with connect() as connected:
            take(connected.transport, Reading())
            connected.transport.set_protocol(IdleConnection(connected.pooled))
            connected.upstream.write(b"x" * 3000)
            await eventually(connected.pooled, b"x" * 3000)
            connected.upstream.close()
            assert await asyncio.wait_for(connected.pooled.lost, PATIENCE_S) is None
            assert connected.pooled.ended

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(check())
