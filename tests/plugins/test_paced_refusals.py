"""Refusals of one caller are answered at a bounded rate, within a bounded time, in bounded memory."""

from __future__ import annotations

import asyncio

import pytest

from plugins import pacing
from plugins.pacing import PacedRefusals
from tests.patience import PATIENCE_S


def is_delayed(refusals: PacedRefusals, caller: str) -> bool:
    """Return whether a refusal of the caller waits."""
    waiting = refusals.wait(caller)
    try:
        waiting.send(None)
    except StopIteration:
        return False
    waiting.close()
    return True


async def test_refusals_beyond_a_number_a_second_wait_and_those_of_others_do_not() -> None:
    refusals = PacedRefusals()
    delayed = [is_delayed(refusals, "alice") for _ in range(40)]
    assert delayed[: pacing.REFUSALS_PER_S] == [False] * pacing.REFUSALS_PER_S
    assert all(delayed[-10:])
    assert not is_delayed(refusals, "bob")


async def test_no_refusal_waits_for_long() -> None:
    refusals = PacedRefusals()
    for _ in range(10_000):
        is_delayed(refusals, "alice")
    async with asyncio.timeout(PATIENCE_S):
        await refusals.wait("alice")


async def test_only_so_many_refusals_wait_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing, "MAX_DELAYED", 2)
    refusals = PacedRefusals()
    waiting = [asyncio.create_task(refusals.wait("alice")) for _ in range(30)]
    await asyncio.sleep(0)
    assert sum(not task.done() for task in waiting) == 2
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    assert not is_delayed(refusals, "bob")
