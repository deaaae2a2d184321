"""Several large bodies at once: their checks are done in parts, accounts take turns, and other work goes first."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Generator

import msgspec
import pytest

from gateway.base.errors import Refused
from gateway.chat.request import Body, BodyRules, check, check_in_steps
from gateway.server.body import SMALL, LargeBodies
from tests.patience import wait_until

LARGE = msgspec.json.encode(
    {"model": "m", "stream": True, "messages": [{"role": "user", "content": "x" * 40}] * 10_000, "user": "x" * SMALL}
)
RULES = BodyRules()


async def test_the_event_loop_turns_between_the_parts_of_a_check() -> None:
    bodies, turned = LargeBodies(), 0
    checking = asyncio.create_task(bodies.check(check_in_steps(LARGE, RULES), "one"))
    while not checking.done():
        await asyncio.sleep(0)
        turned += 1
    assert await checking == check(LARGE, RULES)
    assert turned > 3


async def test_a_body_does_not_wait_for_all_those_of_another_account() -> None:
    done = list[str]()

    def parts(name: str) -> Generator[None, None, Body]:
        for _ in range(4):
            yield
        done.append(name)
        return check(LARGE, RULES)

    bodies = LargeBodies()
    first = [asyncio.create_task(bodies.check(parts("one"), "one")) for _ in range(5)]
    await asyncio.sleep(0)
    await bodies.check(parts("two"), "two")
    await asyncio.gather(*first)
    assert done.index("two") <= 1


async def test_a_checked_body_is_freed_without_the_garbage_collector() -> None:
    def bodies() -> int:
        return sum(isinstance(each, Body) for each in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = bodies()
        await LargeBodies().check(check_in_steps(LARGE, RULES), "one")
        await asyncio.sleep(0)  # the event loop holds the result until the turn that brought it is over
        assert bodies() == before
    finally:
        gc.enable()


async def test_a_refused_body_lets_the_next_one_be_checked() -> None:
    bodies = LargeBodies()
    with pytest.raises(Refused):
        await bodies.check(check_in_steps(b"[" * SMALL, RULES), "one")
    assert (await bodies.check(check_in_steps(LARGE, RULES), "one")).model == "m"


async def test_the_check_of_a_caller_that_left_is_given_up() -> None:
    parts = [0]

    def endless() -> Generator[None, None, Body]:
        while True:
            parts[0] += 1
            yield

    bodies = LargeBodies()
    checking = asyncio.create_task(bodies.check(endless(), "one"))
    await wait_until(lambda: parts[0] > 2)
    checking.cancel()
    await wait_until(lambda: not bodies._turns.waiting)
