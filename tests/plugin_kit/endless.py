"""Plugins that would keep the process of their check from ending, or end it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time

from gateway import Exchange, Plugin, Services


def for_ever() -> None:
    while True:
        time.sleep(60)


class BlocksInStart(Plugin):
    """Blocks the event loop in `start`."""

    async def start(self, services: Services) -> None:
        for_ever()


class LeavesAThread(Plugin):
    """Starts a thread that Python waits for."""

    async def start(self, services: Services) -> None:
        threading.Thread(target=for_ever).start()


class LeavesAWorker(Plugin):
    """Starts what asyncio waits for."""

    async def start(self, services: Services) -> None:
        asyncio.get_running_loop().run_in_executor(None, for_ever)


class LeavesAProcess(Plugin):
    """Starts a process, and prints its id."""

    async def start(self, services: Services) -> None:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", "import time; time.sleep(600)")
        raise RuntimeError(f"process {process.pid} runs")


class ExitsAtOnce(Plugin):
    """Ends the process without a word."""

    async def on_request(self, exchange: Exchange) -> None:
        os._exit(0)


class Crashes(Plugin):
    """Crashes."""

    async def on_request(self, exchange: Exchange) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class InterruptsItself(Plugin):
    """Sends its process what Ctrl-C sends."""

    async def on_request(self, exchange: Exchange) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(60)


class ExitsInATask(Plugin):
    """Starts a task that ends the event loop."""

    async def on_request(self, exchange: Exchange) -> None:
        self._task = asyncio.create_task(leave())
        await asyncio.sleep(60)


async def leave() -> None:
    sys.exit(3)


class CancelsAll(Plugin):
    """Cancels every task that there is."""

    async def on_request(self, exchange: Exchange) -> None:
        for task in asyncio.all_tasks():
            task.cancel()


class SaysWhatIsNoText(Plugin):
    """Raises an error whose text cannot be encoded."""

    async def start(self, services: Services) -> None:
        raise RuntimeError("\ud800")
