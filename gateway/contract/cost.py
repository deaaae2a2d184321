"""What `on_chunk` costs, counted rather than timed: calls of functions, tasks, commands to the store, calls that block."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final

from gateway.store.client.client import Client

MOST_CALLS: Final = 50
"""Calls of functions for one chunk. Passing the chunk on takes fewer."""
BLOCKING: Final = {("time", "sleep"), ("_io", "open"), ("posix", "open"), ("posix", "fsync"), ("posix", "write")}


class Cost:
    """Counts while it is entered, once for each chunk."""

    def __init__(self) -> None:
        self.most = 0
        """Calls in the dearest chunk."""
        self.chunks = 0
        self._calls = 0
        self._wrong: set[str] = set()

    def __enter__(self) -> None:
        self._calls = 0
        self._tasks = asyncio.all_tasks()
        self._profile = sys.getprofile()
        sys.setprofile(self._see)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(self._profile)
        self.chunks += 1
        self.most = max(self.most, self._calls - 1)  # the end of the count is a call, too
        if asyncio.all_tasks() - self._tasks:
            self._wrong.add("`on_chunk` begins a task: begin it in `start`, and give it work")

    def problems(self) -> Iterator[str]:
        """What is too much between two sockets."""
        yield from sorted(self._wrong)
        if self.most > MOST_CALLS:
            yield f"`on_chunk` makes {self.most} calls for one chunk, and {MOST_CALLS} is the most: leave work to `on_end`"

    def _see(self, frame: FrameType, event: str, called: Any) -> None:
        if event == "call":
            self._calls += 1
            if frame.f_code is Client.submit.__code__:
                self._wrong.add("`on_chunk` sends a command to the store: collect, and send in `on_end`")
        elif event == "c_call":
            self._calls += 1
            name = (str(getattr(called, "__module__", "")), str(getattr(called, "__name__", "")))
            if name in BLOCKING or getattr(called, "__qualname__", "").startswith("socket."):
                self._wrong.add(f"`on_chunk` blocks everybody with `{name[1]}`")
