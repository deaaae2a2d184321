"""The order in which upstreams that send much are served, so that none of them holds the event loop. Sans-I/O."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

TURN_S: Final = 0.0003
"""How long one turn of the event loop serves those that wait. At least one of them is served."""


class Turns:
    """A queue of what waits for a turn. In each turn of the event loop, some of it is called, first come first served."""

    __slots__ = ("_scheduled", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._scheduled = False

    def wait(self, serve: Callable[[], None]) -> None:
        """Call `serve` in a later turn of the event loop, or later in the turn that serves now."""
        self._waiting.append(serve)
        self._schedule()

    def _schedule(self) -> None:
        if self._waiting and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        ends = time.monotonic() + TURN_S
        try:
            while self._waiting:
                self._waiting.popleft()()
                if time.monotonic() >= ends:
                    break
        finally:
            self._scheduled = False
            self._schedule()
