"""One worker in a process of its own, for tests that kill it: `python -m tests.worker_process FILE PORT`."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

from gateway.config.schema import load
from gateway.runtime import logs, worker
from gateway.runtime.process import run_until_terminated

if __name__ == "__main__":
    logs.configure()
    loaded = load(Path(sys.argv[1]))
    listener = socket.create_server(("127.0.0.1", int(sys.argv[2])), backlog=1024)
    listener.setblocking(False)
    run_until_terminated(
        lambda stop: worker.serve(loaded, loaded.config.redis, listener, lambda: print("ready", flush=True), stop),
        worker.new_loop(),
    )
