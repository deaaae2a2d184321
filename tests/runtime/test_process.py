"""A process runs until SIGTERM, or until what it runs returns or fails."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import uvloop
from structlog.testing import capture_logs

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


@pytest.mark.parametrize("new_loop", [None, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_task_or_a_callback_that_exits_ends_nothing_else(
    new_loop: Callable[[], asyncio.AbstractEventLoop] | None,
) -> None:
    ended = []

    async def leave() -> None:
        await asyncio.sleep(0)
        sys.exit(3)

    async def work(number: int) -> None:
        for _ in range(5):
            await asyncio.sleep(0.001)
        ended.append(number)

    async def serve(stop: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        leaving = [loop.create_task(leave()) for _ in range(3)]
        working = [loop.create_task(work(number)) for number in range(10)]
        loop.call_soon(sys.exit, 3)
        loop.call_later(0.002, sys.exit, 3)
        await asyncio.wait(working)
        assert all(isinstance(task.exception(), SystemExit) for task in leaving)
        await asyncio.to_thread(ended.sort)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(stop.wait(), PATIENCE_S)

    with capture_logs() as lines:
        run_until_terminated(serve, new_loop)
    assert ended == list(range(10))
    assert {line["event"] for line in lines} == {"task_exited"}


def test_what_is_served_may_exit_itself() -> None:
    async def serve(stop: asyncio.Event) -> None:
        sys.exit(3)

    with pytest.raises(SystemExit):
        run_until_terminated(serve)


FREED = """
import asyncio, sys
from gateway.runtime import process

MIB = 1024 * 1024

def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 // MIB

async def serve(stop):
    bytearray(8 * MIB)  # by itself, glibc takes no mapping for so much any more once it was freed
    before = resident()
    kept = []
    for _ in range(16):
        large = bytearray(8 * MIB)
        kept.append([large, bytearray(100_000)])
    for pair in kept:
        pair[0] = None
    print(resident() - before)

process.run_until_terminated(serve)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_the_memory_of_large_bodies_is_given_back_at_once() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    command = [sys.executable, "-c", FREED]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert int(run.stdout) < 16
