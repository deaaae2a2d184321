"""The usage log's database: SQLite files, one for each month, with a row for each request and sums by day.

1. **A row is one request, however often and in whatever order its arrival and its end are written.** An end closes a row
   once; only the presumed end (`gateway_crashed`) is replaced by an actual end that comes late.
2. **The sums by day always equal the sum of the closed rows.** `writing` changes both in one transaction.
3. **Each closing of a row has a place** in the table `ends`, in the order in which the ends became known, so that a reader
   can continue where it stopped.
4. **What `write` wrote is on the disk when it returns**: the stream is acknowledged afterwards.
5. **A damaged file is set aside**, and a fresh one begun. One that cannot be written stops no other month. Files are checked on
   the disk, too: the writer has pages in memory, and would go on with these.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from gateway import durable
from gateway.log import Logger
from gateway.request_id import first_id
from gateway.request_id import month as month_of
from gateway.usage import tables
from gateway.usage.checks import examine, look
from gateway.usage.damage import SUFFIXES, SUSPECT, UnusableFile, named, set_aside
from gateway.usage.record import Record
from gateway.usage.tables import SELECT_OPEN, record_of
from gateway.usage.writing import write

Result = TypeVar("Result")

log = Logger("gateway.usage.database")

FILE_NAME: Final = re.compile(r"usage-(\d{4}-\d{2})\.sqlite")


SETTINGS: Final = ("synchronous = FULL", "cache_size = -65536", "wal_autocheckpoint = 16000")
"""The pages of the indices are in 64 MiB of memory, and written to the file itself after 64 MiB of changes: most change often."""


CHECK_S: Final = 10.0
"""How often the files are checked on the disk."""


class UsageDatabase:
    """The writer of a folder's files. One process at a time writes; any number may read at the same time."""

    def __init__(self, folder: Path, on_loss: Callable[[str], None] = lambda month: None) -> None:
        """Call `on_loss` with each month whose file is lost: damaged and set aside, or removed by something else."""
        self.folder = folder
        self._on_loss = on_loss
        self._checked = time.monotonic()
        self._files: dict[str, tuple[int, sqlite3.Connection]] = {}

    def write(self, records: Iterable[Record]) -> None:
        """Write arrivals and ends, in any order, each any number of times.

        A damaged file is set aside. Raises `UnusableFile` for a full disk, for example; then write them again.
        """
        arrivals: defaultdict[str, list[Record]] = defaultdict(list)
        ends: defaultdict[str, list[Record]] = defaultdict(list)
        for record in records:
            (arrivals if record.outcome is None else ends)[month_of(record.id)].append(record)
        for month in sorted(arrivals.keys() | ends.keys()):
            self._in(month, partial(write, arrivals=arrivals[month], ends=ends[month]))

    def open_requests(self, before_ms: int, gateways: Iterable[str], limit: int) -> list[Record]:
        """Return requests of some gateways that arrived before `before_ms` and have not ended, at most `limit`, oldest first."""
        terms = (first_id(before_ms), msgspec.json.encode(sorted(gateways)).decode(), limit)
        pages = self._in_all(lambda file: [record_of(row) for row in file.execute(SELECT_OPEN, terms)])
        return [record for page in pages for record in page][:limit]

    def drop_before(self, oldest: str) -> list[str]:
        """Delete the files of the months before `oldest` (`2026-11`); return those months."""
        dropped = [month for month in months(self.folder) if month < oldest]
        for month in dropped:
            self._close(month)
            for suffix in (*SUFFIXES, SUSPECT):
                path_of(self.folder, month, suffix).unlink(missing_ok=True)
        return dropped

    def check(self) -> None:
        """Set aside the files that are damaged on the disk: of those that readers report, and of those that are open here."""
        if time.monotonic() - self._checked < CHECK_S:
            return
        self._checked = time.monotonic()
        for month in months(self.folder):
            reported = path_of(self.folder, month, SUSPECT)
            if reported.exists():
                self._check(month, examine)
                reported.unlink(missing_ok=True)
            elif month in self._files:
                self._check(month, look)

    def close(self) -> None:
        """Close all files; the next call opens them again."""
        for month in list(self._files):
            self._close(month)

    def _check(self, month: str, check: Callable[[Path], None]) -> None:
        path = path_of(self.folder, month)
        try:
            self._in(month, lambda _: check(path))
        except UnusableFile as error:
            log.error("usage_file_unusable", reason=str(error))

    def _in_all(self, action: Callable[[sqlite3.Connection], Result]) -> list[Result]:
        """Return the results of `action` for the files of all months, except those that cannot be used."""
        results = []
        for month in months(self.folder):
            try:
                results.append(self._in(month, action))
            except UnusableFile as error:
                log.error("usage_file_unusable", reason=str(error))
        return results

    def _in(self, month: str, action: Callable[[sqlite3.Connection], Result]) -> Result:
        """Return the result of `action` for a month's file; one that is damaged is set aside first."""
        path = path_of(self.folder, month)
        try:
            with named(path):
                return action(self._file(month))
        except UnusableFile as error:
            if not error.damaged:
                raise
            self._close(month)
            log.error("usage_file_damaged", reason=str(error), set_aside=str(set_aside(path)))
            self._on_loss(month)
        with named(path):
            file = self._file(month)
            _begin_after(file)
            return action(file)

    def _file(self, month: str) -> sqlite3.Connection:
        path = path_of(self.folder, month)
        opened, gone = self._files.get(month), False
        if opened is not None and opened[0] == _identity(path):
            return opened[1]
        if opened is not None:  # another file has its name, or none
            gone = True
            self._close(month)
            log.error("usage_file_gone", file=str(path))
            self._on_loss(month)
        durable.make_folder(self.folder)
        file = sqlite3.connect(path, isolation_level=None, timeout=5)
        with contextlib.ExitStack() as failed:
            failed.callback(file.close)
            tables.create(file)
            for setting in SETTINGS:
                file.execute(f"PRAGMA {setting}")
            if gone:
                _begin_after(file)
            failed.pop_all()
        self._files[month] = _identity(path), file
        return file

    def _close(self, month: str) -> None:
        if month in self._files:
            self._files.pop(month)[1].close()


def path_of(folder: Path, month: str, suffix: str = "") -> Path:
    """Return the path of a month's file."""
    return folder / f"usage-{month}.sqlite{suffix}"


def months(folder: Path) -> list[str]:
    """Return the months that have a file, the oldest first. Raises `UnusableFile` for what is no folder."""
    try:
        names = [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UnusableFile(f"usage: cannot use {folder}: {error.strerror}") from None
    matches = map(FILE_NAME.fullmatch, names)
    return sorted(match[1] for match in matches if match)


def months_ago(count: int, now: float | None = None) -> str:
    """Return the month `count` months before the one of `now` (seconds since 1970; UTC)."""
    moment = time.gmtime(now)
    year, index = divmod(moment.tm_year * 12 + moment.tm_mon - 1 - count, 12)
    return f"{year:04d}-{index + 1:02d}"


def _begin_after(file: sqlite3.Connection) -> None:
    """Let readers that know a place in the file which was here before go on: the places in this one come after it."""
    file.execute("INSERT OR IGNORE INTO ends (place, number) VALUES (?, 0)", (time.time_ns() // 1_000_000,))


def _identity(path: Path) -> int:
    """Return what differs between two files that had this name; 0 where there is none."""
    try:
        return path.stat().st_ino
    except OSError:
        return 0
