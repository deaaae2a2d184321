"""The lines of a bill beside the calls in the usage log, joined by the ids that the upstream gave.

Both sides are kept in a temporary file, so that memory does not grow with them. Lines of a bill with one id are one amount: some
upstreams bill input and output apart. An id that several calls have joins nothing.

A call of the usage log has the names that a bill may have for it, and its expected cost.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from gateway.base.errors import GatewayError
from gateway.tools.reconcile.bill import BillLine
from gateway.usage import queries
from gateway.usage.database import UnusableFile
from gateway.usage.home import Home
from gateway.usage.record import AttemptRecord

BATCH: Final = 10_000
ALWAYS: Final = "9999-12-31"
CACHE_KIB: Final = 64 * 1024

TABLES: Final = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE lines (id TEXT, cost INTEGER, number INTEGER, day TEXT, model TEXT);
CREATE TABLE calls (
    call INTEGER PRIMARY KEY, request TEXT, day TEXT, model TEXT, channel TEXT, name TEXT, cost INTEGER
);
CREATE TABLE names (id TEXT, call INTEGER);
"""
JOIN: Final = """
CREATE TABLE billed AS
    SELECT id, sum(cost) AS cost, count(*) AS lines, min(number) AS number, min(day) AS day, min(model) AS model
    FROM lines WHERE id != '' GROUP BY id;
CREATE UNIQUE INDEX billed_id ON billed (id);
CREATE TABLE called AS SELECT id, min(call) AS call, count(*) AS calls FROM names GROUP BY id;
CREATE UNIQUE INDEX called_id ON called (id);
CREATE TABLE pairs AS
    SELECT call, min(billed.id) AS id, sum(billed.cost) AS billed, sum(lines) AS lines, min(number) AS number
    FROM called JOIN billed ON billed.id = called.id WHERE calls = 1 GROUP BY call;
CREATE UNIQUE INDEX pairs_call ON pairs (call);
"""
SIDES: Final = """
CREATE TABLE sides AS SELECT *, beyond(billed, cost) AS beyond FROM (
    SELECT pairs.id, request, day, model, channel, billed, lines, number, cost, 1 AS called
        FROM pairs JOIN calls USING (call)
    UNION ALL
    SELECT id, '', day, model, '', cost, lines, number, 0, 0
        FROM billed WHERE id NOT IN (SELECT id FROM called WHERE calls = 1)
    UNION ALL
    SELECT '', '', day, model, '', cost, 1, number, 0, 0 FROM lines WHERE id = ''
    UNION ALL
    SELECT name, request, day, model, channel, 0, 0, 0, cost, 1
        FROM calls WHERE call NOT IN (SELECT call FROM pairs) AND cost IS NOT 0
        AND day BETWEEN ? AND ? AND channel IN (SELECT value FROM json_each(?))
)
"""
"""`sides` has a row for each billed id and each call: `lines` is 0 where it is not on the bill, `called` where not in the log.

`beyond`: the amounts differ by more than the tolerance.
"""

KINDS: Final = {
    "differs": "lines AND called AND beyond",
    "only_in_bill": "NOT called AND beyond",
    "only_in_log": "NOT lines AND (cost IS NULL OR beyond)",
    "billed_twice": "lines > 1",
}
"""What is found, and by which condition. Where a cost is not known, a call differs from nothing."""

COLUMNS: Final = ("id", "arrived_at", "model", "channel", "upstream_request_id", "attempts", "upstream_cost_micros")
NANOS_IN_A_MICRO: Final = 1000

_attempts: Final = msgspec.json.Decoder(list[AttemptRecord]).decode


class Side(msgspec.Struct, frozen=True):
    """A billed id and its call, or one of both. Amounts in billionths; `expected` is None where no cost is known."""

    id: str
    request: str
    day: str
    model: str
    channel: str
    billed: int
    lines: int
    number: int
    expected: int | None


class Sum(msgspec.Struct, frozen=True):
    """The sums of a day and a model. `unknown` calls have no known cost, and `expected` lacks them."""

    day: str
    model: str
    lines: int
    calls: int
    unknown: int
    billed: int
    expected: int


class Join:
    """The two sides of one bill, in a temporary file that is deleted at the end."""

    def __init__(self, beyond: Callable[[int, int], bool]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="gateway-reconcile-")
        self._file = sqlite3.connect(Path(self._folder.name) / "join.sqlite", isolation_level=None)
        self._file.create_function(
            "beyond", 2, lambda billed, cost: cost is not None and beyond(billed, cost), deterministic=True
        )
        self._file.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        self._file.executescript(TABLES)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._folder.cleanup()

    def add_lines(self, lines: Iterable[BillLine]) -> None:
        """Add the lines of the bill."""
        rows = ((line.id, line.cost, line.number, line.day, line.model) for line in lines)
        self._insert("INSERT INTO lines (id, cost, number, day, model) VALUES (?, ?, ?, ?, ?)", rows)

    def add_calls(self, calls: Iterable[Call]) -> None:
        """Add calls of the usage log."""
        number = self._value("SELECT coalesce(max(call), 0) FROM calls")
        rows: list[Sequence[Any]] = []
        names: list[Sequence[Any]] = []
        for call in calls:
            number += 1
            name = call.names[0] if call.names else ""
            rows.append((number, call.request, call.day, call.model, call.channel, name, call.cost))
            names += [(each, number) for each in call.names]
            if len(rows) == BATCH:
                self._insert_calls(rows, names)
        self._insert_calls(rows, names)

    def days(self) -> tuple[str, str]:
        """Return the first and the last day that the bill names; empty where it names none."""
        found = self._file.execute("SELECT min(day), max(day) FROM lines WHERE day != ''").fetchone()
        return found[0] or "", found[1] or ""

    def join(self, first: str, last: str, channels: Sequence[str]) -> tuple[str, str, list[str]]:
        """Join the sides. Return the period and the channels whose calls must be on the bill.

        Where they are not given, these are the days that the bill names, or those of its calls, and the channels of its calls.
        """
        with _named():
            self._file.executescript(JOIN)
            pairs = self._file.execute("SELECT DISTINCT channel, day FROM pairs JOIN calls USING (call)").fetchall()
            days, named = sorted({day for _, day in pairs}), self.days()
            first = first or named[0] or (days[0] if days else "")
            last = last or named[1] or (days[-1] if days else ALWAYS)
            chosen = list(channels) or sorted({channel for channel, _ in pairs})
            self._file.execute(SIDES, (first, last, msgspec.json.encode(chosen).decode()))
        return first, last, chosen

    def found(self, kind: str) -> Iterator[Side]:
        """Yield what was found of one of `KINDS`, the largest amounts first."""
        with _named():
            for row in self._file.execute(
                "SELECT id, request, day, model, channel, billed, lines, number, cost FROM sides "  # noqa: S608
                f"WHERE {KINDS[kind]} ORDER BY abs(billed - coalesce(cost, 0)) DESC, day, id"
            ):
                yield Side(*row)

    def total(self, kind: str) -> tuple[int, int]:
        """Return how many of one of `KINDS` were found, and the sum of billed less expected amounts."""
        with _named():
            count, amount = self._file.execute(
                f"SELECT count(*), sum(billed - coalesce(cost, 0)) FROM sides WHERE {KINDS[kind]}"  # noqa: S608
            ).fetchone()
        return count, amount or 0

    def sums(self) -> Iterator[Sum]:
        """Yield the sums of each day and model, in order."""
        with _named():
            for row in self._file.execute(
                "SELECT day, model, sum(lines), sum(called), sum(called AND cost IS NULL), "
                "sum(billed), sum(coalesce(cost, 0)) FROM sides GROUP BY day, model ORDER BY day, model"
            ):
                yield Sum(*row)

    def count(self, what: str) -> int:
        """Return how many there are: `matched` calls, `agree`, `unknown` costs, `nameless` calls, `shared` ids."""
        conditions = {
            "matched": "sides WHERE lines AND called",
            "agree": "sides WHERE lines AND called AND cost IS NOT NULL AND NOT beyond",
            "unknown": "sides WHERE lines AND called AND cost IS NULL",
            "nameless": "sides WHERE NOT lines AND id = ''",
            "shared": "called WHERE calls > 1",
        }
        return self._value(f"SELECT count(*) FROM {conditions[what]}")  # noqa: S608

    def _insert_calls(self, rows: list[Sequence[Any]], names: list[Sequence[Any]]) -> None:
        self._insert("INSERT INTO calls VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
        self._insert("INSERT INTO names VALUES (?, ?)", names)
        rows.clear()
        names.clear()

    def _insert(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        self._file.execute("BEGIN")
        self._file.executemany(statement, rows)
        self._file.execute("COMMIT")

    def _value(self, statement: str) -> int:
        return int(self._file.execute(statement).fetchone()[0])


@contextmanager
def _named() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise GatewayError(f"the bill cannot be joined: {error}; is there room in {tempfile.gettempdir()}?") from None


class Call(msgspec.Struct, frozen=True):
    """One call of an upstream. `names` are the ids that the upstream gave it, `cost` is in billionths, None where not known."""

    request: str
    day: str
    model: str
    channel: str
    names: tuple[str, ...]
    cost: int | None


def logged(home: Home, *, since_ms: int | None, until_ms: int | None, unusable: list[UnusableFile]) -> Iterator[Call]:
    """Yield the calls of the usage log, in the order in which the requests arrived. Blocks."""
    rows = queries.rows(home, COLUMNS, since_ms=since_ms, until_ms=until_ms, unusable=unusable)
    for *fields, attempts, stated in rows:
        if attempts is not None and attempts != "[]":
            yield from _calls(fields, _attempts(attempts), stated)


def _calls(fields: Sequence[Any], attempts: Sequence[AttemptRecord], stated: int | None) -> Iterator[Call]:
    request, arrived_at, model, channel, upstream_request_id = fields
    day, last = arrived_at[: len("2026-11-22")], attempts[-1] if attempts else None
    for attempt in attempts:
        own, completion, micros = attempt.upstream_request_id, attempt.completion_id, attempt.cost_micros
        if attempt is last:
            own, micros = own or upstream_request_id, stated if micros is None else micros
        names = (own, completion) if own and completion and own != completion else (own or completion,)
        cost = None if micros is None else micros * NANOS_IN_A_MICRO
        yield Call(request, day, model, attempt.channel or channel, names if names[0] else (), cost)
