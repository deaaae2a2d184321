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
from gateway.server.connections import Connections, Slot
from gateway.server.listener import Listener
from gateway.server.turns import AddressTurns
from tests.patience import PATIENCE_S

CROWD = 200
"""Connections that wait at once."""


class RecordingProtocol(asyncio.Protocol):
    """A protocol that records the turn of the event loop in which its connection was accepted."""

    def __init__(self, accepted: list[int], turn: Callable[[], int]) -> None:
        self._accepted = accepted
        self._turn = turn

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._accepted.append(self._turn())


async def turns_to_accept_crowd() -> int:
    """Return over how many turns of the loop `CROWD` waiting connections are accepted."""
    loop, turn, accepted = asyncio.get_running_loop(), 0, list[int]()
    listener = socket.create_server(("127.0.0.1", 0), backlog=CROWD)
    waiting = [socket.create_connection(listener.getsockname()) for _ in range(CROWD)]
    done = loop.create_future()

    def next_turn() -> None:
        nonlocal turn
        turn += 1
        if len(accepted) < CROWD:
            loop.call_soon(next_turn)
        else:
            done.set_result(None)

    accepting = Listener(
        listener, Connections(Port()), lambda _: RecordingProtocol(accepted, lambda: turn), AddressTurns()
    )
    next_turn()
    async with asyncio.timeout(PATIENCE_S):
        await done
    accepting.stop()
    for connection in waiting:
        connection.close()
    await asyncio.sleep(0.05)
    return accepted[-1] - accepted[0] + 1


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_waiting_connections_are_accepted_in_few_turns(run: Callable[[Coroutine[Any, Any, int]], int]) -> None:
    assert run(turns_to_accept_crowd()) <= 3 * CROWD


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

    accepting = Listener(listener, connections, protocol, AddressTurns())
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
    assert [number for number, address in enumerate(opened) if address == "127.0.0.2"] == [1, 3, 5, 7, 9]
    assert len(opened) == 55
    assert connections.open == 50 + 5  # this protocol does not report the end of its connection


async def test_a_connection_that_is_not_opened_yet_can_be_closed_to_make_room() -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=CROWD)
    waiting = [socket.create_connection(listener.getsockname()) for _ in range(74)]
    connections = Connections(Port(max_connections=10, max_connections_per_address=1000))
    accepted = list[int]()
    accepting = Listener(listener, connections, lambda _: RecordingProtocol(accepted, lambda: 0), AddressTurns())
    async with asyncio.timeout(PATIENCE_S):
        while len(accepted) < 10:
            await asyncio.sleep(0.01)
    assert len(accepted) == connections.open == 10
    accepting.stop()
    for connection in waiting:
        connection.close()
    await asyncio.sleep(0.05)


async def test_accepting_resumes_when_a_file_descriptor_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.server.listener.PAUSE_S", 0.05)
    listener, accepted = socket.create_server(("127.0.0.1", 0)), list[int]()
    caller = socket.create_connection(listener.getsockname())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = os.dup(0)
    os.close(highest)
    accepting = Listener(
        listener, Connections(Port()), lambda _: RecordingProtocol(accepted, lambda: 0), AddressTurns()
    )
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
    try:
        await asyncio.sleep(0.12)
        assert accepted == []
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    async with asyncio.timeout(PATIENCE_S):
        while not accepted:
            await asyncio.sleep(0.01)
    accepting.stop()
    caller.close()
    await asyncio.sleep(0.01)


async def connect_around_the_stop() -> None:
    """Stop a listener while one connection waits in the kernel's queue, and let another one try afterwards."""
    listener, accepted = socket.create_server(("127.0.0.1", 0)), list[int]()
    address = listener.getsockname()
    accepting = Listener(
        listener, Connections(Port()), lambda _: RecordingProtocol(accepted, lambda: 0), AddressTurns()
    )
    with socket.create_connection(address, timeout=PATIENCE_S) as queued, socket.socket() as late:
        for _ in range(2):
            accepting.stop()
        late.setblocking(False)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.get_running_loop().sock_connect(late, address)
        await asyncio.sleep(0.05)
        assert accepted == []
        with pytest.raises(ConnectionResetError):
            queued.recv(1)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_no_connection_is_accepted_after_the_stop(run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    run(connect_around_the_stop())


async def test_after_the_stop_a_socket_that_the_parent_holds_refuses_and_can_listen_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    listener = socket.create_server(("127.0.0.1", port), reuse_port=True)
    address, accepted = listener.getsockname(), list[int]()
    with listener.dup() as of_the_parent:
        Listener(listener, Connections(Port()), lambda _: RecordingProtocol(accepted, lambda: 0), AddressTurns()).stop()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, timeout=PATIENCE_S)
        of_the_next = of_the_parent.dup()
        again = Listener(
            of_the_next, Connections(Port()), lambda _: RecordingProtocol(accepted, lambda: 0), AddressTurns()
        )
        with socket.create_connection(address, timeout=PATIENCE_S):
            async with asyncio.timeout(PATIENCE_S):
                while not accepted:
                    await asyncio.sleep(0.01)
        again.stop()


async def test_a_socket_of_a_service_manager_keeps_its_queue_after_the_stop() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    with listener.dup():
        address = listener.getsockname()
        Listener(listener, Connections(Port()), lambda _: RecordingProtocol([], lambda: 0), AddressTurns()).stop()
        socket.create_connection(address, timeout=PATIENCE_S).close()
