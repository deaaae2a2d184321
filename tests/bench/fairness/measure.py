"""Measure one row: short quiet and hostile phases in turn, so that the noise of the machine is the same in both."""

from __future__ import annotations

import asyncio
import json
import math
import statistics
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from gateway.usage.stream import STREAM
from tests.bench.fairness.honest import TIMEOUT_S, Served
from tests.bench.fairness.stage import Stage, honest, hostile

SAMPLE_S: Final = 0.1
SETTLE_S: Final = 8.0
"""How long the gateway may take after a hostile phase until it serves the second caller again."""
SETTLED: Final = 5
"""Requests of the second caller in a row that are served before the next quiet phase begins."""


class Phase(msgspec.Struct):
    """What the second caller saw in the phases of one kind."""

    served: int = 0
    refused: int = 0
    p50_ms: float = 0.0
    p99_ms: float = 0.0


class Taken(msgspec.Struct):
    """What the first caller did and took at most. `tally`: how its requests ended."""

    answers_per_s: float = 0.0
    disk_kib_per_s: float = 0.0
    memory_mib: float = 0.0
    stream_entries: int = 0
    log_lines_per_s: float = 0.0
    tally: dict[str, int] = {}


class Measured(msgspec.Struct):
    """A row of the table. The ratios are medians over the rounds, of the hostile phase to the quiet one before it."""

    name: str
    shared: str
    quiet: Phase
    beside: Phase
    ratio_p50: float
    ratio_p99: float
    said: dict[str, int]
    taken: Taken


class Watch:
    """What the second caller has reported so far."""

    def __init__(self, stage: Stage, caller: asyncio.subprocess.Process) -> None:
        self.stage = stage
        self.seen: list[Served] = []
        self.memory_mib = 0.0
        self.entries = 0
        self._caller = caller
        self.changed = asyncio.Event()

    async def read(self) -> None:
        """Read the reports until the second caller ends."""
        assert self._caller.stdout is not None
        while line := await self._caller.stdout.readline():
            self.seen.append(msgspec.json.decode(line, type=Served))
            self.changed.set()
        raise RuntimeError("the second caller has ended")

    async def sample(self) -> None:
        """Read the memory of the worker and the length of the usage log's stream until cancelled."""
        store = self.stage.store
        while True:
            with suppress(Exception):  # also a store that does not answer in time
                self.entries = max(self.entries, int(await store.call("XLEN", STREAM)))
            self.memory_mib = max(self.memory_mib, memory_mib(self.stage.pid))
            await asyncio.sleep(SAMPLE_S)

    def between(self, began: float, ended: float) -> list[Served]:
        """Return the requests that began in this time."""
        return [each for each in self.seen if began <= each.began_s < ended]

    async def settle(self) -> None:
        """Wait until the second caller is served again, for a few seconds at most."""
        began = time.monotonic()
        while time.monotonic() < began + SETTLE_S:
            last = self.between(began, math.inf)[-SETTLED:]
            if len(last) == SETTLED and all(each.whole for each in last):
                return
            self.changed.clear()
            await asyncio.wait([asyncio.create_task(self.changed.wait())], timeout=0.2)

    async def ended(self, until: float) -> None:
        """Wait until the requests that began before `until` have ended: for as long as a request may take."""
        await asyncio.sleep(0.05)
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            if sum(each.began_s >= until for each in self.seen) >= SETTLED:
                return
            await asyncio.sleep(0.02)


async def measure(stage: Stage, *, rounds: int, phase_s: float, quiet_s: float | None = None) -> Measured:
    """Return what the second caller noticed of the first, and what the first took.

    A quiet phase takes as long as a hostile one, or `quiet_s`.
    """
    taken, tally = Taken(), Counter[str]()
    quiet: list[list[Served]] = []
    beside: list[list[Served]] = []
    hostile_s = 0.0
    async with honest(stage) as second, hostile(stage) as first:
        assert first.stdin is not None and first.stdout is not None
        watch = Watch(stage, second)
        background = [asyncio.create_task(watch.read()), asyncio.create_task(watch.sample())]
        try:
            await watch.settle()
            base_mib = memory_mib(stage.pid)
            for number in range(rounds):
                if number:
                    await watch.settle()
                began = time.monotonic()
                await asyncio.sleep(phase_s if quiet_s is None else quiet_s)
                middle = time.monotonic()
                disk, lines = disk_bytes(stage.folder), log_lines(stage.log)
                first.stdin.write(b"go\n")
                await asyncio.sleep(phase_s)
                ended = time.monotonic()
                first.stdin.write(b"stop\n")
                tally.update(json.loads(await asyncio.wait_for(first.stdout.readline(), 60)))
                hostile_s += ended - middle
                taken.disk_kib_per_s += (disk_bytes(stage.folder) - disk) / 1024
                taken.log_lines_per_s += log_lines(stage.log) - lines
                await watch.ended(ended)
                quiet.append(watch.between(began, middle))
                beside.append(watch.between(middle, ended))
        finally:
            for task in background:
                task.cancel()
            await asyncio.wait(background)
    taken.disk_kib_per_s /= hostile_s
    taken.log_lines_per_s /= hostile_s
    taken.answers_per_s = sum(tally.values()) / hostile_s
    taken.memory_mib = max(0.0, watch.memory_mib - base_mib)
    taken.stream_entries = watch.entries
    taken.tally = dict(tally.most_common())
    pairs = [(phase(before), phase(during)) for before, during in zip(quiet, beside, strict=True) if before and during]
    refusals = Counter(f"{each.status} {each.said[:300]}" for during in beside for each in during if not each.whole)
    return Measured(
        stage.row.name,
        stage.row.shared,
        phase([each for before in quiet for each in before]),
        phase([each for during in beside for each in during]),
        statistics.median([during.p50_ms / before.p50_ms for before, during in pairs] or [math.nan]),
        statistics.median([during.p99_ms / before.p99_ms for before, during in pairs] or [math.nan]),
        dict(refusals.most_common(3)),
        taken,
    )


def phase(requests: list[Served]) -> Phase:
    """Return the figures of some requests. A refused one has no first event, so only the served ones are timed."""
    times = sorted(each.first_ms for each in requests if each.whole) or [TIMEOUT_S * 1000]
    served = sum(each.whole for each in requests)
    p99_ms = times[max(0, math.ceil(0.99 * len(times)) - 1)]
    return Phase(served, len(requests) - served, statistics.median(times), p99_ms)


def memory_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0]) / 1024
    return 0.0


def disk_bytes(folder: Path) -> int:
    """Return the size of all files in a folder."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            total += path.stat().st_size
    return total


def log_lines(path: Path) -> int:
    """Return the number of lines in a file."""
    return path.read_bytes().count(b"\n")
