"""The turns of queries that callers ask for, so that none of them can keep the usage log or the store from the others.

1. **They have threads of their own**: what else blocks does not wait for them, nor they for it.
2. **One query of an account runs at a time.** A few more wait, in their order; any more are refused.
3. A caller that leaves does not free its turn before its query has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from gateway.errors import Refused

Result = TypeVar("Result")

THREADS: Final = 2
"""Queries that run at once in a process."""
MAX_QUERIES: Final = 8
"""Queries of one account in a process, with those that wait."""
RETRY_AFTER_S: Final = 1.0


class Lookups:
    """The queries of one process."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="lookup")
        self._accounts: dict[str, list[asyncio.Task[object]]] = {}

    async def in_thread(self, account: str, query: Callable[[], Result]) -> Result:
        """Return the result of a query that blocks. Raises what it raises, and `Refused` where too many wait."""

        async def run() -> Result:
            return await asyncio.get_running_loop().run_in_executor(self._threads, query)

        return await self.run(account, run)

    async def run(self, account: str, query: Callable[[], Awaitable[Result]]) -> Result:
        """Return the result of a query, when it is its turn. Raises as `in_thread` does."""
        queries = self._accounts.setdefault(account, [])
        if len(queries) >= MAX_QUERIES:
            raise Refused(
                429,
                "too_many_concurrent",
                f"{MAX_QUERIES} requests for lists of this account are in progress. Wait for one to end, then try again.",
                retry_after_s=RETRY_AFTER_S,
            )
        task = asyncio.create_task(_after(queries[-1] if queries else None, query))
        queries.append(task)
        task.add_done_callback(lambda _: self._forget(account, task))
        return await asyncio.shield(task)

    def _forget(self, account: str, task: asyncio.Task[object]) -> None:
        queries = self._accounts[account]
        queries.remove(task)
        if not queries:
            del self._accounts[account]
        if not task.cancelled():
            task.exception()  # of a query whose caller has left, nothing else asks for it


async def _after(before: asyncio.Task[object] | None, query: Callable[[], Awaitable[Result]]) -> Result:
    if before is not None:
        await asyncio.wait([before])
    return await query()
