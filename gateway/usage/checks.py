"""The check of a month's file on the disk: what its writer has in memory may hide that it is damaged.

A connection of its own reads the file anew. `look` takes less than a millisecond and reads a few pages, one of them by chance;
`examine` reads all of them. Both raise `UnusableFile`, or an error of SQLite.
"""

from __future__ import annotations

import contextlib
import random
import sqlite3
from pathlib import Path
from typing import Final

from gateway.usage.damage import UnusableFile

_LAST: Final = "SELECT coalesce(max(number), 0) FROM requests"
_SOME: Final = "SELECT * FROM requests WHERE number >= ? ORDER BY number LIMIT 1"


def look(path: Path) -> None:
    """Read what a file begins with, its newest rows, and one by chance."""
    with contextlib.closing(connected(path)) as file:
        if not file.execute("SELECT 1 FROM sqlite_master WHERE name = 'requests'").fetchone():
            raise _damaged(path, "its tables are gone")
        (last,) = file.execute(_LAST).fetchone()
        for number in (last, random.randint(0, last)):  # noqa: S311 - no secret
            file.execute(_SOME, (number,)).fetchone()
        file.execute("SELECT max(place) FROM ends").fetchone()
        file.execute("SELECT max(day) FROM days").fetchone()


def examine(path: Path) -> None:
    """Read all of a file. It takes seconds where that is large."""
    with contextlib.closing(connected(path)) as file:
        (result,) = file.execute("PRAGMA quick_check(1)").fetchone()
    if result != "ok":
        raise _damaged(path, result)
    look(path)


def connected(path: Path) -> sqlite3.Connection:
    """Return a connection that only reads."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5)


def _damaged(path: Path, reason: str) -> UnusableFile:
    return UnusableFile(f"{path} cannot be used: {reason}", damaged=True)
