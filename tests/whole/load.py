"""Load for the tests that kill or disturb the program or its store, and the check of the books afterwards."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from gateway.base.ids import new_id
from gateway.domain.exchange import Outcome
from tests.cli.processes import all_ready
from tests.forked import FORKED
from tests.patience import PATIENCE_S
from tests.whole.books import LEASE_S, OPENING, Books
from tests.whole.raw import ask, chat

CALLERS = 8
EXACT = 1 + 2 * 12
"""Micros for one request: the fake upstream counts one word of prompt and twelve words of response."""


class Callers:
    """Callers that send one request after the other. `whole`: ids of complete responses; `refused`: ids of 503 responses."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self.whole: set[str] = set()
        self.refused: set[str] = set()
        self.statuses: set[int] = set()
        self.disturbed = ""
        """An id of when the disturbance was over."""

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[None]:
        """Send requests until the block ends."""
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
async def serving(file: Path, workers: int, log: Path) -> AsyncIterator[int]:
    """Run `gateway serve` with a configuration file and yield its pid. Assert that it ends with exit code 0."""
    command = ("-m", "gateway", "serve", "--config", str(file), "--workers", str(workers))
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(FORKED, *command, stdout=asyncio.subprocess.PIPE, stderr=output)
    try:
        await all_ready(process)
        yield process.pid
    finally:
        with suppress(ProcessLookupError):  # the test may have stopped it; `terminate` would then take its exit code
            os.kill(process.pid, signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 40) == 0, await asyncio.to_thread(log.read_text)


async def under_load(books: Books, workers: int, disturb: Callable[[int, Callers], Awaitable[None]]) -> Callers:
    """Send requests while `disturb(pid, callers)` runs, wait until all leases have expired, and check the books."""
    callers = Callers(books)
    async with serving(books.file, workers, books.log_file) as pid:
        async with callers.asking():
            await disturb(pid, callers)
            served, callers.disturbed = len(callers.whole), new_id()
            async with asyncio.timeout(PATIENCE_S):
                while len(callers.whole) < served + 20:
                    await asyncio.sleep(0.05)
        await asyncio.sleep(LEASE_S)
        await books.wait_delivered()
    await check_books(books, callers)
    return callers


async def check_books(books: Books, callers: Callers, floor: int = 0) -> None:
    """Assert that the books balance and that each request was charged correctly.

    A complete response was charged once and a refused request not at all. A request that crashed was charged its cost if
    that was known, else `floor` if it was held: a refused one, too, if the crash came between its answer and its release.
    """
    records = await books.records()
    await books.verify()
    charges = await books.charges()
    assert callers.whole <= records.keys()
    assert {request_id: sum(charges.get(request_id, [])) for request_id in callers.whole} == dict.fromkeys(
        callers.whole, EXACT
    )
    crashed = {request_id for request_id, record in records.items() if record.outcome is Outcome.GATEWAY_CRASHED}
    assert {sum(charges.get(request_id, [])) for request_id in callers.refused - crashed} <= {0}
    assert {sum(charges.get(request_id, [])) for request_id in callers.refused & crashed} <= {0, floor}
    assert floor or all(len([each for each in lines if each]) <= 1 for lines in charges.values())
    assert {sum(charges[request_id]) for request_id in (crashed - callers.refused) & charges.keys()} <= {floor, EXACT}
    assert (await books.account()).balance_micros == OPENING - sum(map(sum, charges.values()))
