"""The event loop of a process that runs until SIGTERM."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any


def run_until_terminated(
    serve: Callable[[asyncio.Event], Coroutine[Any, Any, None]],
    run: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run,
) -> None:
    """Run `serve(stop)` on an event loop of its own and return when it returns; SIGTERM sets `stop`.

    `run` starts the event loop: `asyncio.run`, or another function with its signature.
    """

    async def main() -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        await serve(stop)

    run(main())
