"""The usage log's database: SQLite files, one for each month, with a row for each request, sums by day, and roll-ups.

1. **A row is one request, however often and in whatever order its arrival and its end are written.** An end closes a row
   once; only the presumed end (`gateway_crashed`) is replaced by an actual end that comes late.
2. **The sums by day and the roll-ups always equal the sum of the closed rows.** `write` changes all in one transaction, in which a
   batch is added up and written once for each group: many requests share one. The rows of an account are written side by side, so
   that its index changes few pages, and a list of its requests reads few.
3. **Each closing of a row has a place** in the table `ends`, in the order in which the ends became known, so that a reader
   can continue where it stopped.
4. **What `write` wrote is on the disk when it returns**: the stream is acknowledged afterwards.
5. **A damaged file is set aside**: renamed, with nothing deleted, and a fresh one begun, so that the records of now are kept. One
   that cannot be written stops no other month. Files are checked on the disk by a connection of its own, since the writer has
   pages in memory, and would go on with these: `look` takes less than a millisecond and reads a few pages, one of them by chance;
   `examine` reads all of them.
6. **A file with other columns is refused**: another version of the gateway wrote it. `unknown_costs` counts the requests whose cost
   is not known, and which are therefore missing in the sums of costs and margins.
"""

from __future__ import annotations

import contextlib
import random
import re
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import count
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from uuid_utils import uuid7

from gateway.base import durable
from gateway.base.errors import GatewayError, Misconfigured, StoreAway
from gateway.base.ids import first_id
from gateway.base.ids import month as month_of
from gateway.base.log import log
from gateway.domain.exchange import Outcome
from gateway.usage.record import NUMBERS, NUMBERS_OR_NONE, OBJECTS, Record
from gateway.usage.rollups import ROLLUP_GROUPS, ROLLUP_SUMS, rolled_up

Result = TypeVar("Result")

FILE_NAME: Final = re.compile(r"usage-(\d{4}-\d{2})\.sqlite")

SETTINGS: Final = ("synchronous = FULL", "cache_size = -65536", "wal_autocheckpoint = 16000")
"""The pages of the indices are in 64 MiB of memory, and written to the file itself after 64 MiB of changes: most change often."""

CHECK_S: Final = 10.0
"""How often the files are checked on the disk."""

_DAY: Final = slice(len("2026-11-21"))
_EMPTY: Final[dict[type, str]] = {list: "[]", dict: "{}"}
_encode: Final = msgspec.json.Encoder().encode
_LARGEST: Final = 2**63 - 1
_place_of = attrgetter("account", "id")


class File(sqlite3.Connection):
    """A connection to the file of a month, with the names of its tables. Each request has a `number` there."""

    requests: Final = "requests"
    days: Final = "days"
    ends: Final = "ends"
    rollups: Final = "rollups"
    key: Final = "number"

    def stream(self, text: str, values: Sequence[Any]) -> Iterator[Sequence[Any]]:
        """Yield the rows of a query, few at a time."""
        return self.execute(text, values)


Known = tuple[int, str | None]
"""The number of a row, and its outcome."""

COLUMNS: Final = tuple(field.name for field in msgspec.structs.fields(Record))
JSON_COLUMNS: Final = ("attempts", "changed_by", *OBJECTS)
JSON_INDICES: Final = tuple(COLUMNS.index(name) for name in JSON_COLUMNS)
_CHANGING_COLUMNS: Final = tuple(name for name in COLUMNS if name != "id")

GROUP_COLUMNS: Final = ("account", "token_id", "model", "channel")
GROUPS: Final = ("day", *GROUP_COLUMNS)
"""What the sums are grouped by."""
SUM_COLUMNS: Final = (
    *("prompt_tokens", "cached_tokens", "cache_write_tokens", "completion_tokens"),
    *("charge_micros", "cost_micros", "margin_micros"),
)
SUMS: Final = ("requests", "completed", *SUM_COLUMNS, "unknown_costs")

SELECT_KNOWN: Final = (
    "SELECT requests.id, number, outcome FROM json_each(?) AS wanted CROSS JOIN requests ON requests.id = wanted.value"
)

_LAST: Final = "SELECT coalesce(max(number), 0) FROM requests"
_SOME: Final = "SELECT * FROM requests WHERE number >= ? ORDER BY number LIMIT 1"

MARK: Final = ".damaged-"
PLACE: Final = "clickhouse.place"
"""The file with the cursor up to which the log is copied elsewhere."""
SUFFIXES: Final = ("", "-wal", "-shm")
"""What follows the name of a database in the names of its files."""

_DAMAGE: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_CUT: Final = sqlite3.SQLITE_IOERR_SHORT_READ

SUSPECT: Final = ".suspect"
"""What follows the name of a database in the name of an empty file with which a reader reports damage to the writer."""


class UsageFiles:
    """The files of a folder. One process at a time writes, in one thread; any number may read at the same time."""

    shared: Final = False

    def __init__(self, folder: Path) -> None:
        """Nothing is opened before the first call."""
        self.folder = folder
        self._checked = time.monotonic()
        self._files: dict[str, tuple[int, sqlite3.Connection]] = {}

    def write(self, records: Iterable[Record]) -> None:
        """Write arrivals and ends, in any order, each any number of times.

        A damaged file is set aside. Raises `UnusableFile` for a full disk, for example; then write them again.
        """
        for month, arrivals, ends in by_month(records):
            self._in(month, partial(write, arrivals=arrivals, ends=ends))

    def months(self) -> list[str]:
        """Return the months that have a file, the oldest first. Raises `UnusableFile` for what is no folder."""
        try:
            names = [path.name for path in self.folder.iterdir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UnusableFile(f"usage: cannot use {self.folder}: {error.strerror}") from None
        matches = map(FILE_NAME.fullmatch, names)
        return sorted(match[1] for match in matches if match)

    @contextlib.contextmanager
    def opened(self, month: str) -> Iterator[File | None]:
        """Open a month's file for reading; None where there is none, or it has no tables yet. Raises `UnusableFile`."""
        path = path_of(self.folder, month)
        if not (path.exists() or path.is_symlink()):
            yield None
            return
        try:
            with named(path), contextlib.closing(connected(path)) as file:
                if ready := has_tables(file):
                    check_columns(file, path)
                    file.execute("BEGIN")
                yield file if ready else None
        except UnusableFile as error:
            if error.damaged:
                report(path)
            raise

    def missing(self, first: str, last: str) -> list[UnusableFile]:
        """Return an error for each file of these months that was damaged or lost."""
        return [lack(path) for path in files_aside(self.folder) if first <= path.name[len("usage-") :][:7] <= last]

    def version(self) -> str:
        """Return nothing: there is no server."""
        return ""

    def identity(self) -> str:
        """Return nothing: these files are those of the gateway that has the folder."""
        return ""

    def copied(self, place: str | None = None) -> str:
        """Return up to which cursor the log is copied elsewhere; with `place`, keep that."""
        position = self.folder / PLACE
        if place is not None:
            durable.write(position, place.encode())
        return position.read_bytes().decode(errors="replace") if position.exists() else ""

    @contextlib.contextmanager
    def alone(self, number: int) -> Iterator[bool]:
        """Yield True: no other gateway copies from these files."""
        yield True

    @staticmethod
    def now_ms() -> int:
        """Return the time by the clock of this machine."""
        return round(time.time() * 1000)

    def open_requests(self, before_ms: int, but: Iterable[str], limit: int) -> list[Record]:
        """Return requests that arrived before `before_ms` and have not ended, but for those of some gateways, the oldest first."""
        terms = (first_id(before_ms), msgspec.json.encode(sorted(but)).decode(), limit)
        pages = self._in_all(lambda file: [record_of(row) for row in file.execute(SELECT_OPEN, terms)])
        return [record for page in pages for record in page][:limit]

    def drop(self, month: str) -> None:
        """Delete the file of a month."""
        self._close(month)
        for suffix in (*SUFFIXES, SUSPECT):
            path_of(self.folder, month, suffix).unlink(missing_ok=True)

    def check(self) -> None:
        """Examine the files that readers reported and the files that are open here; set aside each that is damaged on the disk."""
        if time.monotonic() - self._checked < CHECK_S:
            return
        self._checked = time.monotonic()
        for month in self.months():
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
        for month in self.months():
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
            _aside(path).touch(mode=0o600)  # an empty one: that its requests are missing is said as for a damaged one
        durable.make_folder(self.folder)
        file = sqlite3.connect(path, isolation_level=None, timeout=5)
        with contextlib.ExitStack() as failed:
            failed.callback(file.close)
            if has_tables(file):
                check_columns(file, path)
            file.executescript(SCHEMA)
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


def by_month(records: Iterable[Record]) -> Iterator[tuple[str, list[Record], list[Record]]]:
    """Yield the arrivals and the ends of each month."""
    arrivals: defaultdict[str, list[Record]] = defaultdict(list)
    ends: defaultdict[str, list[Record]] = defaultdict(list)
    for record in records:
        (arrivals if record.outcome is None else ends)[month_of(record.id)].append(record)
    for month in sorted(arrivals.keys() | ends.keys()):
        yield month, arrivals[month], ends[month]


def path_of(folder: Path, month: str, suffix: str = "") -> Path:
    """Return the path of a month's file."""
    return folder / f"usage-{month}.sqlite{suffix}"


def month_before(month: str, count: int) -> str:
    """Return the month that is `count` months before one."""
    year, index = divmod(int(month[:4]) * 12 + int(month[5:]) - 1 - count, 12)
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


_OUTCOME: Final = COLUMNS.index("outcome")
_COST: Final = SUM_COLUMNS.index("cost_micros")
_group_of = attrgetter(*GROUP_COLUMNS)
_amounts_of = attrgetter(*SUM_COLUMNS)


def write(file: sqlite3.Connection, arrivals: Iterable[Record], ends: Iterable[Record]) -> None:
    """Write arrivals and ends of requests, each any number of times. An end closes a row once, but for a presumed one."""
    ended = ends_that_count(ends)
    opened = {record.id: record for record in arrivals if record.id not in ended}
    with _transaction(file):
        known = _known(file, [*opened, *ended])
        added = sorted((each for each in (*opened.values(), *ended.values()) if each.id not in known), key=_place_of)
        (last,) = file.execute(_LAST).fetchone()
        numbers = dict(zip((record.id for record in added), count(last + 1), strict=False))
        open_ = (None, Outcome.GATEWAY_CRASHED)
        closed = [record for record in ended.values() if record.id not in known or known[record.id][1] in open_]
        late = [record for record in closed if record.id in known]
        numbers |= {record.id: known[record.id][0] for record in late}
        replaced = [numbers[record.id] for record in late if known[record.id][1] is not None]
        presumed = [record_of(file.execute(SELECT_ONE, (number,)).fetchone()) for number in replaced]
        file.executemany(INSERT, ((numbers[record.id], *row_of(record)) for record in added))
        file.executemany(UPDATE, ((*row_of(record)[1:], numbers[record.id]) for record in late))
        file.executemany("INSERT INTO ends (number) VALUES (?)", ((numbers[record.id],) for record in closed))
        file.executemany(ADD_TO_DAY, [*sums_of(closed), *sums_of(presumed, -1)])
        file.executemany(ADD_TO_ROLLUP, [*rolled_up(closed), *rolled_up(presumed, -1)])


def ends_that_count(ends: Iterable[Record]) -> dict[str, Record]:
    """Return the end that counts of each request: the first one, or the first actual one where that is a presumed one."""
    found: dict[str, Record] = {}
    for record in ends:
        if record.id not in found or found[record.id].outcome == Outcome.GATEWAY_CRASHED:
            found[record.id] = record
    return found


def _known(file: sqlite3.Connection, ids: Sequence[str]) -> dict[str, Known]:
    """Return the number and the outcome of each of these requests that the file has."""
    found = file.execute(SELECT_KNOWN, (msgspec.json.encode(ids).decode(),))
    return {id: (number, outcome) for id, number, outcome in found}  # noqa: A001 - the field's name


def sums_of(ended: Iterable[Record], sign: int = 1) -> Iterator[tuple[Any, ...]]:
    """Yield the groups and the sums of requests that ended; with -1 for `sign`, what takes them out again."""
    groups: defaultdict[tuple[str, ...], list[Record]] = defaultdict(list)
    for record in ended:
        groups[(record.arrived_at[_DAY], *_group_of(record))].append(record)
    for group, records in groups.items():
        amounts = list(zip(*map(_amounts_of, records), strict=True))
        completed = sum(record.outcome == Outcome.COMPLETED for record in records)
        sums = (_number(sum(filter(None, column))) for column in amounts)
        yield (*group, *(sign * each for each in (len(records), completed, *sums, amounts[_COST].count(None))))


def _number(total: int) -> int | float:
    """Return a sum as SQLite adds it up: one that is no integer of 64 bits is rounded."""
    return total if -_LARGEST <= total <= _LARGEST else float(total)


def row_of(record: Record) -> list[Any]:
    """Return the row of a record, with the values of `COLUMNS`."""
    values = list(msgspec.structs.astuple(record))
    values[_OUTCOME] = record.outcome and record.outcome.value  # a subclass of `str` is bound slowly
    for index in JSON_INDICES:
        if (value := values[index]) or not (text := _EMPTY.get(type(value))):
            text = _encode(value).decode()
        values[index] = text
    return values


@contextlib.contextmanager
def _transaction(file: sqlite3.Connection) -> Iterator[None]:
    file.execute("BEGIN IMMEDIATE")
    try:
        yield
        file.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            file.execute("ROLLBACK")
        raise


def _type(column: str) -> str:
    return "INTEGER" if column in (*NUMBERS, *NUMBERS_OR_NONE) else "TEXT"


def _quoted(names: Iterable[str]) -> list[str]:
    return [f'"{name}"' for name in names]


def _names(names: Iterable[str]) -> str:
    return ", ".join(_quoted(names))


def _of_sums(table: str, groups: Sequence[str], sums: Sequence[str]) -> str:
    columns = [*(f"{name} TEXT" for name in groups), *(f"{name} INTEGER" for name in sums)]
    return (
        f"CREATE TABLE IF NOT EXISTS {table} ({', '.join(columns)}, PRIMARY KEY ({', '.join(groups)})) WITHOUT ROWID;"
    )


def _adding(table: str, groups: Sequence[str], sums: Sequence[str]) -> str:
    names = (*groups, *sums)
    added = ", ".join(f"{name} = {name} + excluded.{name}" for name in sums)
    return f"INSERT INTO {table} ({_names(names)}) VALUES ({', '.join('?' * len(names))}) ON CONFLICT DO UPDATE SET {added}"  # noqa: S608


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
CREATE INDEX IF NOT EXISTS requests_of_reference ON requests (reference, id) WHERE reference != '';
CREATE INDEX IF NOT EXISTS requests_of_completion ON requests (completion_id) WHERE completion_id != '';
CREATE INDEX IF NOT EXISTS requests_of_upstream ON requests (upstream_request_id) WHERE upstream_request_id != '';
{_of_sums("days", GROUPS, SUMS)}
{_of_sums("rollups", ROLLUP_GROUPS, ROLLUP_SUMS)}
CREATE TABLE IF NOT EXISTS ends (place INTEGER PRIMARY KEY, number INTEGER);
COMMIT;
"""

INSERT: Final = f"INSERT INTO requests (number, {_names(COLUMNS)}) VALUES (?, {', '.join('?' * len(COLUMNS))})"  # noqa: S608
UPDATE: Final = (
    f"UPDATE requests SET {', '.join(f'{name} = ?' for name in _quoted(_CHANGING_COLUMNS))} "  # noqa: S608
    "WHERE number = ?"
)
ADD_TO_DAY: Final = _adding("days", GROUPS, SUMS)
ADD_TO_ROLLUP: Final = _adding("rollups", ROLLUP_GROUPS, ROLLUP_SUMS)
SELECT_ONE: Final = f"SELECT {_names(COLUMNS)} FROM requests WHERE number = ?"  # noqa: S608 - only constant names
SELECT_OPEN: Final = (
    f"SELECT {_names(COLUMNS)} FROM requests WHERE outcome IS NULL AND id < ? "  # noqa: S608
    "AND gateway NOT IN (SELECT value FROM json_each(?)) ORDER BY id LIMIT ?"
)


def check_columns(file: sqlite3.Connection, path: Path) -> None:
    """Raise `UnusableFile` where the tables of a file have other columns than this version's."""
    tables = {"requests": {"number", *COLUMNS}, "days": {*GROUPS, *SUMS}, "rollups": {*ROLLUP_GROUPS, *ROLLUP_SUMS}}
    for table, names in tables.items():
        if {name for _, name, *_ in file.execute(f"PRAGMA table_info({table})")} != names:
            raise UnusableFile(
                f"{path} was written by another version of the gateway, and this one does not read it: start that version, or move "
                "the file to another folder"
            )


def check_files(folder: Path) -> None:
    """Raise `Misconfigured` where a month's file was written by another version of the gateway. Damaged files are passed over."""
    for month in UsageFiles(folder).months():
        path = path_of(folder, month)
        with contextlib.suppress(sqlite3.Error), contextlib.closing(connected(path)) as file:
            if has_tables(file):
                try:
                    check_columns(file, path)
                except UnusableFile as error:
                    raise Misconfigured(f"data: {error}") from None


def has_tables(file: sqlite3.Connection) -> bool:
    """Return whether a file has its tables yet."""
    return file.execute("SELECT 1 FROM sqlite_master WHERE name = 'requests'").fetchone() is not None


def record_of(row: Sequence[Any]) -> Record:
    """Return the record of a row of `COLUMNS`."""
    values = dict(zip(COLUMNS, row, strict=True))
    for name in JSON_COLUMNS:
        values[name] = msgspec.json.decode(values[name])
    return msgspec.convert(values, Record)


def look(path: Path) -> None:
    """Look for damage in a file: read its first page, its newest rows, and a random row."""
    with contextlib.closing(connected(path)) as file:
        if not has_tables(file):
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


def connected(path: Path) -> File:
    """Return a connection that only reads."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5, factory=File)


def _damaged(path: Path, reason: str) -> UnusableFile:
    return UnusableFile(f"{path} cannot be used: {reason}", damaged=True)


class FilesUnusable(StoreAway):
    """The files of the usage log cannot be read, and nothing else has what was asked for."""

    event = "usage_files_unusable"


class UnusableFile(GatewayError):
    """A file of the usage log, or its database, cannot be used; the message names it. `damaged`: its content is at fault."""

    def __init__(self, message: str, *, damaged: bool = False) -> None:
        super().__init__(message)
        self.damaged = damaged


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """Turn what SQLite and the decoding of a row raise into `UnusableFile`."""
    try:
        yield
    except sqlite3.Error as error:
        in_the_way = path.is_dir() or (path.is_symlink() and not path.exists())
        code = getattr(error, "sqlite_errorcode", 0)
        damaged = in_the_way or code & 0xFF in _DAMAGE or code == _CUT
        raise UnusableFile(f"{path} cannot be used: {error}", damaged=damaged) from None
    except (msgspec.MsgspecError, TypeError) as error:
        raise UnusableFile(f"{path} cannot be used: a row is unreadable: {error}") from None


def report(path: Path) -> None:
    """Report a database that a reader found damaged to its writer, which has its pages in memory and may not notice."""
    with contextlib.suppress(OSError):
        path.with_name(path.name + SUSPECT).touch()


def set_aside(path: Path) -> Path:
    """Rename a damaged database, and what belongs to it; return its path from now on. Raises `OSError`."""
    aside = _aside(path)
    for suffix in SUFFIXES:
        file = path.with_name(path.name + suffix)
        if file.is_symlink() or file.exists():
            file.rename(aside.with_name(aside.name + suffix))
    durable.flush_folder(path.parent)
    return aside


def _aside(path: Path) -> Path:
    return path.with_name(f"{path.name}{MARK}{uuid7()}")


def files_aside(folder: Path, month: str = "*") -> list[Path]:
    """Return the databases that were set aside, of one month or of all, the oldest month first."""
    return sorted(path for path in folder.glob(f"usage-{month}.sqlite{MARK}*") if not path.name.endswith(SUFFIXES[1:]))


def lack(aside: Path) -> UnusableFile:
    """Return the error for the requests that are in a file which was set aside."""
    return UnusableFile(
        f"{aside} was damaged and set aside, or is empty in place of a file that was removed: its requests are missing here. "
        f"What can be read of it is printed by `sqlite3 {aside.name} .recover`; then delete it"
    )
