"""What a plugin leaves behind when it has stopped: tasks, and threads that keep the process from ending."""

from __future__ import annotations

import asyncio
import sys
import threading
from traceback import walk_stack
from typing import Any, Final

from gateway.contract.contained import CONTAINED, place_in, waiting

EXECUTOR: Final = "asyncio_"
"""What the names of asyncio's own threads begin with: `asyncio.to_thread` starts them, and they wait for more work."""
GRACE_S: Final = 1.0
"""How long after `stop` tasks and threads may take to end."""
POLL_S: Final = 0.02


class LeftBehind:
    """What was begun since this was made."""

    def __init__(self) -> None:
        self._tasks = asyncio.all_tasks()
        self._threads = set(threading.enumerate())

    async def problems(self) -> list[str]:
        """Return a line for each task and thread that still runs, with its place. The tasks are cancelled."""
        tasks = {task for task in asyncio.all_tasks() - self._tasks if task.get_name() != CONTAINED}
        if tasks:
            _, tasks = await asyncio.wait(tasks, timeout=GRACE_S)
        workers = {thread for thread in threading.enumerate() if thread.name.startswith(EXECUTOR)}
        threads = (set(threading.enumerate()) - self._threads) | workers
        for _ in range(round(GRACE_S / POLL_S)):
            if not any(map(_place, workers)):
                break
            await asyncio.sleep(POLL_S)
        running = [(thread, _place(thread)) for thread in threads]
        for task in tasks:
            task.cancel()
        return [
            *map(_task, tasks),
            *(_thread(thread, at) for thread, at in running if at or thread not in workers),
        ]


def _place(thread: threading.Thread) -> str:
    """Return the file and the line of a plugin that a thread runs; empty where it runs none."""
    frame = sys._current_frames().get(thread.ident or 0)
    return "" if frame is None else place_in(reversed(list(walk_stack(frame))))[1]


def _thread(thread: threading.Thread, at: str) -> str:
    return f"thread {thread.name} still runs{f' ({at})' if at else ''}: end it in `stop`, and wait for it"


def _task(task: asyncio.Task[Any]) -> str:
    _, at = place_in(waiting(task.get_coro()))
    place = f" ({at})" if at else ""
    return f"{task.get_name()} still runs `{task.get_coro()}`{place}: cancel it in `stop`, and wait for it"
