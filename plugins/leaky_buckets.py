"""Limits by minute that one process keeps in bounded memory, one for each key."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from gateway import Clock

MAX_KEYS: Final = 10_000
"""Keys that are kept. The one that was used least recently is forgotten first."""


class LeakyBuckets:
    """A leaky bucket for each key: it holds `per_minute`, and as many leak out in a minute."""

    def __init__(self, per_minute: int, clock: Clock) -> None:
        self._interval_s = 60 / per_minute
        self._clock = clock
        self._empty_at: OrderedDict[str, float] = OrderedDict()
        """When each bucket will be empty, on the monotonic clock."""

    def add(self, key: str) -> float:
        """Add one. Return 0, or, if the bucket is full and nothing was added, the seconds until there is room."""
        now = self._clock.monotonic()
        empty_at = max(now, self._empty_at.get(key, now)) + self._interval_s
        wait_s = empty_at - now - 60
        if wait_s > 0:
            return wait_s
        self._empty_at[key] = empty_at
        self._empty_at.move_to_end(key)
        if len(self._empty_at) > MAX_KEYS:
            self._empty_at.popitem(last=False)
        return 0
