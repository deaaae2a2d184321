"""The comparison of an upstream's bill with the usage log: `gateway reconcile`.

**The bill** is a CSV file: the cost of each line, and the id of the request that it is for. It is UTF-8 with commas between its
columns and a point before decimals. It is read line by line, and every line that cannot be read is named. Amounts become whole
billionths of the currency unit.

**The join** puts the lines of a bill beside the calls in the usage log, by the ids that the upstream gave. Both sides are kept in a
temporary file, so that memory does not grow with them. Lines of a bill with one id are one amount: some upstreams bill input and
output apart. An id that several calls have joins nothing. A call of the usage log has the names that a bill may have for it, and
its expected cost.
"""

from __future__ import annotations

import csv
import re
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from gateway.base.errors import GatewayError, Misconfigured, cannot_use
from gateway.base.text import printable
from gateway.usage import queries
from gateway.usage.database import UnusableFile
from gateway.usage.home import Home
from gateway.usage.record import AttemptRecord

if TYPE_CHECKING:
    from _csv import Reader

MAX_ID: Final = 128
"""Ids are compared up to this length; a record has no more of them."""
MAX_WRONG: Final = 10
"""Lines that an error names."""
NANOS: Final = 1_000_000_000
"""Billionths in one unit of the currency."""
LARGEST: Final = 1_000_000
"""The largest amount of one line that is believed."""
MAX_SHOWN: Final = 60
AMOUNT: Final = re.compile(r"-?[0-9]{1,12}(?:\.[0-9]{1,18})?(?:[eE][+-]?[0-9]{1,3})?")


class BillLine(msgspec.Struct, frozen=True):
    """One line of a bill. `id` is empty where it names no request; `cost` is in billionths of the currency unit."""

    number: int
    id: str
    cost: int
    day: str
    model: str


class Columns(msgspec.Struct, frozen=True):
    """The names of the columns. `day` and `model` are empty where the bill has none, or they do not matter."""

    id: str
    cost: str
    day: str = ""
    model: str = ""


def read(path: Path, columns: Columns) -> Iterator[BillLine]:
    """Yield the lines of a bill.

    Raises `Misconfigured` for a file that is no such bill; it has several lines where several lines of the bill are wrong.
    """
    wrong = list[str]()
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            indices = _indices(path, reader, columns)
            for row in reader:
                if not any(row):
                    continue
                try:
                    line = _line(reader.line_num, row, indices)
                except ValueError as error:
                    wrong.append(f"{path}:{reader.line_num}: {error}")
                    if len(wrong) == MAX_WRONG:
                        break
                    continue
                yield line
    except OSError as error:
        raise cannot_use(str(path), error, cure="name a readable CSV file") from None
    except UnicodeError:
        raise Misconfigured(f"{path}: not UTF-8; convert it, as with `iconv -f cp1252 -t utf-8`") from None
    except csv.Error as error:
        raise Misconfigured(f"{path}: not valid CSV: {error}; look for a quote that is not closed") from None
    if wrong:
        more = "\nand perhaps more: only the first are shown" if len(wrong) == MAX_WRONG else ""
        raise Misconfigured("\n".join(wrong) + more)


def _indices(path: Path, reader: Reader, columns: Columns) -> dict[str, int]:
    """Read the header. Return the index of each column that has a name, by its option."""
    header = next(([cell.strip() for cell in row] for row in reader if any(row)), None)
    if header is None:
        raise Misconfigured(f"{path}: empty; give a CSV file with a header")
    indices = {}
    for option in columns.__struct_fields__:
        if not (name := getattr(columns, option)):
            continue
        if name not in header:
            known = ", ".join(shown(cell) for cell in header if cell) or "none"
            text = f"{path}: there is no column `{name}`; name yours with --{option}. It has: {known}"
            raise Misconfigured(text + (" (commas must separate columns)" if len(header) == 1 else ""))
        if header.count(name) > 1:
            raise Misconfigured(f"{path}: the column `{name}` is there {header.count(name)} times; rename one")
        indices[option] = header.index(name)
    return indices


def _line(number: int, row: Sequence[str], indices: Mapping[str, int]) -> BillLine:
    """Return a line. Raises `ValueError`, whose text says what is wrong."""
    if len(row) <= max(indices.values()):
        raise ValueError(f"it has {len(row)} fields, fewer than the header: is a quote or a separator missing?")
    fields = {option: row[index].strip() for option, index in indices.items()}
    if not fields["id"].isprintable():
        raise ValueError(f"`{shown(fields['id'])}` is not an id")
    return BillLine(
        number, fields["id"][:MAX_ID], amount(fields["cost"]), _day(fields.get("day", "")), fields.get("model", "")
    )


def _day(text: str) -> str:
    """Return the day of a day or a time in ISO 8601."""
    try:
        return date.fromisoformat(text[:10]).isoformat() if text else ""
    except ValueError:
        raise ValueError(
            f"`{shown(text)}` is not a day such as 2026-11-21: leave out --day, or convert the column"
        ) from None


def amount(text: str) -> int:
    """Return an amount in billionths, rounded. Raises `ValueError`, whose text says what to do."""
    if not text:
        raise ValueError("it has no cost")
    if not AMOUNT.fullmatch(text):
        raise ValueError(
            f"`{shown(text)}` is not an amount such as 0.0012: a point separates decimals, and nothing thousands; "
            "leave out the currency"
        )
    number = Decimal(text)
    if abs(number) > LARGEST:
        raise ValueError(f"`{shown(text)}` is more than {LARGEST}: is it the cost of one request?")
    return int((number * NANOS).to_integral_value())


def shown(text: str) -> str:
    """Return a text of the bill as an error shows it: printable, and not long."""
    return printable(text[:MAX_SHOWN]) + "..." * (len(text) > MAX_SHOWN)


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

    def __exit__(self, *_: object) -> None:
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
