"""Callers that ask again and again while something happens to the program or its store, and a look at the books after it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from gateway.exchange import Outcome
from tests.cli.processes import all_ready
from tests.patience import PATIENCE_S
from tests.whole.books import LEASE_S, OPENING, Books
from tests.whole.raw import ask, chat

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
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command, stdout=asyncio.subprocess.PIPE, stderr=log
        )
    try:
        await all_ready(process)
        yield process.pid
    finally:
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 40) == 0, books.log()


async def under_load(books: Books, workers: int, disturb: Callable[[int, Callers], Awaitable[None]]) -> Callers:
    """Callers ask while `disturb` works on the program; afterwards all leases pass and the books are looked at."""
    callers = Callers(books)
    async with serving(books, workers) as pid:
        async with callers.asking():
            await disturb(pid, callers)
            served = len(callers.whole)
            async with asyncio.timeout(PATIENCE_S):
                while len(callers.whole) < served + 20:
                    await asyncio.sleep(0.05)
        await asyncio.sleep(LEASE_S)
        await books.delivered()
    await look_at(books, callers)
    return callers


async def look_at(books: Books, callers: Callers, floor: int = 0) -> None:
    """Who has a whole answer was charged once; what crashed its cost where that was known, else `floor` where it was held."""
    records = await books.records()
    await books.verified()
    charges = await books.charges()
    assert callers.whole <= records.keys()
    assert {request_id: sum(charges.get(request_id, [])) for request_id in callers.whole} == dict.fromkeys(
        callers.whole, EXACT
    )
    assert {request_id for request_id in callers.refused if sum(charges.get(request_id, []))} == set()
    assert floor or all(len([each for each in lines if each]) <= 1 for lines in charges.values())
    crashed = {request_id for request_id, record in records.items() if record.outcome is Outcome.GATEWAY_CRASHED}
    assert {sum(charges[request_id]) for request_id in crashed & charges.keys()} <= {floor, EXACT}
    assert (await books.account()).balance_micros == OPENING - sum(map(sum, charges.values()))
