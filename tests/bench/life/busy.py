"""How busy the machine is: the seconds in which the gateway, or this process with its upstreams, did not get the CPU."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from tests.bench.life.seen import Timeline
from tests.bench.life.site import Site
from tests.cli.processes import kept_waiting_s

BUSY: Final = "busy machine"
TICK_S: Final = 0.05
LATE_S: Final = 0.25
"""A timer of a second, the shortest of an upstream's channel, may then be over through no fault of anything under test."""
LOOK_S: Final = 1.0


async def note_busy_times(timeline: Timeline, site: Site) -> None:
    """Note the times in which the machine was too busy for timers to mean anything, until cancelled."""
    waited_s, looked_at = _waited_s(site), time.monotonic()
    while True:
        before = time.monotonic()
        await asyncio.sleep(TICK_S)
        now = time.monotonic()
        if now - before - TICK_S > LATE_S:
            timeline.note(BUSY, now - before, f"this process was {now - before - TICK_S:.2f} s late")
        if now - looked_at > LOOK_S:
            more_s = _waited_s(site) - waited_s
            if more_s > LATE_S * (now - looked_at):
                timeline.note(BUSY, now - looked_at, f"the gateway waited {more_s:.2f} s for a CPU")
            waited_s, looked_at = waited_s + more_s, now


def _waited_s(site: Site) -> float:
    return kept_waiting_s(site.pid) if site.running else 0.0
