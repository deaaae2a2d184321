"""Waiting connections are accepted in few turns of the event loop, and accepting resumes after descriptors ran out."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from gateway.config.schema import Port
from gateway.proxy.scheduler import AddressTurns
from gateway.server.connections import Connections, Slot
from gateway.server.listener import Listener
from tests.patience import PATIENCE_S

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
