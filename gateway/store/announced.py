"""What accounts were told about when to retry, so that a request that waited as it was told is not refused again.

One worker remembers this. A retry that reaches another worker is judged by what that worker knows.
"""

from __future__ import annotations

import time
from bisect import insort
from collections import OrderedDict
from typing import Final

MARGIN_S: Final = 0.05
"""How much longer than needed the announced time is, so that other workers, too, know that the cool-down is over."""
KEPT_S: Final = 60.0
"""How late a request may come."""
MAX_ENTRIES: Final = 4096
"""Pairs of account and channel that are remembered; the one that was told least recently is forgotten first."""
MAX_EACH: Final = 32
"""Announcements that are remembered for each pair: so many requests of an account may wait at once."""


class Announcements:
    """The times from which on accounts may call channels again. Each admits one request."""

    def __init__(self) -> None:
        self._times: OrderedDict[tuple[str, str], list[float]] = OrderedDict()

    def add(self, account: str, channel: str, wait_s: float) -> None:
        """Remember that a request of the account was told to wait this long."""
        key = (account, channel)
        times = self._times.setdefault(key, [])
        self._times.move_to_end(key)
        insort(times, time.monotonic() + wait_s - MARGIN_S)
        del times[:-MAX_EACH]
        if len(self._times) > MAX_ENTRIES:
            self._times.popitem(last=False)

    def over(self, account: str, channel: str) -> bool:
        """Return whether a request of the account has waited as long as it was told to."""
        times, now = self._times.get((account, channel)), time.monotonic()
        while times and times[0] < now - KEPT_S:
            del times[0]
        return times is not None and times != [] and times[0] <= now

    def use(self, account: str, channel: str) -> None:
        """Forget the earliest announcement, if its time is over: its request is admitted."""
        if self.over(account, channel):
            times = self._times[account, channel]
            del times[0]
            if not times:
                del self._times[account, channel]
