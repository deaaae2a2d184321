"""The writing of records into a month's file, in one transaction: the rows, the places of the ends, and the sums by day.

The sums of a batch are added up here and written once for each group: many requests share one. The rows of an account are
written side by side, so that its index changes few pages, and a list of its requests reads few.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from operator import attrgetter
from typing import Any, Final

import msgspec

from gateway.exchange import Outcome
from gateway.usage.record import Record
from gateway.usage.tables import (
    ADD_TO_DAY,
    COLUMNS,
    GROUP_COLUMNS,
    INSERT,
    JSON_INDICES,
    SELECT_KNOWN,
    SUBTRACT_FROM_DAY,
    SUM_COLUMNS,
    TRIGGERS,
    UPDATE,
)

_DAY: Final = slice(len("2026-11-21"))
_OUTCOME: Final = COLUMNS.index("outcome")
_COST: Final = SUM_COLUMNS.index("cost_micros")
_EMPTY: Final[dict[type[Any], str]] = {list: "[]", dict: "{}"}
_encode: Final = msgspec.json.Encoder().encode
_LARGEST: Final = 2**63 - 1
_place_of = attrgetter("account", "id")
_group_of = attrgetter(*GROUP_COLUMNS)
_amounts_of = attrgetter(*SUM_COLUMNS)

Known = tuple[int, str | None]
"""The number of a row, and its outcome."""


def write(file: sqlite3.Connection, arrivals: Iterable[Record], ends: Iterable[Record]) -> None:
    """Write arrivals and ends of requests, each any number of times. An end closes a row once, but for a presumed one."""
    ended = _ends(ends)
    opened = {record.id: record for record in arrivals if record.id not in ended}
    with _transaction(file):
        known = _known(file, [*opened, *ended])
        added = sorted((each for each in (*opened.values(), *ended.values()) if each.id not in known), key=_place_of)
        numbers = dict(zip((record.id for record in added), count(_last_number(file) + 1), strict=False))
        closed = [record for record in ended.values() if record.id not in known or _may_end(known[record.id])]
        late = [record for record in closed if record.id in known]
        numbers |= {record.id: known[record.id][0] for record in late}
        replaced = [(numbers[record.id],) for record in late if known[record.id][1] is not None]
        file.executemany(SUBTRACT_FROM_DAY, replaced)
        file.executemany(INSERT, ((numbers[record.id], *_row(record)) for record in added))
        file.executemany(UPDATE, ((*_row(record)[1:], numbers[record.id]) for record in late))
        file.executemany("INSERT INTO ends (number) VALUES (?)", ((numbers[record.id],) for record in closed))
        file.executemany(ADD_TO_DAY, _sums(closed))


def _ends(ends: Iterable[Record]) -> Mapping[str, Record]:
    """Return the end that counts of each request: the first one, or the first actual one where that is a presumed one."""
    found: dict[str, Record] = {}
    for record in ends:
        if record.id not in found or found[record.id].outcome == Outcome.GATEWAY_CRASHED:
            found[record.id] = record
    return found


def _known(file: sqlite3.Connection, ids: Sequence[str]) -> dict[str, Known]:
    """Return what the file has of these requests."""
    found = file.execute(SELECT_KNOWN, (msgspec.json.encode(ids).decode(),))
    return {id: (number, outcome) for id, number, outcome in found}  # noqa: A001 - the field's name


def _last_number(file: sqlite3.Connection) -> int:
    (number,) = file.execute("SELECT coalesce(max(number), 0) FROM requests").fetchone()
    return int(number)


def _may_end(known: Known) -> bool:
    return known[1] is None or known[1] == Outcome.GATEWAY_CRASHED


def _sums(ended: Iterable[Record]) -> Iterator[tuple[Any, ...]]:
    """Yield the groups and the sums of requests that ended."""
    groups: defaultdict[tuple[str, ...], list[Record]] = defaultdict(list)
    for record in ended:
        groups[(record.arrived_at[_DAY], *_group_of(record))].append(record)
    for group, records in groups.items():
        amounts = list(zip(*map(_amounts_of, records), strict=True))
        completed = sum(record.outcome == Outcome.COMPLETED for record in records)
        sums = (_number(sum(filter(None, column))) for column in amounts)
        yield (*group, len(records), completed, *sums, amounts[_COST].count(None))


def _number(total: int) -> int | float:
    """Return a sum as SQLite adds it up: one that is no integer of 64 bits is rounded."""
    return total if -_LARGEST <= total <= _LARGEST else float(total)


def _row(record: Record) -> list[Any]:
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
        for name in TRIGGERS:
            file.execute(f"DROP TRIGGER IF EXISTS {name}")
        yield
        file.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            file.execute("ROLLBACK")
        raise
