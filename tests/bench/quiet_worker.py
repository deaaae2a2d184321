"""A worker that does little but serve requests: `python -m tests.bench.quiet_worker FILE PORT`.

From SIGUSR2 on, its timers take a thousand times as long. What it does once a second would else be a part of what is counted,
and a larger part on a slower machine. So does the turn in which a connection is parsed: under valgrind a head takes longer than
a turn, and its body would wait for another one, which it does not do at the speed of a processor. Paces, too, are learned a
thousand times more seldom.
"""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import uvloop

from gateway.chat import usage
from gateway.config.schema import load
from gateway.proxy import scheduler
from gateway.runtime import logs, worker
from gateway.runtime.handover import Handover
from gateway.runtime.process import run_until_terminated
from gateway.server import protocol

otel: ModuleType | None
try:
    from plugins import otel
except ImportError:  # an earlier commit, which is compared, has none
    otel = None

SLOWED = 1000


class Loop(uvloop.Loop):
    """uvloop's event loop with slow timers. `call_at` calls `call_later`."""

    slowed = 1

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> Any:
        return super().call_later(delay * Loop.slowed, callback, *args, context=context)


def slow_down(*_: object) -> None:
    Loop.slowed = SLOWED
    for names in (vars(protocol), vars(scheduler)):
        names["TURN_S"] = SLOWED * names.get("TURN_S", 0.0)  # an earlier commit, which is compared, has none
    vars(usage)["LEARN_EVERY_S"] = SLOWED * 5.0
    if otel is not None:
        vars(otel)["EVERY_MS"] = SLOWED * 1000  # batches are sent when they are full, however slow the requests are


def main() -> None:
    """Serve until a signal ends the process."""
    logs.configure()
    uvloop.new_event_loop = Loop
    signal.signal(signal.SIGUSR2, slow_down)
    loaded = load(Path(sys.argv[1]))
    listener = socket.create_server(("127.0.0.1", int(sys.argv[2])), backlog=1024)
    listener.setblocking(False)
    ready = partial(print, "ready", flush=True)
    run_until_terminated(
        lambda stop: worker.serve(loaded, loaded.config.redis, listener, ready, stop, Handover(workers=1)),
        worker.new_loop(),
    )


if __name__ == "__main__":
    main()
