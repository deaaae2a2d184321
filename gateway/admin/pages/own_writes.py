"""How often a caller may change something at its own pages: each change is written to the store and to its audit log."""

from __future__ import annotations

import time
from collections import Counter
from typing import Final

from gateway.errors import Refused

MOST: Final = 30
"""Changes of an account in a minute."""
MINUTE_S: Final = 60.0


class OwnWrites:
    """The changes of callers in this minute."""

    def __init__(self) -> None:
        self._made: Counter[str] = Counter()
        self._since = time.monotonic()

    def count(self, account: str) -> None:
        """Count a change. Raises `Refused` (429) for one too many."""
        now = time.monotonic()
        if now - self._since > MINUTE_S:
            self._made.clear()
            self._since = now
        if self._made[account] >= MOST:
            wait_s = max(1.0, self._since + MINUTE_S - now)
            raise Refused(
                429, "rate_limited", f"At most {MOST} changes a minute: wait until the next.", retry_after_s=wait_s
            )
        self._made[account] += 1
