"""Gaps of a gateway's usage log: times at which others removed entries that it had not read, and how late its files are.

A gateway that was away for longer than the stream is kept knows from when to when entries are missing, keeps that on its disk,
and names it in every answer that it may change. Beside the gaps the sink keeps which other gateways may have requests that they
have not handed over (`Away`), so that a list says what it may lack without asking the store.

How far the files are behind the store's log, and whether the sink still runs, is in the times of two empty files:

1. **`reader.time` was changed when the sink last had all in its files that the stream had by then.** So a list knows without
   asking the store what it may lack, whatever the reason: the sink hangs or has ended, the store is away, the disk is full.
2. **`sink.lock` is changed at each turn of the sink**, also of one that fails. The parent process watches it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from gateway.base import durable
from gateway.base.ids import LAST_MS, utc
from gateway.base.log import log

FILE: Final = "reader.json"
MAX_GAPS: Final = 50
SKEW_MS: Final = 60_000
"""How much the clocks of the gateways and of the store may differ."""
DAY_MS: Final = 86_400_000
LONGEST_MS: Final = DAY_MS
"""A request that arrived longer before a gap has ended before it."""

LATE: Final = "the sink of this gateway has not read the log since then"

SETTLED_MS: Final = 10_000
"""After its arrival, so long at most it takes until a request is in the stream, or in the spool of its gateway."""

READ: Final = "reader.time"
LOCK: Final = "sink.lock"
LATE_MS: Final = 15_000
"""From how long ago on an answer has a note. A sink that runs is a second behind, and a few where it has much to read."""


class Gap(msgspec.Struct, frozen=True, array_like=True):
    """Entries that were written to the stream between two times (ms) are missing. `first_ms` is 0 for all before."""

    first_ms: int
    last_ms: int

    def may_have(self, arrived_ms: int) -> bool:
        """Return whether the arrival of a request may be missing."""
        return self.first_ms - SKEW_MS <= arrived_ms <= self.last_ms + SKEW_MS

    def touches(self, since_ms: int | None, until_ms: int | None) -> bool:
        """Return whether requests that arrived in this time, or their ends, may be missing."""
        began = self.first_ms - SKEW_MS - LONGEST_MS
        return (until_ms is None or began <= until_ms) and (since_ms is None or since_ms <= self.last_ms + SKEW_MS)

    def __str__(self) -> str:
        until = utc(self.last_ms)
        return f"between {utc(self.first_ms)} and {until}" if self.first_ms else f"before {until}"


class Reading(msgspec.Struct):
    """State of a gateway's reading of the stream, as its folder has it.

    `position`: the id up to which the stream was read, or a little before; empty before the first time. `away`: what
    other gateways may not have handed over, when last looked.
    """

    position: str = ""
    gaps: list[Gap] = []
    away: list[Away] = []

    def add(self, gap: Gap) -> None:
        """Add a gap, and join those that overlap."""
        self.gaps = merged([*self.gaps, gap])


def merged(gaps: Iterable[Gap]) -> list[Gap]:
    """Return gaps in their order, with those that overlap as one; of too many, the oldest ones as one."""
    joined: list[Gap] = []
    for gap in sorted(gaps, key=lambda gap: gap.first_ms):
        if joined and gap.first_ms <= joined[-1].last_ms:
            joined[-1] = Gap(joined[-1].first_ms, max(joined[-1].last_ms, gap.last_ms))
        else:
            joined.append(gap)
    while len(joined) > MAX_GAPS:
        joined[:2] = [Gap(joined[0].first_ms, joined[1].last_ms)]
    return joined


def load(folder: Path) -> Reading:
    """Return the state in a folder; for a damaged file, a gap from the beginning until now. Blocks."""
    try:
        return msgspec.json.decode(durable.read(folder / FILE), type=Reading)
    except FileNotFoundError:
        return Reading()
    except (OSError, msgspec.MsgspecError) as error:
        log.error("usage_reader_damaged", file=str(folder / FILE), reason=str(error))
        return Reading(gaps=[Gap(0, round(time.time() * 1000))])


def save(folder: Path, reading: Reading) -> None:
    """Write the state to a folder. Blocks; raises `OSError`."""
    durable.make_folder(folder)
    durable.write(folder / FILE, msgspec.json.encode(reading))


def notes(
    folder: Path, since_ms: int | None = None, until_ms: int | None = None, *, with_hosts: bool = True
) -> list[str]:
    """Return a sentence for each reason why an answer about this time may lack requests. `until_ms` is exclusive. Blocks."""
    reading = load(folder)
    found = [
        f"requests that arrived or ended {gap} may be missing here: this gateway does not have the log of that time"
        for gap in reading.gaps
        if gap.touches(since_ms, until_ms)
    ]
    late = late_since(folder)
    if late is not None and Gap(late, LAST_MS).touches(since_ms, until_ms):
        found.append(f"requests that arrived or ended after {utc(late)} may be missing here: {LATE}")
    away = (each for each in reading.away if Gap(*each.between_ms).touches(since_ms, until_ms))
    return found + [each.note(with_host=with_hosts) for each in away]


def span_ms(first: str | None, last: str | None) -> tuple[int | None, int | None]:
    """Return the time from the begin of one day to the end of another one, such as `2026-11-21`; UTC."""
    until = _day_ms(last)
    return _day_ms(first), None if until is None else until + DAY_MS


def ms_of(entry: str) -> int:
    """Return when an entry of the stream was written, from its id."""
    return int(entry.partition("-")[0])


def is_before(one: str, other: str) -> bool:
    """Return whether an entry of the stream is older than another one."""
    return _number(one) < _number(other)


def _number(entry: str) -> tuple[int, int]:
    ms, _, number = entry.partition("-")
    return int(ms), int(number)


def _day_ms(day: str | None) -> int | None:
    return None if day is None else round(datetime.fromisoformat(f"{day}T00:00:00+00:00").timestamp() * 1000)


class Away(msgspec.Struct, frozen=True, array_like=True):
    """A gateway that may have records which are nowhere else. `name`: as in its records. `files`: those not handed over yet.

    `forgotten_ms`: when an operator said that it has gone, else 0.
    """

    name: str
    host: str
    heard_ms: int
    files: int = 0
    forgotten_ms: int = 0

    @property
    def between_ms(self) -> tuple[int, int]:
        """When a request arrived that it may have: with files to hand over, at any time before, too."""
        return 0 if self.files else self.heard_ms - SETTLED_MS, self.forgotten_ms or LAST_MS

    def note(self, *, with_host: bool = True) -> str:
        """Return a sentence that names it. Callers do not learn its host."""
        name = f"{self.host} ({self.name})" if with_host else self.name
        heard = f"gateway {name} was last heard of at {utc(self.heard_ms)}"
        if self.forgotten_ms:
            return f"{heard} and forgotten at {utc(self.forgotten_ms)}: what it had then is lost"
        return f"{heard}{held(self.files)}: requests of it may be missing here"


def held(files: int) -> str:
    """Return the words for files that a gateway had to hand over; empty where there were none."""
    return f", and had {files} files to hand over" if files else ""


def has_read(folder: Path, at_s: float) -> None:
    """Note that all is in the files that the stream had at a time. Blocks; raises `OSError`."""
    path = folder / READ
    path.touch(mode=0o600)
    os.utime(path, (at_s, at_s))


def ended(folder: Path) -> None:
    """Note that nothing more comes: no gateway is left that could write to the stream. Blocks; raises `OSError`."""
    (folder / READ).unlink(missing_ok=True)


def late_since(folder: Path) -> int | None:
    """Return since when (ms) requests may be missing in the files; None where they are up to date. Blocks."""
    at = _changed(folder / READ)
    return None if at is None or time.time() * 1000 - at < LATE_MS else round(at)


def turn(folder: Path) -> None:
    """Note that the sink takes a turn."""
    with contextlib.suppress(OSError):
        os.utime(folder / LOCK)


def last_turn(folder: Path) -> float | None:
    """Return when the sink last took a turn; None where it never did."""
    return _changed(folder / LOCK)


def _changed(path: Path) -> float | None:
    try:
        return path.stat().st_mtime_ns / 1e6
    except OSError:
        return None
