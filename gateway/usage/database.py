"""The usage log's database: SQLite files, one for each month, with a row for each request and sums by day.

1. **A row is one request, however often and in whatever order its arrival and its end are written.** An end closes a row
   once; only the presumed end (`gateway_crashed`) is replaced by an actual end that comes late.
2. **The sums by day always equal the sum of the closed rows.** Triggers keep them, so anything that closes a row changes
   both in one transaction.
3. **Each closing of a row has a place** in the table `ends`, in the order in which the ends became known, so that a reader
   can continue where it stopped.
4. **What `write` wrote is on the disk when it returns**: the stream is acknowledged afterwards.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway import durable
from gateway.exchange import Outcome
from gateway.request_id import first_id
from gateway.request_id import month as month_of
from gateway.usage.record import Record

COLUMNS: Final = tuple(field.name for field in msgspec.structs.fields(Record))
JSON_COLUMNS: Final = ("attempts", "price")
_CHANGING_COLUMNS: Final = tuple(name for name in COLUMNS if name != "id")
_JSON_INDICES: Final = tuple(COLUMNS.index(name) for name in JSON_COLUMNS)

GROUP_COLUMNS: Final = ("account", "token_id", "model", "channel")
GROUPS: Final = ("day", *GROUP_COLUMNS)
"""What the sums are grouped by."""
SUM_COLUMNS: Final = ("prompt_tokens", "completion_tokens", "charge_micros")
SUMS: Final = ("requests", "completed", *SUM_COLUMNS)

FILE_NAME: Final = re.compile(r"usage-(\d{4}-\d{2})\.sqlite")


def _type(column: str) -> str:
    default = getattr(Record(id="", arrived_at=""), column)
    return "INTEGER" if isinstance(default, int) or column == "first_byte_ms" else "TEXT"


def _quoted(names: Iterable[str], row: str = "") -> list[str]:
    return [f'{row}"{name}"' for name in names]


def _names(names: Iterable[str], row: str = "") -> str:
    return ", ".join(_quoted(names, row))


def _add_to_day(row: str, sign: str) -> str:
    """Return the statement that adds a closed row to its day's sums (`+`), or subtracts it (`-`)."""
    sums = ("1", f"{row}.outcome = '{Outcome.COMPLETED}'", *_quoted(SUM_COLUMNS, f"{row}."))
    return (
        f"INSERT INTO days ({_names(GROUPS)}, {_names(SUMS)}) "  # noqa: S608 - names of ours only
        f"VALUES (substr({row}.arrived_at, 1, 10), {_names(GROUP_COLUMNS, f'{row}.')}, "
        f"{', '.join(f'{sign}({value})' for value in sums)}) "
        f"ON CONFLICT DO UPDATE SET {', '.join(f'{name} = {name} + excluded.{name}' for name in SUMS)};"
    )


_APPEND_END: Final = "INSERT INTO ends (number) VALUES (NEW.number);"

SCHEMA: Final = f"""
PRAGMA journal_mode = WAL;
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS requests (
    number INTEGER PRIMARY KEY,
    {", ".join(f'"{name}" {_type(name)}' for name in COLUMNS)},
    UNIQUE (id)
);
CREATE INDEX IF NOT EXISTS requests_of_account ON requests (account, id);
CREATE INDEX IF NOT EXISTS requests_open ON requests (id) WHERE outcome IS NULL;
CREATE TABLE IF NOT EXISTS days (
    {", ".join(f"{name} TEXT" for name in GROUPS)},
    {", ".join(f"{name} INTEGER" for name in SUMS)},
    PRIMARY KEY ({", ".join(GROUPS)})
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS ends (place INTEGER PRIMARY KEY, number INTEGER);
CREATE TRIGGER IF NOT EXISTS closed_at_once AFTER INSERT ON requests WHEN NEW.outcome IS NOT NULL
BEGIN {_add_to_day("NEW", "+")} {_APPEND_END} END;
CREATE TRIGGER IF NOT EXISTS reopened BEFORE UPDATE ON requests WHEN OLD.outcome IS NOT NULL
BEGIN {_add_to_day("OLD", "-")} END;
CREATE TRIGGER IF NOT EXISTS closed AFTER UPDATE ON requests WHEN NEW.outcome IS NOT NULL
BEGIN {_add_to_day("NEW", "+")} {_APPEND_END} END;
COMMIT;
"""

INSERT_ARRIVAL: Final = (
    f"INSERT INTO requests ({_names(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))}) "  # noqa: S608
    "ON CONFLICT (id) DO NOTHING"
)
INSERT_END: Final = (
    INSERT_ARRIVAL.removesuffix("NOTHING")
    + f"UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in _quoted(_CHANGING_COLUMNS))} "
    + f"WHERE requests.outcome IS NULL OR requests.outcome = '{Outcome.GATEWAY_CRASHED}'"
)
CLOSE_CRASHED: Final = (
    f"UPDATE requests SET outcome = '{Outcome.GATEWAY_CRASHED}' "  # noqa: S608
    "WHERE outcome IS NULL AND id < ?"
)

SELECT_OPEN_IDS: Final = "SELECT id FROM requests WHERE outcome IS NULL AND id < ? ORDER BY id LIMIT ?"


class UsageDatabase:
    """The writer of a folder's files. One process at a time writes; any number may read at the same time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, sqlite3.Connection] = {}

    def write(self, records: Iterable[Record]) -> None:
        """Write arrivals and ends, in any order, each any number of times.

        Raises `sqlite3.Error`; then write them again.
        """
        arrivals: defaultdict[str, list[Record]] = defaultdict(list)
        ends: defaultdict[str, list[Record]] = defaultdict(list)
        for record in records:
            (arrivals if record.outcome is None else ends)[month_of(record.id)].append(record)
        for month in sorted(arrivals.keys() | ends.keys()):
            closed = {record.id for record in ends[month]}
            file = self._file(month)
            with _transaction(file):
                file.executemany(
                    INSERT_ARRIVAL, (_row(record) for record in arrivals[month] if record.id not in closed)
                )
                file.executemany(INSERT_END, map(_row, ends[month]))

    def open_ids(self, before_ms: int, limit: int) -> list[str]:
        """Return the ids of requests that arrived before `before_ms` and have not ended, at most `limit`, oldest first."""
        files = (self._file(month) for month in months(self.folder))
        return [id for file in files for (id,) in file.execute(SELECT_OPEN_IDS, (first_id(before_ms), limit))][:limit]  # noqa: A001

    def close_crashed(self, before_ms: int) -> int:
        """Close as `gateway_crashed` the requests that arrived before `before_ms` and have not ended; return how many."""
        closed = 0
        for month in months(self.folder):
            file = self._file(month)
            with _transaction(file):
                closed += file.execute(CLOSE_CRASHED, (first_id(before_ms),)).rowcount
        return closed

    def drop_before(self, oldest: str) -> list[str]:
        """Delete the files of the months before `oldest` (`2026-11`); return those months."""
        dropped = [month for month in months(self.folder) if month < oldest]
        for month in dropped:
            if month in self._files:
                self._files.pop(month).close()
            for suffix in ("", "-wal", "-shm"):
                path_of(self.folder, month, suffix).unlink(missing_ok=True)
        return dropped

    def close(self) -> None:
        """Close all files; the next call opens them again."""
        while self._files:
            _, file = self._files.popitem()
            file.close()

    def _file(self, month: str) -> sqlite3.Connection:
        if month not in self._files:
            durable.make_folder(self.folder)
            file = sqlite3.connect(path_of(self.folder, month), isolation_level=None, timeout=5)
            with contextlib.ExitStack() as failed:
                failed.callback(file.close)
                file.executescript(SCHEMA)
                file.execute("PRAGMA synchronous = FULL")
                failed.pop_all()
            self._files[month] = file
        return self._files[month]


def path_of(folder: Path, month: str, suffix: str = "") -> Path:
    """Return the path of a month's file."""
    return folder / f"usage-{month}.sqlite{suffix}"


def months(folder: Path) -> list[str]:
    """Return the months that have a file, the oldest first."""
    matches = (FILE_NAME.fullmatch(path.name) for path in folder.glob("usage-*.sqlite"))
    return sorted(match[1] for match in matches if match)


def months_ago(count: int, now: float | None = None) -> str:
    """Return the month `count` months before the one of `now` (seconds since 1970; UTC)."""
    moment = time.gmtime(now)
    year, index = divmod(moment.tm_year * 12 + moment.tm_mon - 1 - count, 12)
    return f"{year:04d}-{index + 1:02d}"


@contextlib.contextmanager
def _transaction(file: sqlite3.Connection) -> Any:
    file.execute("BEGIN IMMEDIATE")
    try:
        yield
        file.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            file.execute("ROLLBACK")
        raise


def _row(record: Record) -> list[Any]:
    values = list(msgspec.structs.astuple(record))
    for index in _JSON_INDICES:
        values[index] = msgspec.json.encode(values[index]).decode()
    return values
