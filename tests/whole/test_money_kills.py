"""Processes and networks fail at random under load: the books are right, and who has a whole answer was charged once.

`MONEY_SECONDS=60 MONEY_SEED=7 pytest tests/whole/test_money_kills.py -s` runs the longer form.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from gateway.fake_upstream import FakeUpstream
from tests.cli.processes import children
from tests.store_proxy import Fault, StoreProxy
from tests.whole.books import LEASE_S, OPENING, Books
from tests.whole.raw import ask, chat

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the children of a process are read from /proc")

SECONDS = float(os.environ.get("MONEY_SECONDS", "5"))
SEED = int(os.environ.get("MONEY_SEED", random.randrange(1 << 32)))
CALLERS = 8
EXACT = 1 + 2 * 12
"""The fake upstream counts words: one of the prompt, twelve of its answer."""


class Callers:
    """Ask again and again, and note what they got."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self.whole: set[str] = set()
        self.refused: set[str] = set()
        self.statuses: set[int] = set()

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self._ask()) for _ in range(CALLERS)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self) -> None:
        while True:
            try:
                answer = await ask(self._books.port, chat(self._books.token))
            except (OSError, EOFError):
                await asyncio.sleep(0.02)
                continue
            self.statuses.add(answer.status)
            if answer.whole and answer.status == 200:
                self.whole.add(answer.headers["x-request-id"])
            elif answer.status == 503:
                self.refused.add(answer.headers["x-request-id"])


@asynccontextmanager
async def serving(books: Books, workers: int) -> AsyncIterator[int]:
    """The whole program; its pid. Its end is a good one."""
    command = ("-m", "gateway", "serve", "--config", str(books.file), "--workers", str(workers))
    with (books.folder / "worker.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=log, stderr=log)
    try:
        async with asyncio.timeout(20):
            while True:
                with suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", books.port)
                    writer.close()
                    break
                await asyncio.sleep(0.02)
        yield process.pid
    finally:
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 40) == 0, books.log()


async def under_load(books: Books, workers: int, disturb: Callable[[int], Awaitable[None]]) -> Callers:
    """Callers ask while `disturb` works on the program; afterwards all leases pass and the books are looked at."""
    callers = Callers(books)
    async with serving(books, workers) as pid:
        async with callers.asking():
            await disturb(pid)
            served = len(callers.whole)
            async with asyncio.timeout(20):
                while len(callers.whole) < served + 20:
                    await asyncio.sleep(0.05)
        await asyncio.sleep(LEASE_S)  # the journal is delivered meanwhile
    await look_at(books, callers)
    return callers


async def look_at(books: Books, callers: Callers) -> None:
    records = await books.records()
    await books.verified()
    charges = await books.charges()
    assert callers.whole <= records.keys()
    assert {rid: sum(charges.get(rid, [])) for rid in callers.whole} == dict.fromkeys(callers.whole, EXACT)
    assert {rid for rid in callers.refused if sum(charges.get(rid, []))} == set()
    assert all(len([each for each in lines if each]) <= 1 for lines in charges.values())
    assert (await books.account()).balance_micros == OPENING - sum(map(sum, charges.values()))


@pytest.fixture
async def books(tmp_path: Path) -> AsyncIterator[Books]:
    print(f"MONEY_SEED={SEED}")
    async with FakeUpstream(pace_s=0.004) as upstream:
        books = Books(tmp_path, upstream.base_url)
        try:
            await books.open()
            yield books
        finally:
            books.embedded.stop()


async def test_workers_and_the_store_are_killed(books: Books) -> None:
    chance = random.Random(SEED)

    async def disturb(pid: int) -> None:
        deadline = asyncio.get_running_loop().time() + SECONDS
        while asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(chance.uniform(0.2, 1.5))
            family = sorted(children(pid))  # fewer where one that died often waits for its next start
            if not family or chance.random() < 0.2:
                await asyncio.to_thread(books.kill_store)
            else:
                with suppress(ProcessLookupError):
                    os.kill(chance.choice(family), signal.SIGKILL)

    callers = await under_load(books, 2, disturb)
    assert len(callers.whole) > 20


async def test_the_network_to_the_store_fails(books: Books) -> None:
    chance = random.Random(SEED)
    async with StoreProxy(books.url) as proxy:
        books.reach_store_at(proxy.url)

        async def disturb(_: int) -> None:
            proxy.fault = lambda: chance.choice(tuple(Fault)) if chance.random() < 0.1 else None
            await asyncio.sleep(SECONDS)
            proxy.fault = lambda: None

        callers = await under_load(books, 1, disturb)
        assert callers.statuses <= {200, 502, 503, 504}, "an upstream may be late on a busy machine"
        assert callers.refused
        assert sum(proxy.done.values()) > 5
