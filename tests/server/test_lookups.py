"""The turns of queries: one of an account at a time, a few that wait, and threads of their own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial

import pytest

from gateway.base.errors import Refused, StoreAway
from gateway.server.own_records import MAX_QUERIES, THREADS, Lookups
from tests.patience import PATIENCE_S


class Gate:
    """Queries that wait in their threads until they are let through."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.running = 0
        self.most = 0
        self._lock = threading.Lock()

    def query(self, result: object = None) -> Callable[[], object]:
        def run() -> object:
            with self._lock:
                self.running += 1
                self.most = max(self.most, self.running)
            assert self.open.wait(PATIENCE_S)
            with self._lock:
                self.running -= 1
            return result

        return run


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.001)


async def test_one_query_of_an_account_runs_at_a_time_in_their_order() -> None:
    lookups, order = Lookups(), list[int]()
    await asyncio.gather(*(lookups.in_thread("alice", partial(order.append, number)) for number in range(8)))
    assert order == list(range(8))


async def test_another_account_does_not_wait_for_one_that_asks_much_and_too_many_are_refused() -> None:
    lookups, gate = Lookups(), Gate()
    asked = [asyncio.create_task(lookups.in_thread("alice", gate.query(number))) for number in range(MAX_QUERIES)]
    await until(lambda: gate.running == 1)
    with pytest.raises(Refused, match="8 requests for lists") as refused:
        await lookups.in_thread("alice", gate.query())
    assert (refused.value.status, refused.value.code, refused.value.retry_after_s) == (429, "too_many_concurrent", 1)
    assert await lookups.in_thread("bob", lambda: "answered") == "answered"
    gate.open.set()
    assert await asyncio.gather(*asked) == list(range(MAX_QUERIES))
    assert gate.most == 1
    assert await lookups.in_thread("alice", lambda: "answered") == "answered"


async def test_a_process_runs_a_few_at_once() -> None:
    lookups, gate = Lookups(), Gate()
    asked = [asyncio.create_task(lookups.in_thread(f"account{number}", gate.query())) for number in range(2 * THREADS)]
    await until(lambda: gate.running == THREADS)
    gate.open.set()
    await asyncio.gather(*asked)
    assert gate.most == THREADS


async def test_a_caller_that_leaves_does_not_free_its_turn_before_its_query_has_ended() -> None:
    lookups, gate = Lookups(), Gate()
    for _ in range(MAX_QUERIES):
        asked = asyncio.create_task(lookups.in_thread("alice", gate.query()))
        await asyncio.sleep(0)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
    with pytest.raises(Refused):
        await lookups.in_thread("alice", gate.query())
    gate.open.set()
    await until(lambda: not lookups._accounts)
    assert gate.most == 1


async def test_a_failed_query_does_not_stop_the_next_one() -> None:
    lookups = Lookups()

    async def fail() -> None:
        raise StoreAway("away")

    async def answer() -> str:
        return "answered"

    failed, answered = await asyncio.gather(
        lookups.run("alice", fail), lookups.run("alice", answer), return_exceptions=True
    )
    assert isinstance(failed, StoreAway)
    assert answered == "answered"
