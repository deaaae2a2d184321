"""How long a test waits for what is sure to come, and how it measures what is promised to come soon."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Final, TypeVar

PATIENCE_S: Final = 50
"""Seconds that only a fault takes, however busy the machine is; fewer than a channel's timers have by default."""
SOON_S: Final = 1.0
"""What is promised of giving back, and of what gateways tell one another."""
TICK_S: Final = 0.005

What = TypeVar("What")


async def timed(awaited: Awaitable[What]) -> tuple[What, float]:
    """What came, and the seconds until it did, less those in which a busy machine let nobody run."""
    began = ticked = time.monotonic()
    late_s = 0.0
    coming = asyncio.ensure_future(awaited)
    while not coming.done():
        await asyncio.wait([coming], timeout=TICK_S)
        late_s += max(0.0, time.monotonic() - ticked - 2 * TICK_S)
        ticked = time.monotonic()
    return coming.result(), ticked - began - late_s


async def soon(awaited: Awaitable[What]) -> What:
    """What came, as soon as is promised."""
    async with asyncio.timeout(PATIENCE_S):
        what, seconds = await timed(awaited)
    assert seconds < SOON_S
    return what
