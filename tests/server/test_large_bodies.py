"""Several large bodies at once: other work is done between their checks, for as long as the checks take."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise

import msgspec
import pytest

from gateway.chat.request import Body, BodyRules
from gateway.errors import Refused
from gateway.server import large_bodies
from gateway.server.large_bodies import SMALL, LargeBodies

LARGE = msgspec.json.encode(
    {"model": "m", "stream": True, "messages": [{"role": "user", "content": "x" * 40}] * 10_000, "user": "x" * SMALL}
)


async def ticks(seen: list[int]) -> None:
    """Count the turns of the event loop."""
    while True:
        await asyncio.sleep(0)
        seen[0] += 1


async def test_the_event_loop_turns_between_two_checks() -> None:
    bodies, seen, at = LargeBodies(), [0], []

    async def check() -> Body:
        body = await bodies.check(LARGE, BodyRules())
        at.append(seen[0])
        return body

    ticking = asyncio.create_task(ticks(seen))
    checked = await asyncio.gather(*(check() for _ in range(4)))
    ticking.cancel()
    assert [body.messages for body in checked] == [10_000] * 4
    assert all(later - earlier > 2 for earlier, later in pairwise(at))


async def test_other_work_gets_as_long_as_the_checks_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check is replaced by one that takes a known time, so that the sum does not depend on the machine."""
    monkeypatch.setattr(large_bodies, "check", lambda raw, rules: time.sleep(0.05))
    bodies, began = LargeBodies(), time.monotonic()
    await asyncio.gather(*(bodies.check(LARGE, BodyRules()) for _ in range(4)))
    assert time.monotonic() - began >= 4 * 0.05 + 3 * 0.05


async def test_a_refused_body_lets_the_next_one_be_checked() -> None:
    bodies = LargeBodies()
    with pytest.raises(Refused):
        await bodies.check(b"[" * SMALL, BodyRules())
    assert (await bodies.check(LARGE, BodyRules())).model == "m"
