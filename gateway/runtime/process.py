"""The event loop of a process that runs until SIGTERM, and background tasks of it.

A background task is an asynchronous context manager: it starts on entry, and is cancelled and awaited on exit.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, Self

from gateway.base.log import log

CUT: Final = signal.SIGUSR1
"""The parent's signal to a draining worker: end the open streams now. A worker ignores SIGINT, which a terminal sends to all."""
END_LIMIT_S: Final = 1.0
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Options of glibc's `mallopt`."""
OWN_MAPPING: Final = 320 * 1024
"""More than the 256 KiB that uvloop allocates for each read by TLS: to map each would take four times as long as the read."""
FREE_AT_END: Final = 1024 * 1024
"""Bytes at the end of the heap that are kept, since most are needed again at once."""

CANCEL_INTERVAL_S: Final = 0.5


def run_until_terminated(
    serve: Callable[[asyncio.Event], Coroutine[Any, Any, None]],
    new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> None:
    """Run `serve(stop)` on an event loop of its own and return when it returns; SIGTERM sets `stop`.

    `new_loop` makes the event loop; without it, asyncio does. Where a task exits, as by `sys.exit()`, only that task ends.
    """

    async def main() -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        await serve(stop)
        await _end_tasks()

    _map_large_allocations()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        loop = runner.get_loop()
        task = loop.create_task(main())
        while not task.done():
            try:
                loop.run_until_complete(task)
            except SystemExit:  # asyncio raises it out of the loop, which can go on
                if task.done():
                    raise
                log.exception("task_exited")


def _map_large_allocations() -> None:
    """Let each large body have a memory mapping of its own, so that it grows without being copied and is given back at once.

    By itself glibc raises its threshold to the largest that was freed, up to 32 MiB. Another C library has no such option.
    """
    with suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, OWN_MAPPING)
        mallopt(M_TRIM_THRESHOLD, FREE_AT_END)


async def _end_tasks() -> None:
    """Cancel the tasks that are left. End the process where one does not end: the event loop would wait for it forever."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if not tasks:
        return
    _, pending = await asyncio.wait(tasks, timeout=END_LIMIT_S)
    if pending:
        log.error("tasks_abandoned", tasks=sorted({_name(task) for task in pending}))
        sys.stderr.flush()
        os._exit(0)


def _name(task: asyncio.Task[Any]) -> str:
    return getattr(task.get_coro(), "__qualname__", task.get_name())


class BackgroundTask(ABC):
    """A subclass implements `_run`. The exit raises the exception of `_run`."""

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
