"""How much a caller may do at its own pages at once, and change in a minute, so that other callers are served meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from gateway.errors import Refused

MOST_AT_ONCE: Final = 4
"""Requests of an account that are worked on at once. Others wait for their turn."""
MOST_CHANGES: Final = 30
"""Changes of an account in a minute: each is written to the store and to its audit log."""
MINUTE_S: Final = 60.0


class OwnBounds:
    """What callers do at the moment, and have changed in this minute."""

    def __init__(self) -> None:
        self._turns: dict[str, asyncio.Semaphore] = {}
        self._using: Counter[str] = Counter()
        self._changes: Counter[str] = Counter()
        self._since = time.monotonic()

    @asynccontextmanager
    async def turn(self, account: str) -> AsyncIterator[None]:
        """Wait for the turn of a request of this account."""
        turns = self._turns.setdefault(account, asyncio.Semaphore(MOST_AT_ONCE))
        self._using[account] += 1
        try:
            async with turns:
                yield
        finally:
            self._using[account] -= 1
            if not self._using[account]:
                del self._using[account], self._turns[account]

    def count_change(self, account: str) -> None:
        """Count a change. Raises `Refused` (429) for one too many."""
        now = time.monotonic()
        if now - self._since > MINUTE_S:
            self._changes.clear()
            self._since = now
        if self._changes[account] >= MOST_CHANGES:
            wait_s = max(1.0, self._since + MINUTE_S - now)
            text = f"At most {MOST_CHANGES} changes a minute: wait until the next."
            raise Refused(429, "rate_limited", text, retry_after_s=wait_s)
        self._changes[account] += 1
