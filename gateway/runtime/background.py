"""A task with an owner: begun by whoever enters it, ended and waited for when he leaves."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Final, Self

AGAIN_AFTER_S: Final = 0.5


class BackgroundTask(ABC):
    """Derive from it and say in `_run` what the task does; leaving raises what it raised."""

    _task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.get_running_loop().create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        task = self._task
        while task is not None and not task.done():
            task.cancel()  # more than once: redis-py swallows what comes while it connects
            await asyncio.wait((task,), timeout=AGAIN_AFTER_S)
        if task is not None:
            with suppress(asyncio.CancelledError):
                task.result()

    @abstractmethod
    async def _run(self) -> None: ...
