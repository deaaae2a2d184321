"""Limiter by key, for one process: so many of each key in a time. `gateway.store.limits` is its twin for what gateways share."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

MAX_KEYS: Final = 10_000
"""Keys that are kept. The one that was used least recently is forgotten first."""


class LeakyBuckets:
    """A leaky bucket for each key: it holds `size`, and as many leak out in `period_s`.

    `monotonic`: the clock, as `services.clock.monotonic`.
    """

    def __init__(self, size: int, period_s: float = 60.0, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._interval_s = period_s / size
        self._period_s = period_s
        self._monotonic = monotonic
        self._empty_at: OrderedDict[str, float] = OrderedDict()

    def add(self, key: str, most_wait_s: float = 0.0) -> float:
        """Add one. Return in how many seconds there is room for it: 0 for now. Beyond `most_wait_s` nothing is added."""
        now = self._monotonic()
        empty_at = max(now, self._empty_at.get(key, now)) + self._interval_s
        wait_s = max(0.0, empty_at - now - self._period_s)
        if wait_s <= most_wait_s:
            self._empty_at[key] = empty_at
            self._empty_at.move_to_end(key)
            if len(self._empty_at) > MAX_KEYS:
                self._empty_at.popitem(last=False)
        return wait_s
