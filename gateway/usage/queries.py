"""What the usage log's files tell. Reading never waits for the writer, nor it for us; nothing here belongs on
an event loop.
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
from gateway.request_id import first_id, month
from gateway.usage.database import COLUMNS, JSON_COLUMNS, SUMS, files, path_of
from gateway.usage.record import Record

_NAMES: Final = ", ".join(f'"{name}"' for name in COLUMNS)
_SELECT: Final = f"SELECT {_NAMES} FROM requests"  # noqa: S608 - names of ours only
_ENDED: Final = (
    f"SELECT place, {_NAMES} FROM ends JOIN requests USING (number) "  # noqa: S608
    "WHERE place > ? ORDER BY place LIMIT ?"
)
_CURSOR: Final = re.compile(r"\d{4}-\d{2}\.\d{1,18}(\+\d{4}-\d{2}\.\d{1,18})?")
NOWHERE: Final = "0000-00.0"
"""The cursor before everything."""

_AFTER_ALL: Final = "g"


def find(folder: Path, id: str) -> Record | None:  # noqa: A002 - the field's name
    """The record of a request, or None where the files do not have it (yet, or any more)."""
    try:
        name = month(id)
    except ValueError:
        return None
    with _reading(folder, name) as file:
        row = file.execute(f"{_SELECT} WHERE id = ?", (id,)).fetchone() if file else None
        return None if row is None else _record(row)


def select(
    folder: Path,
    *,
    account: str | None = None,
    outcome: Outcome | None = None,
    since_ms: int | None = None,
    until_ms: int | None = None,
    newest_first: bool = False,
) -> Iterator[Record]:
    """Requests in the order of their arrival, or the newest first. `until_ms` itself is not among them."""
    since = "" if since_ms is None else first_id(since_ms)
    until = _AFTER_ALL if until_ms is None else first_id(until_ms)
    conditions, values = ["id >= ?", "id < ?"], [since, until]
    for column, value in (("account", account), ("outcome", outcome)):
        if value is not None:
            conditions.append(f"{column} = ?")
            values.append(value)
    order = "DESC" if newest_first else "ASC"
    for name in sorted(files(folder), reverse=newest_first):
        with _reading(folder, name) as file:
            if file:
                question = f"{_SELECT} WHERE {' AND '.join(conditions)} ORDER BY id {order}"
                yield from map(_record, file.execute(question, values))


def summary(
    folder: Path, by: Sequence[str], *, since: str | None = None, until: str | None = None
) -> list[dict[str, Any]]:
    """The roll-up by some of `GROUPS`, in their order: each a dict of these and `SUMS`. Days are
    `2026-11-21`, both included.
    """
    columns = ", ".join([*by, *(f"sum({name})" for name in SUMS)])
    question = f"SELECT {columns} FROM days WHERE day >= ? AND day <= ?"  # noqa: S608
    if by:
        question += f" GROUP BY {', '.join(by)}"
    totals: dict[tuple[str, ...], list[int]] = {}
    for name in files(folder):
        if (since or "")[:7] <= name <= (until or "9")[:7]:
            with _reading(folder, name) as file:
                for row in file.execute(question, (since or "", until or "9")) if file else ():
                    total = totals.setdefault(row[: len(by)], [0] * len(SUMS))
                    for index, value in enumerate(row[len(by) :]):
                        total[index] += value or 0
    return [
        dict(zip((*by, *SUMS), (*group, *totals[group]), strict=True)) for group in sorted(totals) if totals[group][0]
    ]


class Tail:
    """Follows the files: each end of a request is told once, in the order in which they became known.

    `after` is the `cursor` of an earlier tail, or empty for what ends from now on. Raises `ValueError` for what never was
    a cursor. Only the two newest months are looked at: no request takes longer to end.
    """

    def __init__(self, folder: Path, after: str = "") -> None:
        self.folder = folder
        self._places = _places(after) if after else {name: self._last(name) for name in self._months()}

    @property
    def cursor(self) -> str:
        """How far this tail has come."""
        return "+".join(f"{name}.{place}" for name, place in sorted(self._places.items())[-2:]) or NOWHERE

    def poll(self, most: int = 500) -> list[tuple[str, Record]]:
        """The next requests that ended since the last call, about `most` of them, each with the cursor behind it."""
        return [told for name in self._months() for told in self._ended(name, most)]

    def _months(self) -> list[str]:
        return files(self.folder)[-2:]

    def _last(self, name: str) -> int:
        with _reading(self.folder, name) as file:
            return int(file.execute("SELECT coalesce(max(place), 0) FROM ends").fetchone()[0]) if file else 0

    def _ended(self, name: str, most: int) -> Iterator[tuple[str, Record]]:
        with _reading(self.folder, name) as file:
            rows = file.execute(_ENDED, (self._places.get(name, 0), most)).fetchall() if file else []
        for place, *row in rows:
            self._places[name] = place
            yield self.cursor, _record(row)


def _places(cursor: str) -> dict[str, int]:
    if not _CURSOR.fullmatch(cursor):
        raise ValueError("no such place in the log")
    return {name: int(place) for name, _, place in (part.partition(".") for part in cursor.split("+"))}


@contextlib.contextmanager
def _reading(folder: Path, name: str) -> Iterator[sqlite3.Connection | None]:
    """A month's file for reading; None where there is none, or none that is ready."""
    path = path_of(folder, name)
    try:
        file = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=5)
    except sqlite3.OperationalError:
        if path.exists():
            raise
        yield None
        return
    with contextlib.closing(file):
        ready = file.execute("SELECT 1 FROM sqlite_master WHERE name = 'requests'").fetchone()
        yield file if ready else None


def _record(row: Sequence[Any]) -> Record:
    values = dict(zip(COLUMNS, row, strict=True))
    for name in JSON_COLUMNS:
        values[name] = msgspec.json.decode(values[name])
    return msgspec.convert(values, Record)
