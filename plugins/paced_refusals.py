"""Answers the refusals of a caller that goes on all the same later and later, so that it does not take the time of others.

Each worker answers `REFUSALS_PER_S` of one account or one address, as long as each connection waits for its answer. A client
that waits between its retries does not reach this.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from typing import Final

REFUSALS_PER_S: Final = 20
"""Refusals of one caller that are answered in a second, of which all may be at once."""
LONGEST_DELAY_S: Final = 2.0
MAX_DELAYED: Final = 1000
"""Refusals that wait at once, of all callers. Any more are answered at once."""
MAX_CALLERS: Final = 10_000
"""For how many callers refusals are counted."""


class PacedRefusals:
    """When the refusals of each caller are answered. It counts in this process only, in bounded memory."""

    def __init__(self) -> None:
        self._drained_at: OrderedDict[str, float] = OrderedDict()
        """When each caller will have no refusals left that count (a leaky bucket)."""
        self._delayed = 0

    async def wait(self, caller: str) -> None:
        """Return when a refusal of this caller may be answered: at once, unless it had many of late."""
        delay_s = min(self._count(caller), LONGEST_DELAY_S)
        if delay_s <= 0 or self._delayed >= MAX_DELAYED:
            return
        self._delayed += 1
        try:
            await asyncio.sleep(delay_s)
        finally:
            self._delayed -= 1

    def _count(self, caller: str) -> float:
        """Count a refusal, and return the seconds by which it is early."""
        now = time.monotonic()
        drained_at = max(now, self._drained_at.get(caller, now)) + 1 / REFUSALS_PER_S
        self._drained_at[caller] = min(drained_at, now + 1 + LONGEST_DELAY_S)
        self._drained_at.move_to_end(caller)
        if len(self._drained_at) > MAX_CALLERS:
            self._drained_at.popitem(last=False)
        return drained_at - now - 1
