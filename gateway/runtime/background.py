"""A background task that is an asynchronous context manager: it starts on entry, and is cancelled and awaited on exit."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Final, Self

CANCEL_INTERVAL_S: Final = 0.5


class BackgroundTask(ABC):
    """A subclass implements `_run`. The exit raises what `_run` raised."""

    _task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.get_running_loop().create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        task = self._task
        while task is not None and not task.done():
            task.cancel()  # repeated, because redis-py swallows a cancellation while it connects
            await asyncio.wait((task,), timeout=CANCEL_INTERVAL_S)
        if task is not None:
            with suppress(asyncio.CancelledError):
                task.result()

    @abstractmethod
    async def _run(self) -> None: ...
