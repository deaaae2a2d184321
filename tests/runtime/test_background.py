"""A background task has ended after the exit of its context, also one that swallows cancellations or fails."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from gateway.runtime import process
from gateway.runtime.process import BackgroundTask
from tests.patience import PATIENCE_S


class Waits(BackgroundTask):
    """Waits for ever, and swallows the first `swallows` cancellations."""

    def __init__(self, swallows: int = 0) -> None:
        self.swallows = swallows
        self.ended = False

    async def _run(self) -> None:
        try:
            for _ in range(self.swallows):
                with suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()
            await asyncio.Event().wait()
        finally:
            self.ended = True


class Fails(BackgroundTask):
    """Raises at once."""

    async def _run(self) -> None:
        raise ValueError("broken")


@pytest.mark.parametrize("swallows", [0, 2])
async def test_it_has_ended_after_the_exit(swallows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "CANCEL_INTERVAL_S", 0.01)
    before = asyncio.all_tasks()
    async with asyncio.timeout(PATIENCE_S):
        async with Waits(swallows) as waits:
            await asyncio.sleep(0)
            assert not waits.ended
    assert waits.ended
    assert asyncio.all_tasks() == before


async def test_the_exit_raises_what_it_raised() -> None:
    with pytest.raises(ValueError, match="broken"):
        async with Fails():
            await asyncio.sleep(0)
