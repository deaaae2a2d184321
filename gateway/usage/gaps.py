"""What a gateway does not have of the usage log: the times at which others removed entries that it had not read.

A gateway that was away for longer than the stream is kept knows from when to when entries are missing, keeps that on its
disk, and names it in every answer that it may change.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from gateway import durable
from gateway.log import Logger
from gateway.request_id import LAST_MS, utc
from gateway.usage import lag
from gateway.usage.away import Away

FILE: Final = "reader.json"
MAX_GAPS: Final = 50
SKEW_MS: Final = 60_000
"""How much the clocks of the gateways and of the store may differ."""
DAY_MS: Final = 86_400_000
LONGEST_MS: Final = DAY_MS
"""A request that arrived longer before a gap has ended before it."""

LATE: Final = "the sink of this gateway has not read the log since then"

log = Logger("gateway.usage.gaps")


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
    """What a gateway's folder says about its reading of the stream.

    `position`: the id up to which the stream was read, or a little before; empty before the first time. `earlier`: gateways of
    the store that still had a stream of their own when last looked, as an earlier version has. `away`: what other gateways may
    not have handed over, when last looked.
    """

    position: str = ""
    gaps: list[Gap] = []
    earlier: list[str] = []
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
    """Return what a folder says; of a damaged file, that everything so far may be missing. Blocks."""
    try:
        return msgspec.json.decode(durable.read(folder / FILE), type=Reading)
    except FileNotFoundError:
        return Reading()
    except (OSError, msgspec.MsgspecError) as error:
        log.error("usage_reader_damaged", file=str(folder / FILE), reason=str(error))
        return Reading(gaps=[Gap(0, round(time.time() * 1000))])


def save(folder: Path, reading: Reading) -> None:
    """Write what a folder says. Blocks; raises `OSError`."""
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
    if reading.earlier:
        found.append(f"requests of {len(reading.earlier)} gateways of an earlier version are in their own usage logs")
    late = lag.late_since(folder)
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
