"""A caller's requests are worked on a few at once, and nobody else's wait behind them."""

from __future__ import annotations

import asyncio

from gateway.admin.pages.callers import MOST_AT_ONCE, OwnBounds
from tests.patience import soon, wait_until


async def test_a_few_requests_of_an_account_are_worked_on_at_once_and_others_do_not_wait() -> None:
    bounds, go_on, working = OwnBounds(), asyncio.Event(), list[str]()

    async def ask(account: str) -> None:
        async with bounds.turn(account):
            working.append(account)
            await go_on.wait()

    hostile = [asyncio.create_task(ask("hostile")) for _ in range(50)]
    await wait_until(lambda: len(working) == MOST_AT_ONCE)
    other = asyncio.create_task(ask("other"))
    await wait_until(lambda: "other" in working)
    assert working.count("hostile") == MOST_AT_ONCE
    for left in hostile[:20]:  # some leave while they work, or wait
        left.cancel()
    await asyncio.gather(*hostile[:20], return_exceptions=True)
    go_on.set()
    await soon(asyncio.gather(*hostile[20:], other))
    assert working.count("hostile") == MOST_AT_ONCE + 30
    hostile.clear()
    del left  # a task that was cancelled keeps its frames
    assert not bounds._turns
