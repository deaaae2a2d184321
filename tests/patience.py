"""Timeouts for tests on a busy machine: how long to wait for what must happen, and how to measure what must happen soon."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

PATIENCE_S: Final = 50
"""Seconds to wait before a test fails, enough for a busy machine; shorter than a channel's default timers."""
SOON_S: Final = 1.0
"""Seconds within which resources are released and gateways learn each other's channel states."""
TICK_S: Final = 0.005

Result = TypeVar("Result")


async def timed(awaited: Awaitable[Result]) -> tuple[Result, float]:
    """Return the result and the seconds that it took, without those in which this process did not get the CPU."""
    began = ticked = time.monotonic()
    late_s = 0.0
    future = asyncio.ensure_future(awaited)
    while not future.done():
        await asyncio.wait([future], timeout=TICK_S)
        late_s += max(0.0, time.monotonic() - ticked - 2 * TICK_S)
        ticked = time.monotonic()
    return future.result(), ticked - began - late_s


async def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until the condition is true. Raise `TimeoutError` after `PATIENCE_S`."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(TICK_S)


async def soon(awaited: Awaitable[Result]) -> Result:
    """Return the result. Fail if it takes `SOON_S` or longer."""
    async with asyncio.timeout(PATIENCE_S):
        result, seconds = await timed(awaited)
    assert seconds < SOON_S
    return result
