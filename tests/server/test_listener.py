"""Whoever waits to be taken is taken in few turns of the event loop, whichever loop it is; who cannot be is taken later."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from gateway.server.listener import MAX_PER_TURN, Listener
from tests.patience import PATIENCE_S

CROWD = 200


class Noted(asyncio.Protocol):
    """Notes the turn in which it was made."""

    def __init__(self, made: list[int], turn: Callable[[], int]) -> None:
        self._made = made
        self._turn = turn

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._made.append(self._turn())


async def turns_of_a_crowd() -> int:
    """Over how many turns of the loop those who wait already are taken."""
    loop, turn, made = asyncio.get_running_loop(), 0, list[int]()
    listener = socket.create_server(("127.0.0.1", 0), backlog=CROWD)
    waiting = [socket.create_connection(listener.getsockname()) for _ in range(CROWD)]
    done = loop.create_future()

    def next_turn() -> None:
        nonlocal turn
        turn += 1
        if len(made) < CROWD:
            loop.call_soon(next_turn)
        else:
            done.set_result(None)

    accepting = Listener(listener, lambda: Noted(made, lambda: turn))
    next_turn()
    async with asyncio.timeout(PATIENCE_S):
        await done
    accepting.stop()
    for each in waiting:
        each.close()
    await asyncio.sleep(0.05)
    return made[-1] - made[0] + 1


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_crowd_is_taken_in_few_turns(run: Callable[[Coroutine[Any, Any, int]], int]) -> None:
    assert run(turns_of_a_crowd()) <= 3 * -(-CROWD // MAX_PER_TURN)


async def test_who_finds_no_file_descriptor_is_taken_when_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.server.listener.PAUSE_S", 0.05)
    listener, made = socket.create_server(("127.0.0.1", 0)), list[int]()
    caller = socket.create_connection(listener.getsockname())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = os.dup(0)
    os.close(highest)
    accepting = Listener(listener, lambda: Noted(made, lambda: 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
    try:
        await asyncio.sleep(0.12)
        assert made == []
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    async with asyncio.timeout(PATIENCE_S):
        while not made:
            await asyncio.sleep(0.01)
    accepting.stop()
    caller.close()
    await asyncio.sleep(0.01)


async def test_nobody_is_taken_after_the_stop() -> None:
    listener, made = socket.create_server(("127.0.0.1", 0)), list[int]()
    address = listener.getsockname()
    accepting = Listener(listener, lambda: Noted(made, lambda: 0))
    for _ in range(2):
        accepting.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
    assert made == []
