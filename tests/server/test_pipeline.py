"""Connections that are paused, and go on: none stays unread, and no turn is kept for another request."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar, copy_context
from typing import Any

import pytest
from aiohttp import StreamReader
from aiohttp.base_protocol import BaseProtocol

from gateway.config.schema import Port
from gateway.proxy.scheduler import AddressTurns
from gateway.server import protocol
from gateway.server.connections import Connections
from gateway.server.protocol import MAX_AHEAD, ServerProtocol, Shared
from tests.patience import PATIENCE_S, wait_until

LARGE = 150_000
VARIABLE = ContextVar("VARIABLE", default="")


class Handler(ServerProtocol):
    """Counts nothing, and has a transport without a socket."""

    __slots__ = ()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        BaseProtocol.connection_made(self, transport)

    def _count_message(self, *, valid: bool) -> None:
        pass

    def _count_body(self, size: int) -> None:
        pass

    def _count_head(self, size: int) -> None:
        pass


class Site:
    """A server of one address. `served`: the path and the length of the body of each request; those of `/0` wait for `gate`."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.served: list[tuple[str, int]] = []
        self.variables: list[str] = []
        self.turns = AddressTurns()
        self.port = Port(max_head=64 * 1024, max_connections=1000, max_connections_per_address=1000)
        self.slots = Connections(self.port)
        self.handlers: list[Handler] = []
        self._shared = Shared(
            self.port, self.slots, self._serve, lambda request, left: None, 1 << 16, self.turns, copy_context(), set()
        )

    def protocol(self) -> Handler:
        slot = self.slots.take("127.0.0.1")
        assert slot is not None
        handler = Handler(self._shared, slot)
        self.handlers.append(handler)
        return handler

    async def _serve(self, request: Any) -> bool:
        self.variables.append(VARIABLE.get())
        VARIABLE.set(request.raw_path)
        if request.raw_path == "/0":
            await self.gate.wait()
        size = len(request.content) if isinstance(request.content, bytes) else 0
        while isinstance(request.content, StreamReader) and (piece := await request.content.readany()):
            size += len(piece)
        self.served.append((request.raw_path, size))
        request.protocol.release()
        await asyncio.sleep(0)
        return bool(request.keep_alive)


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Site, Handler, asyncio.StreamWriter]]:
    site = Site()
    server = await asyncio.get_running_loop().create_server(site.protocol, "127.0.0.1", 0)
    _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(get("/0"))
    await wait_until(lambda: bool(site.handlers) and site.handlers[0]._requests_seen == 1)
    handler = site.handlers[0]
    try:
        yield site, handler, writer
    finally:
        site.gate.set()
        if handler.transport is not None:
            handler.transport.abort()
        writer.close()
        server.close()
        await wait_until(lambda: handler.transport is None)
        with suppress(ConnectionError):
            await writer.wait_closed()


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: gateway\r\n\r\n".encode()


def post(path: str, size: int) -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: gateway\r\nContent-Length: {size}\r\n\r\n".encode()


def chunked(path: str, body: bytes, sizes: Iterator[int]) -> bytes:
    parts, at = [], 0
    while at < len(body):
        size = min(next(sizes), len(body) - at)
        parts.append(b"%x\r\n%b\r\n" % (size, body[at : at + size]))
        at += size
    head = f"POST {path} HTTP/1.1\r\nHost: gateway\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    return head + b"".join(parts) + b"0\r\n\r\n"


def request(choice: random.Random, path: str) -> tuple[bytes, int]:
    """Return a request with any body, and the length of that."""
    size = choice.choice([0, 5, 900, 5_000, 70_000, LARGE, 300_000])
    body = choice.choice([b"x", b"\r\n", b"0\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"]) * size
    body = body[:size]
    match choice.randrange(3):
        case 0:
            return get(path), 0
        case 1:
            return post(path, size) + body, size
        case _:
            largest = max(10, choice.choice([size, size // 7]))
            return chunked(path, body, iter(lambda: choice.randint(largest // 10, largest), 0)), size


async def test_a_connection_goes_on_that_was_paused_for_its_requests_and_for_a_body(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(protocol, "TURN_S", PATIENCE_S)  # all of a read is parsed at once
    last = get("/last")
    async with connected() as (site, handler, writer):
        ahead = [f"/{number}" for number in range(1, MAX_AHEAD)]
        handler.data_received(b"".join(map(get, ahead)) + post("/large", LARGE) + b"x" * LARGE + last[:9])
        assert handler._buffer_paused
        writer.write(last[9:])
        site.gate.set()
        await wait_until(lambda: ("/last", 0) in site.served)
        assert site.served == [("/0", 0), *((path, 0) for path in ahead), ("/large", LARGE), ("/last", 0)]


async def test_a_turn_that_a_body_has_had_is_not_kept_for_the_next_request() -> None:
    async with connected() as (site, handler, _):
        site.turns.admit("another")
        site.turns.admit("127.0.0.1")
        handler.data_received(post("/large", LARGE))
        handler.data_received(b"x" * LARGE)
        await wait_until(lambda: not handler._in_body)
        assert not handler._has_turn


async def test_a_body_of_known_length_does_not_wait_behind_other_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "TURN_S", 0.0)
    async with connected() as (site, handler, _):
        handler.data_received(post("/small", 10) + b"x" * 10)
        assert not handler._waits_for_turn
        site.gate.set()
        await wait_until(lambda: ("/small", 10) in site.served)


@pytest.mark.parametrize(
    "large",
    [post("/large", LARGE) + b"x" * LARGE, chunked("/large", b"x" * LARGE, iter([LARGE])) + get("/next")],
    ids=["length", "chunked"],
)
async def test_the_parser_is_kept_that_has_the_begin_of_a_head(monkeypatch: pytest.MonkeyPatch, large: bytes) -> None:
    monkeypatch.setattr(protocol, "TURN_S", PATIENCE_S)  # the body is parsed at once, as far as its reader takes it
    last = get("/last")
    async with connected() as (site, handler, _):
        site.gate.set()
        handler.data_received(large + last[:1])
        await wait_until(lambda: ("/large", LARGE) in site.served)
        handler.data_received(last[1:])
        await wait_until(lambda: ("/last", 0) in site.served)


async def test_a_request_sees_no_context_variable_of_the_one_before() -> None:
    async with connected() as (site, handler, _):
        site.gate.set()
        handler.data_received(get("/1") + get("/2"))
        await wait_until(lambda: len(site.served) == 3)
        handler.data_received(get("/3"))
        await wait_until(lambda: len(site.served) == 4)
        assert site.variables == [""] * 4
