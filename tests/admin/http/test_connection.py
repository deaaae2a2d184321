"""The connections of the operator's port: none is kept for long that sends or takes nothing, and there is room for one more."""

from __future__ import annotations

import asyncio
import errno
import gzip
import socket
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import ExitStack, asynccontextmanager, suppress

import pytest
from aiohttp import ClientSession, ClientTimeout, TCPConnector, web

from gateway.admin.actions.local import LocalClient
from gateway.admin.http import port
from gateway.admin.http.app import Admin, Callers
from gateway.metrics.exporter import Exporter
from gateway.proxy.scheduler import AddressTurns
from gateway.server.connections import Connections
from gateway.usage.database import UsageDatabase
from tests.admin.http.conftest import TOKEN
from tests.patience import PATIENCE_S, soon, wait_until

MOST = 20
HEAD = b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: "
Opened = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def number(local_client: LocalClient, callers: Callers, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    """A served port with room for few connections."""
    monkeypatch.setattr(port, "MOST_CONNECTIONS", MOST)
    admin = Admin(callers, Exporter({}), lambda *_: local_client)
    async with port.serving(admin, "127.0.0.1:0") as number:
        yield number


@asynccontextmanager
async def opened(number: int, addresses: Iterable[str], sent: bytes = HEAD) -> AsyncIterator[list[Opened]]:
    """Open a connection from each of the addresses, and send something on it."""
    with ExitStack() as stack:
        connections: list[Opened] = []
        for address in addresses:
            reader, writer = await asyncio.open_connection("127.0.0.1", number, local_addr=(address, 0))
            stack.callback(writer.close)
            writer.write(sent)
            connections.append((reader, writer))
        yield connections


async def closed(connections: Iterable[Opened]) -> list[bool]:
    """Return of each connection whether it is closed, without waiting."""
    await asyncio.sleep(0.1)
    return [reader.at_eof() or reader.exception() is not None for reader, _ in connections]


async def health(number: int, address: str) -> int:
    """Ask for the health from an address."""
    connector = TCPConnector(local_addr=(address, 0), force_close=True)
    async with (
        ClientSession(connector=connector, timeout=ClientTimeout(PATIENCE_S)) as session,
        session.get(f"http://127.0.0.1:{number}/healthz") as response,
    ):
        return response.status


class Echo:
    """A site that answers with the body that it read, as both ports of the operator's process serve theirs."""

    def application(self) -> web.Application:
        async def answer(request: web.Request) -> web.Response:
            return web.Response(body=await request.read())

        application = web.Application()
        application.router.add_post("/", answer)
        return application


@pytest.mark.parametrize("body", [gzip.compress(bytes(1000)), b"no gzip"])
async def test_a_body_is_not_decompressed(body: bytes) -> None:
    async with port.serving(Echo(), "127.0.0.1:0") as number, ClientSession() as session:
        headers = {"Content-Encoding": "gzip"}
        async with session.post(f"http://127.0.0.1:{number}/", data=body, headers=headers) as response:
            assert (response.status, await response.read()) == (200, body)


async def test_an_address_has_half_of_the_connections_that_wait(number: int) -> None:
    async with opened(number, ["127.0.0.2"] * (MOST + 5)) as connections:
        await soon(connections[-1][0].read())
        assert (await closed(connections)).count(False) == MOST // 2
        assert await health(number, "127.0.0.3") == 200


async def test_where_all_are_taken_the_oldest_that_nobody_known_uses_makes_room(number: int) -> None:
    follow = f"GET /api/v1/usage/live HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
    async with opened(number, ["127.0.0.9"] * 2, follow) as followers:
        for reader, _ in followers:
            await soon(reader.readuntil(b": from here on\n\n"))
        async with opened(number, [f"127.0.1.{each}" for each in range(1, MOST + 1)]) as connections:
            await soon(connections[1][0].read())
            assert await closed(connections) == [True] * 2 + [False] * (MOST - 2)
            assert await health(number, "127.0.0.3") == 200
            assert await closed(connections) == [True] * 3 + [False] * (MOST - 3)
        assert await closed(followers) == [False] * 2


async def test_who_is_known_does_not_keep_a_place_before_all_of_a_request_was_read(number: int) -> None:
    head = f"POST /api/v1/accounts HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 9\r\n\r\n"
    async with opened(number, [f"127.0.1.{each}" for each in range(1, MOST + 1)], head.encode()) as connections:
        await closed(connections)
        assert await health(number, "127.0.0.3") == 200
        assert (await closed(connections)).count(True) == 1


async def test_a_head_that_does_not_end_is_cut(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port, "HEAD_S", 0.2)
    async with opened(number, ["127.0.0.1"]) as [(reader, _)]:
        assert await soon(reader.read()) == b""
    async with opened(number, ["127.0.0.1"], b"") as [(reader, _)]:
        assert await soon(reader.read()) == b""


async def test_a_second_head_that_does_not_end_is_cut(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(number, ["127.0.0.1"], HEAD + b"a\r\n\r\n") as [(reader, writer)]:
        await soon(reader.readuntil(b"ok\n"))
        monkeypatch.setattr(port, "HEAD_S", 0.2)
        await asyncio.sleep(0.4)
        assert not reader.at_eof()  # idle: nothing of a second request came
        writer.write(HEAD)
        assert await soon(reader.read()) == b""


async def test_an_idle_connection_is_closed(
    rows: UsageDatabase, callers: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port, "IDLE_S", 0.3)
    async with (
        port.serving(Admin(callers, Exporter({})), "127.0.0.1:0") as number,
        opened(number, ["127.0.0.1"], HEAD + b"a\r\n\r\n") as [(reader, _)],
    ):
        assert (await soon(reader.read())).endswith(b"ok\n")


async def test_who_takes_nothing_of_an_answer_is_cut(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port, "STALLED_S", 0.2)
    ask = f"GET /api/v1/openapi.json HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", number)) as client:
        client.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                client.send(ask)
        await wait_until(lambda: client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNRESET)


async def test_the_rest_of_a_body_that_was_refused_is_no_head(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    monkeypatch.setattr(Connections, "add_head", lambda _, __, size: counted.append(size))
    head = (
        f"POST /api/v1/accounts HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 9000000\r\n\r\n"
    )
    async with opened(number, ["127.0.0.1"], head.encode()) as [(reader, writer)]:
        assert b" 413 " in await soon(reader.readuntil(b"\r\n"))
        counted.clear()
        for _ in range(5):
            writer.write(b"x" * 1000)
            await asyncio.sleep(0.02)
        assert counted == []


def count_asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let an answer cost a millisecond, and return the list of the addresses that are answered."""
    asked: list[str] = []

    async def health(_: Admin, request: web.Request) -> web.Response:
        began = time.thread_time()
        while time.thread_time() < began + 0.001:
            pass
        asked.append(request.remote or "")
        return web.Response(text="ok\n")

    monkeypatch.setattr(Admin, "_health", health)
    return asked


async def test_an_address_that_asks_much_does_not_delay_another(
    rows: UsageDatabase, callers: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = count_asked(monkeypatch)
    admin = Admin(callers, Exporter({}))
    async with (
        port.serving(admin, "127.0.0.1:0") as number,
        opened(number, ["127.0.0.2"] * 200, HEAD) as many,
        opened(number, ["127.0.0.3"], b"") as [(reader, writer)],
    ):
        for _, other in many:
            other.write(b"a\r\n\r\n" + (HEAD + b"a\r\n\r\n") * 19)
        await wait_until(lambda: len(asked) > 300)
        for _ in range(5):
            before = len(asked)
            writer.write(HEAD + b"a\r\n\r\n")
            await reader.readuntil(b"ok\n")
            assert len(asked) - before < 50


async def test_who_leaves_before_its_turn_leaves_no_queue(
    rows: UsageDatabase, callers: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, expected = count_asked(monkeypatch), list[float]()

    class Counted(AddressTurns):
        def expect(self, more_s: float) -> None:
            expected.append(more_s)
            super().expect(more_s)

    turns = Counted()
    monkeypatch.setattr(port, "AddressTurns", lambda: turns)
    async with port.serving(Admin(callers, Exporter({})), "127.0.0.1:0") as number:
        await health(number, "127.0.0.3")
        async with opened(number, ["127.0.0.2"] * 300, HEAD) as many:
            await health(number, "127.0.0.3")
            for _, other in many:
                other.write(b"a\r\n\r\n")
            await wait_until(lambda: len(asked) > 20)
            for _, other in many:
                other.transport.abort()
            expected.clear()
            await wait_until(lambda: not turns.waiting)
            assert len(expected) < 150
