"""Lines of sums: read from a file of the log, put together from parts of the time, sorted and cut off."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from heapq import nlargest, nsmallest
from operator import add, itemgetter
from typing import Any

import msgspec

from gateway.usage.sums import Selected, statement
from gateway.usage.tables import SUMS

Row = tuple[Any, ...]
"""A line: the names of its groups, and its sums."""


class Order(msgspec.Struct, frozen=True):
    """The lines that are wanted: the first ones by the names of the groups, or with the largest `sort`, one of `SUMS`.

    `after`: only those whose groups come after these.
    """

    limit: int
    sort: str = ""
    after: tuple[str, ...] = ()


class Part(msgspec.Struct, frozen=True, array_like=True):
    """The lines of a part of the time, and how many it has."""

    rows: list[Row]
    lines: int


def read(file: sqlite3.Connection, by: Sequence[str], wanted: Selected, order: Order | None) -> Part:
    """Add up requests. With an order, return only its lines."""
    text, values = statement(file, by, wanted)
    groups, sums = [f"g{number}" for number in range(len(by))], [f"s{number}" for number in range(len(SUMS))]
    names = ", ".join([*groups, *(f"coalesce({name}, 0)" for name in sums)])
    begin = f"WITH lines({', '.join([*groups, *sums])}) AS MATERIALIZED ({text})"
    if order is None:
        rows = file.execute(f"{begin} SELECT {names} FROM lines WHERE s0 != 0", values).fetchall()  # noqa: S608
        return Part(rows, len(rows))
    after = f" AND ({', '.join(groups)}) > ({', '.join('?' * len(groups))})" if order.after else ""
    sort = f"s{SUMS.index(order.sort)} DESC, " if order.sort else ""
    found = file.execute(
        f"{begin} SELECT (SELECT count(*) FROM lines WHERE s0 != 0), {names} FROM lines WHERE s0 != 0{after} "  # noqa: S608
        f"ORDER BY {sort}{', '.join(groups)} LIMIT ?",
        (*values, *order.after, order.limit),
    ).fetchall()
    if found or not order.after:
        return Part([row[1:] for row in found], found[0][0] if found else 0)
    (lines,) = file.execute(f"{begin} SELECT count(*) FROM lines WHERE s0 != 0", values).fetchone()  # noqa: S608
    return Part([], lines)


def sorting_key(width: int, order: Order) -> Callable[[Row], Any]:
    """Return what lines are sorted by."""
    if not order.sort:
        return lambda row: row[:width]
    place = width + SUMS.index(order.sort)
    return lambda row: (-row[place], row[:width])


def added(parts: Sequence[Part], width: int) -> list[Row]:
    """Add up the lines of several parts."""
    if not parts:
        return []
    first, *others = sorted(parts, key=lambda part: -part.lines)
    if not others:
        return first.rows
    found = {row[:width]: row for row in first.rows}
    for part in others:
        for row in part.rows:
            groups = row[:width]
            before = found.get(groups)
            found[groups] = row if before is None else (*groups, *map(add, before[width:], row[width:]))
    return list(found.values())


def selected(rows: list[Row], width: int, order: Order) -> list[Row]:
    """Return the lines that are wanted of all."""
    if order.after:
        rows = [row for row in rows if row[:width] > order.after]
    if not order.sort:
        return nsmallest(order.limit, rows)  # no two lines have the same groups
    largest = nlargest(order.limit, rows, key=itemgetter(width + SUMS.index(order.sort)))
    return sorted(largest, key=sorting_key(width, order))


def sum_of(rows: Sequence[Row], width: int) -> Row:
    """Return the sums of all lines."""
    return tuple(sum(map(itemgetter(width + place), rows)) for place in range(len(SUMS)))
