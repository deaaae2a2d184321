"""The tables of a month's file, and the addition of the columns that a file of an earlier version lacks.

Sums by day are kept by triggers. `unknown_costs` counts the requests whose cost is not known, and which are therefore missing in
the sums of costs and margins; all requests of an earlier version are such.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from gateway.exchange import Outcome
from gateway.usage.record import NUMBERS, NUMBERS_OR_NONE, OBJECTS, Record

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


def _type(column: str) -> str:
    return "INTEGER" if column in (*NUMBERS, *NUMBERS_OR_NONE) else "TEXT"


def _quoted(names: Iterable[str]) -> list[str]:
    return [f'"{name}"' for name in names]


def _names(names: Iterable[str], row: str = "") -> str:
    return ", ".join(f"{row}{name}" for name in _quoted(names))


def _add_to_day(row: str, sign: str) -> str:
    """Return the statement that adds a closed row to its day's sums (`+`), or subtracts it (`-`)."""
    sums = (
        "1",
        f"{row}.outcome = '{Outcome.COMPLETED}'",
        *(f'coalesce({row}."{name}", 0)' for name in SUM_COLUMNS),
        f"{row}.cost_micros IS NULL",
    )
    return (
        f"INSERT INTO days ({_names(GROUPS)}, {_names(SUMS)}) "  # noqa: S608 - only constant names
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
CREATE INDEX IF NOT EXISTS requests_of_reference ON requests (reference, id) WHERE reference != '';
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

TRIGGERS: Final = ("closed_at_once", "reopened", "closed")

INSERT_ARRIVAL: Final = (
    f"INSERT INTO requests ({_names(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))}) "  # noqa: S608
    "ON CONFLICT (id) DO NOTHING"
)
INSERT_END: Final = (
    INSERT_ARRIVAL.removesuffix("NOTHING")
    + f"UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in _quoted(_CHANGING_COLUMNS))} "
    + f"WHERE requests.outcome IS NULL OR requests.outcome = '{Outcome.GATEWAY_CRASHED}'"
)
SELECT_OPEN: Final = (
    f"SELECT {_names(COLUMNS)} FROM requests WHERE outcome IS NULL AND id < ? "  # noqa: S608
    "AND coalesce(gateway, '') IN (SELECT value FROM json_each(?)) ORDER BY id LIMIT ?"
)


def create(file: sqlite3.Connection) -> None:
    """Create the tables where they are missing, and what is missing in those of an earlier version."""
    present = columns(file, "requests")
    if present and not present >= set(COLUMNS):
        _add_missing(file)
    file.executescript(SCHEMA)


def columns(file: sqlite3.Connection, table: str) -> set[str]:
    """Return the names of the columns that a table of a file has; none where there is no such table."""
    return {name for _, name, *_ in file.execute(f"PRAGMA table_info({table})")}


def selected(file: sqlite3.Connection, names: Sequence[str] = COLUMNS) -> str:
    """Return columns of a record as a statement names them; NULL for those that a file of an earlier version lacks."""
    present = columns(file, "requests")
    return ", ".join(f'"{name}"' if name in present else f'NULL AS "{name}"' for name in names)


def summed(file: sqlite3.Connection, names: Sequence[str] = SUMS) -> str:
    """Return sums as a statement names them. In a file of an earlier version no cost is known."""
    present = columns(file, "days")
    lacking = {"unknown_costs": "sum(requests)"}
    return ", ".join(f"sum({name})" if name in present else lacking.get(name, "0") for name in names)


def record_of(row: Sequence[Any]) -> Record:
    """Return the record of a row of `COLUMNS`. What an earlier version did not write has its default."""
    values = {name: value for name, value in zip(COLUMNS, row, strict=True) if value is not None}
    for name in JSON_COLUMNS:
        if name in values:
            values[name] = msgspec.json.decode(values[name])
    return msgspec.convert(values, Record)


def _add_missing(file: sqlite3.Connection) -> None:
    """Add the columns that are missing, in one transaction. The triggers are made anew with the tables."""
    file.execute("BEGIN IMMEDIATE")
    try:
        for name in _missing(file, "requests", COLUMNS):
            file.execute(f'ALTER TABLE requests ADD COLUMN "{name}" {_type(name)}')
        missing = _missing(file, "days", SUMS)
        for name in missing:
            file.execute(f"ALTER TABLE days ADD COLUMN {name} INTEGER DEFAULT 0")
        if "unknown_costs" in missing:
            file.execute("UPDATE days SET unknown_costs = requests")
        for name in TRIGGERS:
            file.execute(f"DROP TRIGGER IF EXISTS {name}")
        file.execute("COMMIT")
    except BaseException:
        file.rollback()
        raise


def _missing(file: sqlite3.Connection, table: str, names: Iterable[str]) -> list[str]:
    present = columns(file, table)
    return [name for name in names if name not in present]
