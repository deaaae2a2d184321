"""One worker in a process of its own, for tests that kill it: `python -m tests.worker_process FILE PORT`."""

from __future__ import annotations

import socket
import sys
from functools import partial
from pathlib import Path

from gateway import Body, Exchange, Plan, PlanPart, Plugin, Reply
from gateway.config.schema import load
from gateway.runtime import logs, worker
from gateway.runtime.handover import Handover
from gateway.runtime.process import run_until_terminated


class Told(Plugin):
    """Writes the id of each request that goes by a plan to stderr: `fill` before a part could decline, then `plan`."""

    async def on_request(self, exchange: Exchange) -> Reply | None:
        return None

    def prepare(self, plan: Plan) -> PlanPart:
        return ToldPart()


class ToldPart(PlanPart):
    def fill(self, exchange: Exchange, body: Body) -> tuple[()]:
        print("fill", exchange.id, file=sys.stderr, flush=True)
        return ()

    def begin(self, exchange: Exchange) -> None:
        print("plan", exchange.id, file=sys.stderr, flush=True)


if __name__ == "__main__":
    logs.configure()
    loaded = load(Path(sys.argv[1]))
    listener = socket.create_server(("127.0.0.1", int(sys.argv[2])), backlog=1024)
    listener.setblocking(False)
    served = partial(worker.serve, loaded, loaded.config.redis, listener, lambda: print("ready", flush=True))
    run_until_terminated(lambda stop: served(stop, Handover(1)), worker.new_loop())
