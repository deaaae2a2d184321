"""Completeness of answers from the usage log: how late its home is, and which gateways may have records that are not in it.

The sink of each gateway keeps both in the folder of its gateway, so that a list says what it may lack without asking the store:

1. **`reader.time` was changed when the home last had all that was in the stream by then**, whatever the reason where it is late: a
   sink hangs or has ended, the store or the database is away, the disk is full.
2. **`sink.lock` is changed at each turn of the sink**, also of one that fails. The parent process watches it.
3. **`away.json` has the gateways that may have records in their spools**: not heard of, with files to write, or forgotten.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final

import msgspec

from gateway.base import durable
from gateway.base.ids import LAST_MS, utc
from gateway.base.log import log
from gateway.usage.home import Home
from gateway.usage.stream import short

AWAY: Final = "away.json"
READ: Final = "reader.time"
LOCK: Final = "sink.lock"
PRESENT_MS: Final = 60_000
"""A gateway that was not heard of for longer does not count as present."""
SKEW_MS: Final = 60_000
"""How much the clocks of the gateways and of the store may differ."""
DAY_MS: Final = 86_400_000
LONGEST_MS: Final = DAY_MS
"""No request takes longer to end."""
SETTLED_MS: Final = 10_000
"""After its arrival, so long at most it takes until a request is in the stream, or in the spool of its gateway."""
LATE_MS: Final = 15_000
"""From how long ago on an answer has a note. A sink that runs is a second behind, and a few where it has much to read."""

LATE: Final = "they are not in the log yet"


class About(msgspec.Struct):
    """Self-description of a gateway, kept in the store. `listen`: its port for callers. `files`: those of records in its spool.

    `stopped`: it ended in order, with nothing left in its spool. `forgotten_ms`: when an operator said that it has gone, else 0.
    `whole`: it had the whole log until then, in files of its own. `settings`: digests of what it should have as the others do.
    """

    host: str = ""
    listen: str = ""
    files: int = 0
    stopped: bool = False
    forgotten_ms: int = 0
    whole: bool = False
    settings: dict[str, str] = {}


class KnownGateway(msgspec.Struct):
    """One gateway of the store. `heard_ms`: when it was last heard of."""

    installation: str
    about: About
    heard_ms: int
    now_ms: int = 0

    @property
    def name(self) -> str:
        """Its host, and the name that its records have."""
        return f"{self.about.host} ({short(self.installation)})"

    @property
    def present(self) -> bool:
        """Whether it was heard of just now."""
        ended = self.about.stopped or self.about.forgotten_ms
        return not ended and self.now_ms - self.heard_ms <= PRESENT_MS

    @property
    def heard(self) -> str:
        """When it was last heard of, in ISO 8601."""
        return utc(self.heard_ms)

    def differs(self, own: KnownGateway | None) -> list[str]:
        """The settings that are not those of another gateway; none of one that does not run, or does not say."""
        if own is None or not (self.present and self.about.settings and own.about.settings):
            return []
        theirs, ours = self.about.settings, own.about.settings
        return sorted(name for name in theirs.keys() | ours if theirs.get(name) != ours.get(name))

    @property
    def may_have_records(self) -> bool:
        """Whether it may have records in its spool that can still come."""
        about = self.about
        return bool(not about.forgotten_ms and (about.files or not (self.present or about.stopped)))

    @property
    def is_away(self) -> bool:
        """Whether it may have records which are nowhere else: not present, with files in the spool, or forgotten."""
        return bool(self.about.forgotten_ms or self.may_have_records)

    @property
    def between_ms(self) -> tuple[int, int]:
        """When a request arrived that it may have while it is away: with files to write, at any time before, too."""
        first_ms = 0 if self.about.files or self.about.whole else self.heard_ms - SETTLED_MS
        return first_ms, self.about.forgotten_ms or LAST_MS

    def may_have(self, since_ms: int | None, until_ms: int | None) -> bool:
        """Return whether it may have requests that arrived in this time, or their ends."""
        first_ms, last_ms = self.between_ms
        return _touches(first_ms, last_ms, since_ms, until_ms)

    def note(self, *, with_host: bool = True) -> str:
        """Return a sentence about it while it is away. Callers do not learn its host."""
        heard = f"gateway {self.name if with_host else short(self.installation)} was last heard of at {self.heard}"
        if self.about.forgotten_ms:
            what = "the log until then, which its disk had, is lost" if self.about.whole else "what it had then is lost"
            return f"{heard} and forgotten at {utc(self.about.forgotten_ms)}: {what}"
        return f"{heard}{held(self.about.files)}: requests of it may be missing here"


def notes(
    home: Home, since_ms: int | None = None, until_ms: int | None = None, *, with_hosts: bool = True
) -> list[str]:
    """Return a sentence for each reason why an answer about this time may lack requests. `until_ms` is exclusive. Blocks."""
    folder, found = home.folder, list[str]()
    late = late_since(folder)
    if late is not None and _touches(late, LAST_MS, since_ms, until_ms):
        found.append(f"requests that arrived or ended after {utc(late)} may be missing here: {LATE}")
    return found + [each.note(with_host=with_hosts) for each in load(folder) if each.may_have(since_ms, until_ms)]


def _touches(first_ms: int, last_ms: int, since_ms: int | None, until_ms: int | None) -> bool:
    """Return whether the records of requests of a time may have been written between two moments."""
    began = first_ms - SKEW_MS - LONGEST_MS
    return (until_ms is None or began <= until_ms) and (since_ms is None or since_ms <= last_ms + SKEW_MS)


def span_ms(first: date, last: date) -> tuple[int, int]:
    """Return the time from the begin of one day to the end of another one; UTC."""
    began, until = (round(datetime.combine(day, datetime.min.time(), UTC).timestamp() * 1000) for day in (first, last))
    return began, until + DAY_MS


def held(files: int) -> str:
    """Return the words for the files of a spool; empty where there were none."""
    return f", and had {files} files of records in its spool" if files else ""


def load(folder: Path) -> list[KnownGateway]:
    """Return the gateways that may have records. Blocks."""
    try:
        return msgspec.json.decode(durable.read(folder / AWAY), type=list[KnownGateway])
    except FileNotFoundError:
        return []
    except (OSError, msgspec.MsgspecError) as error:
        log.error("usage_away_damaged", file=str(folder / AWAY), reason=str(error))
        return []


def save(folder: Path, gateways: Iterable[KnownGateway]) -> None:
    """Keep those of these gateways that may have records. Blocks; raises `OSError`."""
    durable.make_folder(folder)
    durable.write(folder / AWAY, msgspec.json.encode([each for each in gateways if each.is_away]))


def has_all(folder: Path, at_s: float) -> None:
    """Note that the home has all that was in the stream at a time. Blocks; raises `OSError`."""
    path = folder / READ
    path.touch(mode=0o600)
    os.utime(path, (at_s, at_s))


def ended(folder: Path) -> None:
    """Note that this gateway adds nothing more. Blocks; raises `OSError`."""
    (folder / READ).unlink(missing_ok=True)


def late_since(folder: Path) -> int | None:
    """Return since when (ms) requests may be missing in the home; None where it is up to date. Blocks."""
    at = changed_ms(folder / READ)
    return None if at is None or time.time() * 1000 - at < LATE_MS else round(at)


def turn(folder: Path) -> None:
    """Note that the sink takes a turn."""
    with contextlib.suppress(OSError):
        os.utime(folder / LOCK)


def changed_ms(path: Path) -> float | None:
    """Return when a file was last changed; None where there is none."""
    try:
        return path.stat().st_mtime_ns / 1e6
    except OSError:
        return None
