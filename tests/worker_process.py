"""One worker in a process of its own, for tests that kill it: `python -m tests.worker_process FILE PORT`.

With the variable `TELL_PLANS` it prints a line for each request that a plan begins to serve.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Any

from gateway.chain.request_hooks import RequestHooks
from gateway.config.schema import load
from gateway.runtime import logs, worker
from gateway.runtime.process import run_until_terminated


def tell_plans() -> None:
    """Print a line before each request that a plan serves."""
    run = RequestHooks.run_plan

    async def telling(hooks: RequestHooks, *given: Any) -> int:
        print("plan", flush=True)
        return await run(hooks, *given)

    RequestHooks.run_plan = telling  # type: ignore[assignment, method-assign]


if __name__ == "__main__":
    if "TELL_PLANS" in os.environ:
        tell_plans()
    logs.configure()
    loaded = load(Path(sys.argv[1]))
    listener = socket.create_server(("127.0.0.1", int(sys.argv[2])), backlog=1024)
    listener.setblocking(False)
    run_until_terminated(
        lambda stop: worker.serve(loaded, loaded.config.redis, listener, lambda: print("ready", flush=True), stop),
        worker.new_loop(),
    )
