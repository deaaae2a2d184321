"""The usage log in PostgreSQL, shared by several gateways: each month has tables of requests, sums by day, roll-ups and ends.

1. **A row is one request, however often, in whatever order and by how many sinks its arrival and its end are written.** An end
   closes a row once; only the presumed end (`gateway_crashed`) is replaced by an actual end that comes late.
2. **The sums by day and the roll-ups always equal the sum of the closed rows.** `write` changes all in one transaction.
3. **Ends become visible in the order of their places**: a transaction takes its places from one row, which it locks until it has
   ended. It does so after its rows are merged, so that sinks wait for one another only while they add up sums.
4. **No two transactions wait for one another**: rows are merged in the order of their ids, then the places are locked, then sums
   are changed.
5. **The password is in no text**: errors have the server's words, without the URL.

The home has an id, so that two gateways of a store notice where they have two databases.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import psycopg
from psycopg.adapt import Buffer, Loader
from psycopg.errors import UndefinedTable

from gateway.base.errors import Misconfigured
from gateway.base.ids import first_id
from gateway.domain.exchange import Outcome
from gateway.usage.database import (
    COLUMNS,
    GROUPS,
    SUMS,
    UnusableFile,
    by_month,
    ends_that_count,
    record_of,
    row_of,
    sums_of,
)
from gateway.usage.record import NUMBERS, NUMBERS_OR_NONE, Record
from gateway.usage.rollups import ROLLUP_GROUPS, ROLLUP_SUMS, rolled_up

SCHEMA: Final = "sluicegate"
OPTIONS: Final[dict[str, Any]] = {
    "connect_timeout": 5,
    "application_name": "sluicegate",
    "keepalives_idle": 5,
    "tcp_user_timeout": 10_000,
    "client_encoding": "UTF8",
}
READ: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
ROWS: Final = 2000
"""Rows of a long query that are fetched at once."""
LOCK: Final = 0x736C7569
"""The number of the advisory lock under which tables are made and dropped."""

OLDEST: Final = 14
MOST_IDLE: Final = 2
"""Connections of a process that are kept."""

Connection = psycopg.Connection[tuple[Any, ...]]
Cursor = psycopg.Cursor[tuple[Any, ...]]


class Whole(Loader):
    """Loads sums, which are `numeric`, as integers."""

    def load(self, data: Buffer) -> int:
        return int(bytes(data))


class Tables:
    """The tables of a month, as they are at one moment. Each request has its `id` there."""

    key = "id"

    def __init__(self, connection: Connection, month: str) -> None:
        self._connection = connection
        self.requests, self.days, self.ends, self.rollups = (
            f"{SCHEMA}.{name}_{month.replace('-', '_')}" for name in _NAMES
        )

    def execute(self, text: str, values: Sequence[Any] = ()) -> Any:
        """Run a query."""
        return self._connection.execute(_translated(text), values)

    def stream(self, text: str, values: Sequence[Any]) -> Iterator[Sequence[Any]]:
        """Yield the rows of a query, few at a time."""
        with self._connection.cursor(name="rows") as cursor:
            cursor.itersize = ROWS
            yield from cursor.execute(_translated(text), values)


class Postgres:
    """A database. Any number of threads may use it. `folder` is what this gateway keeps itself, beside the database."""

    shared: Final = True

    def __init__(self, url: str, folder: Path) -> None:
        self.folder = folder
        self._url = url
        self._idle: deque[Connection] = deque()
        self._known: set[str] = set()

    def close(self) -> None:
        """Close the connections that are not used."""
        while self._idle:
            self._idle.popleft().close()

    def version(self) -> str:
        """Return the server's version. Raises `Misconfigured` for one that is too old, and `UnusableFile`."""
        with (
            _named(),
            self._ran("SELECT current_setting('server_version'), current_setting('server_version_num')") as found,
        ):
            text, number = found.fetchone() or ("", 0)
        if int(number) < OLDEST * 10_000:
            raise Misconfigured(f"usage.database is PostgreSQL {text}: {OLDEST} or later is needed")
        return str(text)

    def identity(self) -> str:
        """Return the id of the home; make its tables where they are missing. Raises `Misconfigured` and `UnusableFile`."""
        with _named():
            try:
                found = self._home()
            except UndefinedTable:
                self.version()
                self._make()
                found = self._home()
        if found[1] != _ALL:
            raise Misconfigured(
                "usage.database: its tables were written by another version of the gateway, and this one does not read them: start "
                "that version, or name another database"
            )
        return str(found[0])

    def now_ms(self) -> int:
        """Return the time by the clock of the database. Raises `UnusableFile`."""
        with _named(), self._ran("SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint") as found:
            return int((found.fetchone() or (0,))[0])

    def months(self) -> list[str]:
        """Return the months that have tables, the oldest first. Raises `UnusableFile`."""
        text = f"SELECT month FROM {SCHEMA}.months ORDER BY month"
        with _named(), contextlib.suppress(UndefinedTable), self._ran(text) as found:
            return [month for (month,) in found]
        return []

    @contextlib.contextmanager
    def opened(self, month: str) -> Iterator[Tables | None]:
        """Open the tables of a month for reading, as they are now; None where there are none. Raises `UnusableFile`."""
        if month not in self.months():
            yield None
            return
        with _named(), self._transaction(READ) as connection:
            yield Tables(connection, month)

    def write(self, records: Iterable[Record]) -> None:
        """Write arrivals and ends, in any order, each any number of times. Raises `UnusableFile`; then write them again."""
        with _named():
            for month, arrivals, ends in by_month(records):
                if month not in self._known:
                    self._make_month(month)
                try:
                    with self._transaction("BEGIN") as connection:
                        _write(Tables(connection, month), connection, arrivals, ends)
                except UndefinedTable:
                    self._known.discard(month)  # another gateway has dropped it
                    raise

    def open_requests(self, before_ms: int, but: Iterable[str], limit: int) -> list[Record]:
        """Return requests that arrived before `before_ms` and have not ended, but for those of some gateways, the oldest first."""
        found: list[Record] = []
        for month in self.months():
            with self.opened(month) as tables:
                if tables is not None:
                    text = (
                        f"SELECT {_LIST} FROM {tables.requests} WHERE outcome IS NULL AND id < ? "
                        "AND NOT gateway = ANY(?) ORDER BY id LIMIT ?"
                    )
                    rows = tables.execute(text, (first_id(before_ms), sorted(but), limit - len(found)))
                    found += map(record_of, rows)
        return found

    def drop(self, month: str) -> None:
        """Drop the tables of a month. Raises `UnusableFile`."""
        with _named(), self._transaction("BEGIN") as connection:
            connection.execute("SET LOCAL lock_timeout = '5s'")  # somebody may read it for long
            _lock(connection)
            connection.execute(f"DELETE FROM {SCHEMA}.months WHERE month = %s", (month,))
            _make_view(connection)
            tables = Tables(connection, month)
            for name in (tables.requests, tables.days, tables.ends, tables.rollups):
                connection.execute(f"DROP TABLE IF EXISTS {name}")
        self._known.discard(month)

    def missing(self, first: str, last: str) -> list[UnusableFile]:
        """Return nothing: the server says what it cannot read."""
        return []

    def check(self) -> None:
        """Do nothing: the server looks after its files."""

    def copied(self, place: str | None = None) -> str:
        """Return up to which cursor the log is copied elsewhere; with `place`, keep that. Raises `UnusableFile`."""
        text = f"UPDATE {SCHEMA}.home SET copied = coalesce(%s, copied) RETURNING copied"
        with _named(), self._ran(text, (place,)) as found:
            return str((found.fetchone() or ("",))[0])

    @contextlib.contextmanager
    def alone(self, number: int) -> Iterator[bool]:
        """Hold a lock of the database while the body runs, or yield False where another gateway holds it."""
        with _named(), self._transaction("BEGIN") as connection:
            found = connection.execute("SELECT pg_try_advisory_xact_lock(%s)", (number,)).fetchone()
            yield bool(found and found[0])

    @contextlib.contextmanager
    def _transaction(self, begin: str) -> Iterator[Connection]:
        with self._ran(begin) as cursor:
            yield cursor.connection
            cursor.connection.execute("COMMIT")

    @contextlib.contextmanager
    def _ran(self, first: str, values: Sequence[Any] | None = None) -> Iterator[Cursor]:
        """Run a command on an idle connection, or on a new one where the server closed these; it is idle again after the body."""
        cursor = None
        with contextlib.suppress(IndexError):
            while cursor is None:
                connection = self._idle.pop()
                try:
                    cursor = connection.execute(first, values)
                except psycopg.OperationalError:
                    connection.close()
                except psycopg.Error:
                    connection.close()
                    raise
        if cursor is None:
            connection = psycopg.connect(self._url, autocommit=True, prepare_threshold=None, **OPTIONS)
            connection.adapters.register_loader("numeric", Whole)
        try:
            yield cursor or connection.execute(first, values)
        except BaseException:
            connection.close()
            raise
        if len(self._idle) < MOST_IDLE:
            self._idle.append(connection)
        else:
            connection.close()

    def _home(self) -> tuple[Any, ...]:
        with self._ran(f"SELECT id, columns FROM {SCHEMA}.home") as found:
            return found.fetchone() or ("", "")

    def _make(self) -> None:
        with self._transaction("BEGIN") as connection:
            _lock(connection)
            connection.execute(_HOME)
            terms = (uuid4().hex, _ALL)
            text = f"INSERT INTO {SCHEMA}.home (one, id, columns) VALUES (1, %s, %s) ON CONFLICT DO NOTHING"
            connection.execute(text, terms)

    def _make_month(self, month: str) -> None:
        self.identity()
        if month not in self.months():
            with self._transaction("BEGIN") as connection:
                _lock(connection)
                connection.execute(_of_month(Tables(connection, month)))
                text = f"INSERT INTO {SCHEMA}.months (month) VALUES (%s) ON CONFLICT DO NOTHING"
                connection.execute(text, (month,))
                _make_view(connection)
        self._known.add(month)


@contextlib.contextmanager
def _named() -> Iterator[None]:
    """Turn what the driver raises into `UnusableFile`. Its words never have the URL, but where that cannot be read."""
    try:
        yield
    except psycopg.Error as error:
        raise UnusableFile(f"usage.database cannot be used: {_words(error)}") from None


def _words(error: psycopg.Error) -> str:
    """Return the server's first line. That of a URL which cannot be read may have parts of it."""
    if error.diag.message_primary:
        return error.diag.message_primary
    text = str(error).partition("\n")[0]
    return text if isinstance(error, psycopg.OperationalError) else type(error).__name__


def _translated(text: str) -> str:
    """Return a query that is written for SQLite as PostgreSQL takes it: with its marks, and a cast where JSON is read."""
    return (
        text.replace("?", "%s")
        .replace('"tags" ->>', '"tags"::json ->>')
        .replace('"attempts" ->', '"attempts"::json ->')
    )


def _lock(connection: Connection) -> None:
    connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))


def _write(tables: Tables, connection: Connection, arrivals: Iterable[Record], ends: Iterable[Record]) -> None:
    """Write arrivals and ends of requests of a month."""
    ended = ends_that_count(ends)
    rows = {record.id: record for record in arrivals} | ended
    _copy(connection, "incoming", _INCOMING, COLUMNS, map(_storable, rows.values()))
    text = _MERGE.format(requests=tables.requests)
    closed = {id_ for (id_,) in connection.execute(text)}
    late = [record.id for record in ended.values() if record.id not in closed and record.outcome != _PRESUMED]
    presumed = _replace(tables, connection, late) if late else []
    now = [*(ended[id_] for id_ in ended if id_ in closed), *(ended[record.id] for record in presumed)]
    if not now:
        return
    (place,) = tables.execute(
        f"UPDATE {SCHEMA}.home SET place = place + ? RETURNING place", (len(now),)
    ).fetchone() or (0,)
    with connection.cursor().copy(f"COPY {tables.ends} (place, id) FROM STDIN") as copy:
        for number, record in enumerate(now, place - len(now) + 1):
            copy.write_row((number, record.id))
    _add(connection, tables.days, GROUPS, SUMS, [*sums_of(now), *sums_of(presumed, -1)])
    _add(connection, tables.rollups, ROLLUP_GROUPS, ROLLUP_SUMS, [*rolled_up(now), *rolled_up(presumed, -1)])


def _replace(tables: Tables, connection: Connection, late: list[str]) -> list[Record]:
    """Replace presumed ends by actual ones; return the presumed ones."""
    text = f"SELECT {_LIST} FROM {tables.requests} WHERE id = ANY(?) AND outcome = ? ORDER BY id FOR UPDATE"
    presumed = list(map(record_of, tables.execute(text, (late, _PRESUMED)).fetchall()))
    if presumed:
        text = (
            f"UPDATE {tables.requests} AS kept SET ({_LIST}) = ({_list('incoming.')}) FROM incoming "
            "WHERE kept.id = incoming.id AND kept.id = ANY(?)"
        )
        tables.execute(text, ([record.id for record in presumed],))
    return presumed


def _copy(connection: Connection, name: str, columns: str, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Fill a temporary table, which is empty again after the transaction."""
    connection.execute(f"CREATE TEMPORARY TABLE IF NOT EXISTS {name} ({columns}) ON COMMIT DELETE ROWS")
    with connection.cursor().copy(f"COPY {name} ({_quoted(names)}) FROM STDIN") as copy:
        for row in rows:
            copy.write_row(row)


def _add(
    connection: Connection, table: str, groups: Sequence[str], sums: Sequence[str], rows: Iterable[Sequence[Any]]
) -> None:
    """Add to sums, in the order of their groups."""
    incoming = f"added_to_{table.partition('.')[2].partition('_')[0]}"
    _copy(connection, incoming, _summed(groups, sums), (*groups, *sums), rows)
    connection.execute(
        f"INSERT INTO {table} AS kept ({_quoted((*groups, *sums))}) SELECT {_quoted(groups)}, "
        f"{', '.join(f'sum({name})' for name in sums)} FROM {incoming} GROUP BY {_quoted(groups)} ORDER BY {_quoted(groups)} "
        f"ON CONFLICT ({_quoted(groups)}) DO UPDATE SET {', '.join(f'{name} = kept.{name} + excluded.{name}' for name in sums)}"
    )


def _storable(record: Record) -> list[Any]:
    """Return the row of a record. PostgreSQL stores no zero characters."""
    return [
        value.replace("\0", "\ufffd") if isinstance(value, str) and "\0" in value else value for value in row_of(record)
    ]


def _make_view(connection: Connection) -> None:
    """Make the view `requests`, which has all months, for people who read the database."""
    months = connection.execute(f"SELECT month FROM {SCHEMA}.months ORDER BY month").fetchall()
    parts = (f"SELECT {_LIST} FROM {Tables(connection, month).requests}" for (month,) in months)
    connection.execute(f"DROP VIEW IF EXISTS {SCHEMA}.requests")
    if months:
        connection.execute(f"CREATE VIEW {SCHEMA}.requests AS {' UNION ALL '.join(parts)}")


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _list(table: str) -> str:
    return ", ".join(f'{table}"{name}"' for name in COLUMNS)


def _type(column: str) -> str:
    return "bigint" if column in (*NUMBERS, *NUMBERS_OR_NONE) else 'text COLLATE "C"'


def _summed(groups: Sequence[str], sums: Sequence[str]) -> str:
    columns = [*(f'"{name}" text COLLATE "C"' for name in groups), *(f'"{name}" numeric NOT NULL' for name in sums)]
    return ", ".join(columns)


_NAMES: Final = ("requests", "days", "ends", "rollups")
_ALL: Final = ",".join((*COLUMNS, *ROLLUP_SUMS))
"""By which a home of another version is told."""
_PRESUMED: Final = Outcome.GATEWAY_CRASHED.value
_LIST: Final = _quoted(COLUMNS)
_INCOMING: Final = ", ".join(f'"{name}" {_type(name)}' for name in COLUMNS)
_HOME: Final = f"""
CREATE SCHEMA IF NOT EXISTS {SCHEMA};
CREATE TABLE IF NOT EXISTS {SCHEMA}.home (
    one integer PRIMARY KEY, id text NOT NULL, columns text NOT NULL, place bigint NOT NULL DEFAULT 0,
    copied text NOT NULL DEFAULT ''
);
CREATE TABLE IF NOT EXISTS {SCHEMA}.months (month text COLLATE "C" PRIMARY KEY);
"""
_MERGE: Final = (
    f"WITH merged AS (INSERT INTO {{requests}} AS kept ({_LIST}) SELECT {_LIST} FROM incoming ORDER BY id "
    f"ON CONFLICT (id) DO UPDATE SET ({_LIST}) = ({_list('excluded.')}) "
    "WHERE kept.outcome IS NULL AND excluded.outcome IS NOT NULL RETURNING id, outcome) "
    "SELECT id FROM merged WHERE outcome IS NOT NULL"
)
"""Write rows; return the ids of those that it closed."""


def _of_month(tables: Tables) -> str:
    """Return the statements that make the tables of a month."""
    name = tables.requests.partition(".")[2]
    return f"""
CREATE TABLE IF NOT EXISTS {tables.requests} ({_INCOMING}, PRIMARY KEY (id));
CREATE INDEX IF NOT EXISTS {name}_of_account ON {tables.requests} (account, id);
CREATE INDEX IF NOT EXISTS {name}_open ON {tables.requests} (id) WHERE outcome IS NULL;
CREATE INDEX IF NOT EXISTS {name}_of_reference ON {tables.requests} (reference, id) WHERE reference != '';
CREATE INDEX IF NOT EXISTS {name}_of_completion ON {tables.requests} (completion_id) WHERE completion_id != '';
CREATE INDEX IF NOT EXISTS {name}_of_upstream ON {tables.requests} (upstream_request_id) WHERE upstream_request_id != '';
CREATE TABLE IF NOT EXISTS {tables.days} ({_summed(GROUPS, SUMS)}, PRIMARY KEY ({_quoted(GROUPS)}));
CREATE TABLE IF NOT EXISTS {tables.rollups} ({_summed(ROLLUP_GROUPS, ROLLUP_SUMS)}, PRIMARY KEY ({_quoted(ROLLUP_GROUPS)}));
CREATE TABLE IF NOT EXISTS {tables.ends} (place bigint PRIMARY KEY, id text COLLATE "C" NOT NULL);
"""
