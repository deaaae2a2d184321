"""The watch on a sink that takes no turn: it is logged, and in the end killed, so that the supervisor starts another one."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gateway.log import Logger
from gateway.usage import lag

HANGS_S: Final = 60.0
"""No turn takes as long, unless the sink is stopped or the disk does not answer."""
KILL_S: Final = 300.0
LONGEST_TICK_S: Final = 1.0
"""More is not counted: the machine, or this process too, was stopped meanwhile."""

log = Logger("gateway.runtime.sink_watch")


class SinkWatch:
    """Watches the sink of the usage log in `folder`. `kill` ends it."""

    def __init__(self, folder: Path, kill: Callable[[], None]) -> None:
        self._folder = folder
        self._kill = kill
        self._turn: float | None = None
        self._looked = time.monotonic()
        self._silent_s = 0.0
        self._reported = False

    def look(self) -> None:
        """Compare the sink's last turn with the one that was seen before. To be called a few times a second."""
        now = time.monotonic()
        self._silent_s += min(now - self._looked, LONGEST_TICK_S)
        self._looked = now
        turn = lag.last_turn(self._folder)
        if turn != self._turn:
            if self._reported:
                log.warning("sink_goes_on")
            self._turn, self._silent_s, self._reported = turn, 0.0, False
        elif self._silent_s >= KILL_S:
            log.error("sink_killed", silent_s=round(self._silent_s))
            self._kill()
            self._silent_s, self._reported = 0.0, False
        elif self._silent_s >= HANGS_S and not self._reported:
            self._reported = True
            log.error("sink_hangs", silent_s=round(self._silent_s), killed_after_s=round(KILL_S))
