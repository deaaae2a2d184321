"""Opening a month's file for reading, and what its rows are. All of it blocks."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from gateway.request_id import utc
from gateway.usage.checks import connected
from gateway.usage.damage import UnusableFile, files_aside, lack, named, report
from gateway.usage.database import path_of
from gateway.usage.tables import COLUMNS, selected


@contextlib.contextmanager
def opened(folder: Path, month: str) -> Iterator[sqlite3.Connection | None]:
    """Open a month's file for reading; None where there is none, or it has no tables yet."""
    path = path_of(folder, month)
    if not (path.exists() or path.is_symlink()):
        yield None
        return
    try:
        with named(path), contextlib.closing(connected(path)) as file:
            ready = file.execute("SELECT 1 FROM sqlite_master WHERE name = 'requests'").fetchone()
            yield file if ready else None
    except UnusableFile as error:
        if error.damaged:
            report(path)
        raise


@contextlib.contextmanager
def collecting(unusable: list[UnusableFile] | None) -> Iterator[None]:
    """Add the error of a file that cannot be read to `unusable`; without such a list it is raised."""
    try:
        yield
    except UnusableFile as error:
        if unusable is None:
            raise
        unusable.append(error)


def select_rows(
    file: sqlite3.Connection, terms: str, values: Sequence[Any], before: str = "", names: Sequence[str] = COLUMNS
) -> Iterator[Sequence[Any]]:
    """Yield columns of the requests that these terms select."""
    columns = selected(file, names)
    return file.execute(f"SELECT {before}{columns} FROM requests {terms}", values)  # noqa: S608 - names of ours only


def merged(rows: Iterable[Sequence[Any]], by: Sequence[str], names: Sequence[str]) -> list[dict[str, Any]]:
    """Add up rows with groups and sums; return them sorted by the groups, without those of no request."""
    totals: dict[tuple[str, ...], dict[str, int]] = {}
    for row in rows:
        total = totals.setdefault(tuple(row[: len(by)]), dict.fromkeys(names, 0))
        for name, value in zip(names, row[len(by) :], strict=True):
            total[name] += value or 0
    return [dict(zip(by, group, strict=True)) | totals[group] for group in sorted(totals) if totals[group]["requests"]]


def lacks(folder: Path, first: str, last: str) -> list[UnusableFile]:
    """Return an error for each file of these months that was set aside."""
    return [lack(path) for path in files_aside(folder) if first <= path.name[len("usage-") :][:7] <= last]


def month_at(ms: int) -> str:
    """Return the month of a time in milliseconds since 1970."""
    return utc(ms)[:7]
