"""The usage log's SQLite files: one a month, a row for each request, and a daily roll-up that always equals
their sum.

1. **A row is one request, however often and in whatever order its arrival and its end are written.** An end
   closes a row once; only the sweeper's guess (`gateway_crashed`) gives way to a true end that comes late.
2. **The roll-up is kept by triggers**, so whoever closes a row, in whatever way, changes both in one
   transaction.
3. **Each closing of a row has a place** in `ends`, in the order in which they became known, so that whoever follows can go
   on from where it was.
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

from gateway.exchange import Outcome
from gateway.request_id import first_id, month
from gateway.usage.record import Record

COLUMNS: Final = tuple(field.name for field in msgspec.structs.fields(Record))
JSON_COLUMNS: Final = ("attempts", "price")
_AS_JSON: Final = tuple(COLUMNS.index(name) for name in JSON_COLUMNS)

GROUPS: Final = ("day", "account", "token_id", "model", "channel")
"""What the roll-up is kept by."""
SUMS: Final = ("requests", "completed", "prompt_tokens", "completion_tokens", "charge_micros")
"""What it adds up."""

FILE_NAME: Final = re.compile(r"usage-(\d{4}-\d{2})\.sqlite")


def _kind(column: str) -> str:
    default = getattr(Record(id="", arrived_at=""), column)
    return "INTEGER" if isinstance(default, int) or column == "first_byte_ms" else "TEXT"


def _quoted(names: Iterable[str], row: str = "") -> list[str]:
    return [f'{row}"{name}"' for name in names]


def _names(names: Iterable[str], row: str = "") -> str:
    return ", ".join(_quoted(names, row))


def _rolled_up(row: str, sign: str) -> str:
    """The statement that adds a closed row to its day (`+`), or takes it away again (`-`)."""
    sums = (
        "1",
        f"{row}.outcome = '{Outcome.COMPLETED}'",
        *(f'{row}."{name}"' for name in SUMS[2:]),
    )
    return (
        f"INSERT INTO days ({_names(GROUPS)}, {_names(SUMS)}) "  # noqa: S608 - names of ours only
        f"VALUES (substr({row}.arrived_at, 1, 10), {_names(GROUPS[1:], f'{row}.')}, "
        f"{', '.join(f'{sign}({value})' for value in sums)}) "
        f"ON CONFLICT DO UPDATE SET {', '.join(f'{name} = {name} + excluded.{name}' for name in SUMS)};"
    )


_TOLD: Final = "INSERT INTO ends (number) VALUES (NEW.number);"

SCHEMA: Final = f"""
PRAGMA journal_mode = WAL;
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS requests (
    number INTEGER PRIMARY KEY,
    {", ".join(f'"{name}" {_kind(name)}' for name in COLUMNS)},
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
BEGIN {_rolled_up("NEW", "+")} {_TOLD} END;
CREATE TRIGGER IF NOT EXISTS reopened BEFORE UPDATE ON requests WHEN OLD.outcome IS NOT NULL
BEGIN {_rolled_up("OLD", "-")} END;
CREATE TRIGGER IF NOT EXISTS closed AFTER UPDATE ON requests WHEN NEW.outcome IS NOT NULL
BEGIN {_rolled_up("NEW", "+")} {_TOLD} END;
COMMIT;
"""

ARRIVAL: Final = (
    f"INSERT INTO requests ({_names(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))}) "  # noqa: S608
    "ON CONFLICT (id) DO NOTHING"
)
END: Final = (
    ARRIVAL.removesuffix("NOTHING")
    + f"UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in _quoted(COLUMNS[1:]))} "
    + f"WHERE requests.outcome IS NULL OR requests.outcome = '{Outcome.GATEWAY_CRASHED}'"
)
CRASHED: Final = (
    f"UPDATE requests SET outcome = '{Outcome.GATEWAY_CRASHED}' "  # noqa: S608
    "WHERE outcome IS NULL AND id < ?"
)

UNDER_WAY: Final = "SELECT id FROM requests WHERE outcome IS NULL AND id < ? ORDER BY id LIMIT ?"


class UsageDatabase:
    """The writer of a folder's files. One process at a time writes; any number read beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, sqlite3.Connection] = {}

    def write(self, records: Iterable[Record]) -> None:
        """Keep arrivals and ends, in any order, each any number of times. Raises `sqlite3.Error`; then write
        them again.
        """
        arrivals: defaultdict[str, list[Record]] = defaultdict(list)
        ends: defaultdict[str, list[Record]] = defaultdict(list)
        for record in records:
            (arrivals if record.outcome is None else ends)[month(record.id)].append(record)
        for name in sorted(arrivals.keys() | ends.keys()):
            closed = {record.id for record in ends[name]}
            file = self._file(name)
            with _transaction(file):
                file.executemany(ARRIVAL, (_row(record) for record in arrivals[name] if record.id not in closed))
                file.executemany(END, map(_row, ends[name]))

    def under_way(self, before_ms: int, most: int) -> list[str]:
        """The ids of requests that arrived before then and have not ended, at most so many, the oldest first."""
        rows = (self._file(name).execute(UNDER_WAY, (first_id(before_ms), most)) for name in files(self.folder))
        return [row[0] for found in rows for row in found][:most]

    def close_crashed(self, before_ms: int) -> int:
        """Close what arrived before then and never ended as `gateway_crashed`; how many there were."""
        closed = 0
        for name in files(self.folder):
            file = self._file(name)
            with _transaction(file):
                closed += file.execute(CRASHED, (first_id(before_ms),)).rowcount
        return closed

    def drop_before(self, oldest: str) -> list[str]:
        """Delete the files of the months before `oldest` (`2026-11`); the months that went."""
        gone = [name for name in files(self.folder) if name < oldest]
        for name in gone:
            if name in self._files:
                self._files.pop(name).close()
            for suffix in ("", "-wal", "-shm"):
                path_of(self.folder, name, suffix).unlink(missing_ok=True)
        return gone

    def close(self) -> None:
        """Close all files; the writer may go on and opens them again."""
        while self._files:
            self._files.popitem()[1].close()

    def _file(self, name: str) -> sqlite3.Connection:
        if name not in self._files:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            file = sqlite3.connect(path_of(self.folder, name), isolation_level=None, timeout=5)
            with contextlib.ExitStack() as failed:
                failed.callback(file.close)
                file.executescript(SCHEMA)
                file.execute("PRAGMA synchronous = FULL")
                failed.pop_all()
            self._files[name] = file
        return self._files[name]


def path_of(folder: Path, name: str, suffix: str = "") -> Path:
    """The file of a month."""
    return folder / f"usage-{name}.sqlite{suffix}"


def files(folder: Path) -> list[str]:
    """The months that there are, the oldest first."""
    matches = (FILE_NAME.fullmatch(path.name) for path in folder.glob("usage-*.sqlite"))
    return sorted(match[1] for match in matches if match)


def months_ago(count: int, now: float | None = None) -> str:
    """The month `count` months before the one of `now` (seconds since 1970; UTC)."""
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
    for index in _AS_JSON:
        values[index] = msgspec.json.encode(values[index]).decode()
    return values
