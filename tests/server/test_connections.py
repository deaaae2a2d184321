"""Connections to callers: accepted, limited, paused and closed to make room."""

from __future__ import annotations

import asyncio
import os
import random
import re
import resource
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar, copy_context
from pathlib import Path
from typing import Any

import pytest
import uvloop
from aiohttp import StreamReader
from aiohttp.base_protocol import BaseProtocol

import gateway.server.protocol as module
from gateway.config.schema import Port
from gateway.proxy.caller import render_head
from gateway.proxy.scheduler import AddressTurns
from gateway.server import protocol
from gateway.server.connections import CONNECTION_BYTES, LARGE_HEAD, Connections, Slot, default_max_connections
from gateway.server.listener import Listener
from gateway.server.protocol import AIOHTTP_ATTRIBUTES, MAX_AHEAD, ServerProtocol, Shared
from tests.patience import PATIENCE_S, wait_until


# How many connections there may be, which are closed to make room, and the budget of incomplete heads.
class Opened:
    """Connections that are opened in order, with a list of those that were closed."""

    def __init__(self, **settings: Any) -> None:
        self.connections = Connections(Port(**settings))
        self.closed: list[str] = []

    def open(self, name: str, peer: str = "192.0.2.1") -> Slot | None:
        slot = self.connections.take(peer)
        if slot is not None:
            slot.close = lambda: self.close(name)
        return slot

    def close(self, name: str) -> bool:
        self.closed.append(name)
        return True

    def serve(self, name: str, *, known: bool = True) -> Slot:
        """Open a connection and serve a request on it."""
        slot = self.open(name)
        assert slot is not None
        self.connections.begin(slot)
        slot.known = known
        self.connections.wait(slot)
        return slot


def test_the_oldest_that_wait_are_closed_first_and_unknown_ones_before_known_ones() -> None:
    opened = Opened(max_connections=4, max_connections_per_address=4)
    opened.serve("known")
    opened.open("first")
    opened.open("second")
    opened.serve("unknown", known=False)
    for name in "abcd":
        assert opened.open(name) is not None
    assert opened.closed == ["first", "second", "unknown", "a"]
    assert opened.connections.open == 4


def test_a_connection_that_is_closed_twice_counts_once() -> None:
    opened = Opened(max_connections=2)
    slot = opened.open("a")
    assert slot is not None
    for _ in range(2):
        opened.connections.leave(slot)
    opened.connections.wait(slot)
    assert opened.connections.open == 0


def test_large_incomplete_heads_are_closed_first() -> None:
    opened = Opened(head_budget=4 * LARGE_HEAD)
    names = ("small", "large", "larger", "last")
    slots = {name: opened.open(name) for name in names}
    sizes = {"small": 100, "large": LARGE_HEAD + 1, "larger": 2 * LARGE_HEAD, "last": LARGE_HEAD}
    for name, slot in slots.items():
        assert slot is not None
        opened.connections.add_head(slot, sizes[name])
    assert opened.closed == ["large"]
    assert opened.connections.head_bytes == 100 + 3 * LARGE_HEAD
    for name in ("small", "larger", "last"):
        slot = slots[name]
        assert slot is not None
        opened.connections.complete_head(slot)
    assert opened.connections.head_bytes == 0


def test_a_head_behind_an_exchange_is_not_counted() -> None:
    opened = Opened(head_budget=1)
    slot = opened.open("a")
    assert slot is not None
    opened.connections.begin(slot)
    opened.connections.add_head(slot, 1000)
    assert (opened.connections.head_bytes, opened.closed) == (0, [])


@pytest.mark.parametrize(
    ("descriptors", "memory", "most"),
    [
        (1024, "max\n", 512),
        (10**6, str(8 * 1000 * CONNECTION_BYTES), 1000),
        (resource.RLIM_INFINITY, str(8 * 1000 * CONNECTION_BYTES), 1000),
        (1024, "", 512),
        (10**6, "1", 1),
    ],
)
def test_the_default_follows_descriptors_and_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, descriptors: int, memory: str, most: int
) -> None:
    limit = tmp_path / "memory.max"
    if memory:
        limit.write_text(memory)
    monkeypatch.setattr("gateway.server.connections.MEMORY_LIMIT", limit)
    monkeypatch.setattr("resource.getrlimit", lambda _: (descriptors, descriptors))
    assert default_max_connections() == most


def test_known_connections_that_wait_keep_half_of_the_places_at_most() -> None:
    opened = Opened(max_connections=4, max_connections_per_address=4)
    for name in ("one", "two", "three", "four"):
        opened.serve(name)
    for name in "abc":
        assert opened.open(name) is not None
    assert opened.closed == ["one", "two", "a"]


# Waiting connections are accepted in few turns of the event loop, and accepting resumes after descriptors ran out.
CROWD = 200
"""Connections that wait at once."""


class RecordingProtocol(asyncio.Protocol):
    """A protocol that records that its connection was opened."""

    def __init__(self, opened: list[asyncio.Protocol]) -> None:
        self._opened = opened

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._opened.append(self)


async def turns_to_accept_crowd() -> int:
    """Return over how many turns of the loop `CROWD` waiting connections are accepted. Raises if they are not all opened."""
    loop, turns, opened = asyncio.get_running_loop(), 0, list[asyncio.Protocol]()
    listener = socket.create_server(("127.0.0.1", 0), backlog=CROWD)
    waiting = [socket.create_connection(listener.getsockname()) for _ in range(CROWD)]
    connections = Connections(Port())
    done = loop.create_future()

    def next_turn() -> None:
        nonlocal turns
        turns += 0 < connections.open < CROWD
        if len(opened) < CROWD:
            loop.call_soon(next_turn)
        else:
            done.set_result(None)

    accepting = Listener(listener, connections, lambda _: RecordingProtocol(opened), AddressTurns())
    next_turn()
    async with asyncio.timeout(PATIENCE_S):
        await done
    accepting.stop()
    for connection in waiting:
        connection.close()
    await asyncio.sleep(0.05)
    return turns + 1


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_waiting_connections_are_accepted_in_few_turns(run: Callable[[Coroutine[Any, Any, int]], int]) -> None:
    assert run(turns_to_accept_crowd()) <= CROWD / 2


async def addresses_in_order(first: int, then: int) -> tuple[list[str], Connections]:
    """Return the addresses in the order in which their connections are opened: many of one wait, then some of another."""
    listener, opened = socket.create_server(("127.0.0.1", 0), backlog=CROWD), list[str]()
    many = [socket.create_connection(listener.getsockname()) for _ in range(first)]
    some = [socket.create_connection(listener.getsockname(), source_address=("127.0.0.2", 0)) for _ in range(then)]
    for connection in many[first // 2 :]:
        connection.close()
    connections = Connections(Port())

    def protocol(slot: Slot) -> asyncio.BaseProtocol:
        opened.append(slot.address)
        return asyncio.Protocol()

    turns = AddressTurns()
    for address in ("127.0.0.1", "127.0.0.2"):  # none that is alone waits
        turns.admit(address)
    accepting = Listener(listener, connections, protocol, turns)
    async with asyncio.timeout(PATIENCE_S):
        while len(opened) < first // 2 + then:
            await asyncio.sleep(0.01)
    accepting.stop()
    for connection in many + some:
        connection.close()
    await asyncio.sleep(0.05)
    return opened, connections


async def test_addresses_take_turns_and_closed_connections_are_not_opened() -> None:
    opened, connections = await addresses_in_order(100, 5)
    assert opened[:11].count("127.0.0.2") == 5
    assert len(opened) == 55
    assert connections.open == 50 + 5  # this protocol does not report the end of its connection


async def test_a_connection_that_is_not_opened_yet_can_be_closed_to_make_room() -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=CROWD)
    waiting = [socket.create_connection(listener.getsockname()) for _ in range(74)]
    connections = Connections(Port(max_connections=10, max_connections_per_address=1000))
    opened = list[asyncio.Protocol]()
    accepting = Listener(listener, connections, lambda _: RecordingProtocol(opened), AddressTurns())
    async with asyncio.timeout(PATIENCE_S):
        while len(opened) < 10:
            await asyncio.sleep(0.01)
    assert len(opened) == connections.open == 10
    accepting.stop()
    for connection in waiting:
        connection.close()
    await asyncio.sleep(0.05)


async def test_accepting_resumes_when_a_file_descriptor_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.server.listener.PAUSE_S", 0.05)
    listener, opened = socket.create_server(("127.0.0.1", 0)), list[asyncio.Protocol]()
    caller = socket.create_connection(listener.getsockname())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = os.dup(0)
    os.close(highest)
    accepting = Listener(listener, Connections(Port()), lambda _: RecordingProtocol(opened), AddressTurns())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
    try:
        await asyncio.sleep(0.12)
        assert opened == []
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    async with asyncio.timeout(PATIENCE_S):
        while not opened:
            await asyncio.sleep(0.01)
    accepting.stop()
    caller.close()
    await asyncio.sleep(0.01)


async def connect_around_the_stop() -> None:
    """Stop a listener while one connection waits in the kernel's queue, and let another one try afterwards."""
    listener, opened = socket.create_server(("127.0.0.1", 0)), list[asyncio.Protocol]()
    address = listener.getsockname()
    accepting = Listener(listener, Connections(Port()), lambda _: RecordingProtocol(opened), AddressTurns())
    with socket.create_connection(address, timeout=PATIENCE_S) as queued, socket.socket() as late:
        for _ in range(2):
            accepting.stop()
        late.setblocking(False)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.get_running_loop().sock_connect(late, address)
        await asyncio.sleep(0.05)
        assert opened == []
        with pytest.raises(ConnectionResetError):
            queued.recv(1)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_no_connection_is_accepted_after_the_stop(run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    run(connect_around_the_stop())


async def test_after_the_stop_a_socket_that_the_parent_holds_refuses_and_can_listen_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    listener = socket.create_server(("127.0.0.1", port), reuse_port=True)
    address, opened = listener.getsockname(), list[asyncio.Protocol]()
    with listener.dup() as of_the_parent:
        Listener(listener, Connections(Port()), lambda _: RecordingProtocol(opened), AddressTurns()).stop()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, timeout=PATIENCE_S)
        of_the_next = of_the_parent.dup()
        again = Listener(of_the_next, Connections(Port()), lambda _: RecordingProtocol(opened), AddressTurns())
        with socket.create_connection(address, timeout=PATIENCE_S):
            async with asyncio.timeout(PATIENCE_S):
                while not opened:
                    await asyncio.sleep(0.01)
        again.stop()


async def test_a_socket_of_a_service_manager_keeps_its_queue_after_the_stop() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    with listener.dup():
        address = listener.getsockname()
        Listener(listener, Connections(Port()), lambda _: RecordingProtocol([]), AddressTurns()).stop()
        socket.create_connection(address, timeout=PATIENCE_S).close()


# Connections that are paused, and go on: none stays unread, and no turn is kept for another request.
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


# The private attributes of aiohttp that the server's protocol relies on, and the `Date` header that it writes.
SERVER = Path(module.__file__).parent
FILE = SERVER / "protocol.py"


def test_aiohttp_has_the_attributes_that_are_not_public() -> None:
    missing = [name for name in AIOHTTP_ATTRIBUTES if not hasattr(BaseProtocol, name)]
    assert not missing, "this version of aiohttp differs: read its base_protocol.py before you raise the version"


def test_the_list_of_attributes_is_complete() -> None:
    """The gateway's own attributes are in `__slots__`; any other `self._name` that the modules read is aiohttp's."""
    read = set(re.findall(r"\bself\.(_[a-z]\w*)", FILE.read_text()))
    own = {*ServerProtocol.__slots__, "_loop"}
    own |= {name for name in vars(ServerProtocol) if not hasattr(BaseProtocol, name)}
    overridden = {name for name in vars(ServerProtocol) if name in AIOHTTP_ATTRIBUTES}
    assert (read - own) | overridden == set(AIOHTTP_ATTRIBUTES)


def test_no_other_file_uses_attributes_of_aiohttps_base() -> None:
    pattern = re.compile(r"\.(" + "|".join(AIOHTTP_ATTRIBUTES) + r")\b")
    derived = {path for path in SERVER.parent.rglob("*.py") if "aiohttp.base_protocol" in path.read_text()}
    assert derived == {FILE}
    for file in {*SERVER.glob("*.py")} - {FILE}:
        assert not pattern.search(file.read_text()), file


def test_the_date_is_in_http_format_and_of_the_second_in_which_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    for now, second in ((784_111_777.0, 37), (784_111_777.9, 37), (784_111_778.0, 38)):
        monkeypatch.setattr("gateway.proxy.caller.now", lambda: now)  # noqa: B023
        assert b"\r\nDate: Sun, 06 Nov 1994 08:49:%d GMT\r\n" % second in render_head(200, {}, "")
