"""What accounts have spent in a day, a week or a month, as the usage log on this machine has it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Final, Literal, get_args

from gateway.budgets import Calendar
from gateway.errors import StoreAway
from gateway.usage.damage import UnusableFile
from gateway.usage.sums import Selected, grouped

Window = Literal["day", "week", "month"]

REMEMBERED_S: Final = 1.0
"""How long a sum is used again: one query a second for each account, however many requests it sends."""
MAX_REMEMBERED: Final = 10_000


class Spending:
    """The sums of one usage log. `calendar` says when windows begin."""

    def __init__(self, folder: Path, calendar: Calendar) -> None:
        self._folder = folder
        self._calendar = calendar
        self._sums: dict[tuple[str, Window], tuple[float, asyncio.Task[int]]] = {}

    async def spent(self, account: str, window: Window) -> int:
        """Return what an account was charged in the current window, in micros. Raises `ValueError` and `StoreAway`."""
        if window not in get_args(Window):
            raise ValueError(f"spent: the window is one of {', '.join(get_args(Window))}, not {window}")
        key, now = (account, window), time.monotonic()
        until, task = self._sums.get(key, (0.0, None))
        if task is None or now >= until or (task.done() and task.exception() is not None):
            if len(self._sums) >= MAX_REMEMBERED:
                self._sums.clear()
            since_ms = self._calendar.began_ms(window)
            task = asyncio.get_running_loop().create_task(asyncio.to_thread(self._sum, account, since_ms))
            self._sums[key] = now + REMEMBERED_S, task
        return await asyncio.shield(task)

    def _sum(self, account: str, since_ms: int) -> int:
        unusable: list[UnusableFile] = []
        rows = grouped(self._folder, (), Selected(account=account, since_ms=since_ms), unusable)
        if unusable:
            raise StoreAway(f"the usage log cannot be read: {unusable[0]}")
        return sum(row["charge_micros"] or 0 for row in rows)
