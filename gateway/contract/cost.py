"""The cost of `on_chunk`, counted rather than timed: function calls, tasks, store commands, blocking calls."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final

from gateway.contract.blocking import cure_of
from gateway.store.client.client import Client

MAX_CALLS: Final = 50
"""Function calls that `on_chunk` may make for one chunk. Relaying the chunk takes fewer."""
WRITES: Final = ("posix", "write")


class Cost:
    """A context manager that counts what runs inside it. Enter it once for each chunk."""

    def __init__(self) -> None:
        self.max_calls = 0
        """Function calls of the most expensive chunk."""
        self._calls = 0
        self._problems: set[str] = set()

    def __enter__(self) -> None:
        self._calls = 0
        self._tasks = asyncio.all_tasks()
        self._profile = sys.getprofile()
        sys.setprofile(self._count)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(self._profile)
        self.max_calls = max(self.max_calls, self._calls - 1)  # without the call of this method
        if asyncio.all_tasks() - self._tasks:
            self._problems.add("`on_chunk` starts a task: start it in `start`, and give it work")

    def problems(self) -> Iterator[str]:
        """Yield a line for each thing that `on_chunk` must not do, with its cure."""
        yield from sorted(self._problems)
        if self.max_calls > MAX_CALLS:
            yield (
                f"`on_chunk` makes {self.max_calls} function calls for one chunk, the limit is {MAX_CALLS}: "
                "move work to `on_end`"
            )

    def _count(self, frame: FrameType, event: str, called: Any) -> None:
        if event == "call":
            self._calls += 1
            if frame.f_code is Client.submit.__code__:
                self._problems.add("`on_chunk` sends a command to the store: collect here, and send in `on_end`")
        elif event == "c_call":
            self._calls += 1
            name = (str(getattr(called, "__module__", "")), str(getattr(called, "__name__", "")))
            if name == WRITES or cure_of(called) or getattr(called, "__qualname__", "").startswith("socket."):
                place = f"{frame.f_code.co_filename}, line {frame.f_lineno}"
                self._problems.add(f"`on_chunk` blocks the event loop with `{name[1]}` ({place})")
