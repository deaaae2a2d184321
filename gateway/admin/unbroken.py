"""Writes that are done to their end, also where the caller leaves meanwhile: half of one would be worse than either."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

Result = TypeVar("Result")

END_S: Final = 5.0
"""How long a stop waits for them."""


class Unbroken:
    """The writes in progress."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    async def done(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Do the work and return its result. Where this call is cancelled, the work goes on."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # nobody may be left to hear of it

    async def end(self, *_: object) -> None:
        """Wait until those in progress have ended, for some seconds."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=END_S)
