"""Bounds the time for which a worker parses what callers send, so that what is expensive to parse does not delay the others.

1. Half of a worker's time may go into parsing, and `BURST_S` at once. Beyond that, connections that have sent something wait.
2. Those that wait are served piece by piece, and their addresses take turns.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from gateway.server.fair_queue import FairQueue

BURST_S: Final = 0.005


class Turns:
    """The time of one worker for parsing."""

    __slots__ = ("_free_at", "_timer", "_waiting")

    def __init__(self) -> None:
        self._free_at = 0.0
        """When as much time as was spent is over, on the monotonic clock."""
        self._waiting = FairQueue[Callable[[], None]]()
        self._timer: asyncio.TimerHandle | None = None

    def admit(self) -> bool:
        """Return whether something may be parsed now, without waiting for a turn."""
        return not self._waiting and self._has_time()

    def spend(self, began: float) -> None:
        """Count the time from `began` until now."""
        self._free_at = max(self._free_at, began) + 2 * (time.monotonic() - began)

    def wait(self, address: str, take_turn: Callable[[], None]) -> None:
        """Call `take_turn` when it is the turn of this address. It parses one piece, and calls `spend`."""
        self._waiting.put(address, take_turn)
        self._schedule()

    def _has_time(self) -> bool:
        return self._free_at - time.monotonic() < BURST_S

    def _schedule(self) -> None:
        if self._timer is None and self._waiting:
            after_s = max(0.0, self._free_at - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(after_s, self._next)

    def _next(self) -> None:
        self._timer = None
        while self._waiting and self._has_time():
            self._waiting.take()()
        self._schedule()
