"""What the usage log's files tell. Reading never waits for the writer, nor it for us; nothing here belongs on
an event loop.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.exchange import Outcome
from gateway.record import Record, first_id, month
from gateway.rows import COLUMNS, JSON_COLUMNS, SUMS, files, path_of

_NAMES: Final = ", ".join(f'"{name}"' for name in COLUMNS)
_SELECT: Final = f"SELECT {_NAMES} FROM requests"  # noqa: S608 - names of ours only
_ENDED: Final = (
    f"SELECT number, {_NAMES} FROM requests "  # noqa: S608
    "WHERE number IN (SELECT value FROM json_each(?)) AND outcome IS NOT NULL"
)
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
    """Follows the files from now on: each request is told once, when it has ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._last: dict[str, int] = {}
        self._open: dict[str, set[int]] = {}
        for name in files(folder):
            with _reading(folder, name) as file:
                if file:
                    numbers = file.execute("SELECT number FROM requests WHERE outcome IS NULL").fetchall()
                    self._open[name] = {number for (number,) in numbers}
                    (self._last[name],) = file.execute("SELECT coalesce(max(number), 0) FROM requests").fetchone()

    def poll(self) -> list[Record]:
        """The requests that ended since the last call, in the order in which they became known."""
        return [record for name in files(self.folder) for record in self._ended(name)]

    def _ended(self, name: str) -> list[Record]:
        waiting = self._open.setdefault(name, set())
        with _reading(self.folder, name) as file:
            if file is None:
                return []
            last = self._last.get(name, 0)
            new = [number for (number,) in file.execute("SELECT number FROM requests WHERE number > ?", (last,))]
            waiting.update(new)
            self._last[name] = max(new, default=last)
            rows = file.execute(_ENDED, (msgspec.json.encode(sorted(waiting)).decode(),)).fetchall()
        waiting.difference_update(number for number, *_ in rows)
        return [_record(row) for _, *row in rows]


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
