"""Queries of the usage log's files. Readers never wait for the writer, nor the writer for them.

All of it blocks: do not call it on an event loop.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.exchange import Outcome
from gateway.log import Logger
from gateway.request_id import first_id, utc
from gateway.request_id import month as month_of
from gateway.usage.damage import UnusableFile, files_aside, lack, named
from gateway.usage.database import months, path_of
from gateway.usage.record import Record
from gateway.usage.tables import COLUMNS, JSON_COLUMNS, SUMS, selected, summed

_SELECT_LAST_PLACE: Final = "SELECT coalesce(max(place), 0) FROM ends"
_CURSOR: Final = re.compile(r"\d{4}-\d{2}\.\d{1,18}(\+\d{4}-\d{2}\.\d{1,18})?")
START: Final = "0000-00.0"
"""The cursor before all records."""

log = Logger("gateway.usage.queries")

_AFTER_ALL_IDS: Final = "g"
_AFTER_ALL_DAYS: Final = "9"

_MONTH_OF_DAY: Final = slice(len("2026-11"))
_NEWEST: Final = slice(-2, None)
"""The months that a tail reads."""


def find(folder: Path, id: str) -> Record | None:  # noqa: A002 - the field's name
    """Return the record of a request, or None where the files do not have it (not yet, or no longer).

    Raises `UnusableFile` where it may be in a file that cannot be read.
    """
    try:
        month = month_of(id)
    except ValueError:
        return None
    with _opened(folder, month) as file:
        row = next(_selected(file, "WHERE id = ?", (id,)), None) if file else None
        record = None if row is None else _record(row)
    if record is None and (aside := files_aside(folder, month)):
        raise lack(aside[-1])
    return record


def select(
    folder: Path,
    *,
    account: str | None = None,
    outcome: Outcome | None = None,
    since_ms: int | None = None,
    until_ms: int | None = None,
    newest_first: bool = False,
    unusable: list[UnusableFile] | None = None,
) -> Iterator[Record]:
    """Yield requests in the order of their arrival, or the newest first. `until_ms` is exclusive.

    Where a file cannot be read, its error is added to `unusable`, and the other months follow; without such a list it is raised.
    """
    since = "" if since_ms is None else first_id(since_ms)
    until = _AFTER_ALL_IDS if until_ms is None else first_id(until_ms)
    conditions, values = ["id >= ?", "id < ?"], [since, until]
    for column, value in (("account", account), ("outcome", outcome)):
        if value is not None:
            conditions.append(f"{column} = ?")
            values.append(value)
    order = "DESC" if newest_first else "ASC"
    terms = f"WHERE {' AND '.join(conditions)} ORDER BY id {order}"
    first, last = _month_at(since_ms or 0), _AFTER_ALL_DAYS if until_ms is None else _month_at(until_ms)
    for month in sorted(months(folder), reverse=newest_first):
        if first <= month <= last:
            with _collecting(unusable), _opened(folder, month) as file:
                if file:
                    yield from map(_record, _selected(file, terms, values))
    if unusable is not None:
        unusable += _lacks(folder, first, last)


def rows(
    folder: Path,
    names: Sequence[str],
    *,
    since_ms: int | None = None,
    until_ms: int | None = None,
    unusable: list[UnusableFile],
) -> Iterator[Sequence[Any]]:
    """Yield some columns of the requests that ended, as the files have them: much faster than `select`."""
    since, until = (
        "" if since_ms is None else first_id(since_ms),
        _AFTER_ALL_IDS if until_ms is None else first_id(until_ms),
    )
    terms = "WHERE id >= ? AND id < ? AND outcome IS NOT NULL ORDER BY id"
    last = _AFTER_ALL_DAYS if until_ms is None else _month_at(until_ms)
    for month in months(folder):
        if _month_at(since_ms or 0) <= month <= last:
            with _collecting(unusable), _opened(folder, month) as file:
                if file:
                    yield from _selected(file, terms, (since, until), names=names)
    unusable += _lacks(folder, _month_at(since_ms or 0), last)


def summary(
    folder: Path,
    by: Sequence[str],
    *,
    since: str | None = None,
    until: str | None = None,
    unusable: list[UnusableFile] | None = None,
) -> list[dict[str, Any]]:
    """Return the sums by some of `GROUPS`, sorted by these: dicts with these groups and `SUMS`.

    `since` and `until` are days (`2026-11-21`), both inclusive. `unusable` is as for `select`.
    """
    first, last = since or "", until or _AFTER_ALL_DAYS
    terms = f" GROUP BY {', '.join(by)}" if by else ""
    totals: dict[tuple[str, ...], dict[str, int]] = {}
    for month in months(folder):
        if first[_MONTH_OF_DAY] <= month <= last[_MONTH_OF_DAY]:
            with _collecting(unusable), _opened(folder, month) as file:
                for row in _sums(file, by, terms, (first, last)) if file else ():
                    group, sums = tuple(row[: len(by)]), row[len(by) :]
                    total = totals.setdefault(group, dict.fromkeys(SUMS, 0))
                    for name, value in zip(SUMS, sums, strict=True):
                        total[name] += value or 0
    if unusable is not None:
        unusable += _lacks(folder, first[_MONTH_OF_DAY], last[_MONTH_OF_DAY])
    return [dict(zip(by, group, strict=True)) | totals[group] for group in sorted(totals) if totals[group]["requests"]]


class Tail:
    """Follows the files: returns each request that ended once, in the order in which the ends became known.

    `after` is the `cursor` of an earlier tail, or empty for what ends from now on. Raises `ValueError` for anything else.
    Only the two newest months are read: no request takes longer to end.
    """

    def __init__(self, folder: Path, after: str = "") -> None:
        self.folder = folder
        self._places = _places(after) if after else {month: self._last_place(month) for month in self._months()}

    @property
    def cursor(self) -> str:
        """The position of this tail."""
        return "+".join(f"{month}.{place}" for month, place in sorted(self._places.items())[_NEWEST]) or START

    def poll(self, limit: int = 500) -> list[tuple[str, Record]]:
        """Return the next requests that ended, up to `limit` of each month, each with the cursor after it."""
        return [entry for month in self._months() for entry in self._ends(month, limit)]

    def _months(self) -> list[str]:
        return months(self.folder)[_NEWEST]

    def _last_place(self, month: str) -> int:
        with _reporting(), _opened(self.folder, month) as file:
            if file is None:
                return 0
            (place,) = file.execute(_SELECT_LAST_PLACE).fetchone()
            return int(place)
        return 0

    def _ends(self, month: str, limit: int) -> Iterator[tuple[str, Record]]:
        with _reporting(), _opened(self.folder, month) as file:
            terms = "JOIN ends USING (number) WHERE place > ? ORDER BY place LIMIT ?"
            rows = _selected(file, terms, (self._places.get(month, 0), limit), "place, ") if file else ()
            for place, *row in rows:
                self._places[month] = place
                yield self.cursor, _record(row)


def _month_at(ms: int) -> str:
    return utc(ms)[:7]


def _places(cursor: str) -> dict[str, int]:
    if not _CURSOR.fullmatch(cursor):
        raise ValueError("no such place in the log")
    return {month: int(place) for month, _, place in (part.partition(".") for part in cursor.split("+"))}


@contextlib.contextmanager
def _opened(folder: Path, month: str) -> Iterator[sqlite3.Connection | None]:
    """Open a month's file for reading; None where there is none, or it has no tables yet."""
    path = path_of(folder, month)
    if not (path.exists() or path.is_symlink()):
        yield None
        return
    with named(path), contextlib.closing(_connected(path)) as file:
        ready = file.execute("SELECT 1 FROM sqlite_master WHERE name = 'requests'").fetchone()
        yield file if ready else None


def _connected(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5)


@contextlib.contextmanager
def _collecting(unusable: list[UnusableFile] | None) -> Iterator[None]:
    try:
        yield
    except UnusableFile as error:
        if unusable is None:
            raise
        unusable.append(error)


@contextlib.contextmanager
def _reporting() -> Iterator[None]:
    try:
        yield
    except UnusableFile as error:
        log.error("usage_file_unusable", reason=str(error))


def _selected(
    file: sqlite3.Connection, terms: str, values: Sequence[Any], before: str = "", names: Sequence[str] = COLUMNS
) -> Iterator[Sequence[Any]]:
    columns = selected(file, names)
    return file.execute(f"SELECT {before}{columns} FROM requests {terms}", values)  # noqa: S608 - names of ours only


def _sums(file: sqlite3.Connection, by: Sequence[str], terms: str, days: tuple[str, str]) -> Iterator[Sequence[Any]]:
    names = ", ".join([*by, summed(file)])
    return file.execute(f"SELECT {names} FROM days WHERE day >= ? AND day <= ?{terms}", days)  # noqa: S608


def _lacks(folder: Path, first: str, last: str) -> list[UnusableFile]:
    return [lack(path) for path in files_aside(folder) if first <= path.name[len("usage-") :][:7] <= last]


def _record(row: Sequence[Any]) -> Record:
    """Return the record of a row. What an earlier version did not write has its default."""
    values = {name: value for name, value in zip(COLUMNS, row, strict=True) if value is not None}
    for name in JSON_COLUMNS:
        if name in values:
            values[name] = msgspec.json.decode(values[name])
    return msgspec.convert(values, Record)
