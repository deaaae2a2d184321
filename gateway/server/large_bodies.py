"""Checks large bodies one after the other, with pauses, so that other requests and open streams are served in between.

The check of a body blocks the event loop: for some 100 ms where a body of 8 MiB is as expensive as it can be. Several at once
would block it for that many times as long, and calls of the store would time out meanwhile, which refuses other requests.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from gateway.chat.request import Body, BodyRules, check

SMALL: Final = 64 * 1024
"""Bytes up to which a body is checked at once: the check takes less than a millisecond."""


class LargeBodies:
    """The order in which a worker checks large bodies. After each, it does other work for at least as long as the check took."""

    __slots__ = ("_free_at", "_lock")

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._free_at = 0.0

    async def check(self, raw: bytes | bytearray, rules: BodyRules) -> Body:
        """Return the checked body. Raises `Refused`."""
        async with self._lock:
            await asyncio.sleep(self._free_at - time.monotonic())
            began = time.monotonic()
            try:
                return check(raw, rules)
            finally:
                ended = time.monotonic()
                self._free_at = ended + (ended - began)
