"""A process runs until SIGTERM, or until what it runs returns or fails."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from gateway.runtime.process import run_until_terminated
from tests.patience import PATIENCE_S


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    """Restore the handler of SIGTERM after each test."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_sigterm_sets_stop_and_what_follows_still_runs() -> None:
    ended = []

    async def serve(stop: asyncio.Event) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(stop.wait(), PATIENCE_S)
        await asyncio.sleep(0.01)
        ended.append(True)

    run_until_terminated(serve)
    assert ended == [True]


def test_an_error_is_raised() -> None:
    async def serve(stop: asyncio.Event) -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        run_until_terminated(serve)
