"""Retries of calls whose effect is the same when they are repeated."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gateway.errors import StoreAway

Result = TypeVar("Result")


async def retried(attempt: Callable[[], Awaitable[Result]], retry_for_s: float) -> Result:
    """Retry an idempotent call with backoff until it returns. Raises `StoreAway` after `retry_for_s`.

    Each attempt has the client's timeout, so the first one, which nearly always is the only one, needs no timer.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + retry_for_s
    try:
        return await attempt()
    except StoreAway as error:
        last_error = error
    pause_s = 0.02
    try:
        async with asyncio.timeout_at(deadline):
            while True:
                await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))  # noqa: S311 - jitter
                pause_s = min(2 * pause_s, 0.5)
                try:
                    return await attempt()
                except StoreAway as error:
                    last_error = error
    except TimeoutError:
        raise last_error from None
