"""What waits for a turn is served in order, a part of it in each turn of the event loop."""

from __future__ import annotations

import asyncio
import time

import pytest

from gateway.proxy.turns import TURN_S, Turns
from tests.patience import wait_until


async def test_each_turn_of_the_loop_serves_some_in_order() -> None:
    turns = Turns()
    served: list[int] = []
    between: list[int] = []

    def serve(number: int) -> None:
        served.append(number)
        time.sleep(TURN_S)

    def look() -> None:
        between.append(len(served))
        if len(served) < 5:
            asyncio.get_running_loop().call_soon(look)

    for number in range(5):
        turns.wait(lambda number=number: serve(number))  # type: ignore[misc]
    look()
    await wait_until(lambda: between[-1] == 5)
    assert served == [0, 1, 2, 3, 4]
    assert between == [0, 1, 2, 3, 4, 5], "other work comes between two that are as long as a turn"


async def test_what_waits_again_is_served_after_the_others() -> None:
    turns = Turns()
    served: list[str] = []

    def again() -> None:
        served.append("first")
        if len(served) < 3:
            turns.wait(again)

    turns.wait(again)
    turns.wait(lambda: served.append("second"))
    await wait_until(lambda: len(served) == 3)
    assert served == ["first", "second", "first"]


async def test_one_that_raises_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    turns = Turns()
    served: list[str] = []

    def fail() -> None:
        raise ValueError("no")

    turns.wait(fail)
    turns.wait(lambda: served.append("second"))
    await wait_until(lambda: served == ["second"])
