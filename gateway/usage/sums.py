"""Sums of the usage log by any of `NAMES`. All of it blocks.

They are read from the sums by day where these suffice, also for the whole days of a longer time, and else added up from the
requests, which takes about two seconds for a million.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import merge, nlargest, nsmallest
from itertools import islice, pairwise
from operator import add, itemgetter
from typing import Any, Final

import msgspec

from gateway.base.ids import LAST_MS, first_id, utc
from gateway.domain.exchange import Outcome
from gateway.usage.database import GROUPS, SUM_COLUMNS, SUMS, UnusableFile
from gateway.usage.home import Home, Part
from gateway.usage.queries import equal, merged, month_at, over_months

DAY_MS: Final = 86_400_000
_TIMES: Final = {"hour": 13, "day": 10, "month": 7}
"""Characters of a time that name its hour, its day and its month."""
NAMES: Final = (
    *("month", "day", "hour", "account", "group", "token_id", "model", "channel", "outcome", "error_code"),
    *("first_channel", "first_error", "address", "user_agent"),
)
"""What sums are grouped by, beside tags. `first_channel` and `first_error`: the channel that was called first, and its error, also
where another one answered."""
TAG: Final = "tag:"
"""What stands before the name of a tag that sums are grouped by."""
_OF_FIRST: Final = {"first_channel": "channel", "first_error": "error"}
"""Fields of the first attempt."""
_OF_DAYS: Final = {*GROUPS, "month"}

FEW: Final = 10_000
"""Lines that are added up here. The sum of more is found by day."""
_IN_TIME: Final = frozenset(("day", "hour"))
"""Groups of which no two parts of a time have the same."""

Row = tuple[Any, ...]
"""A line: the names of its groups, and its sums."""


class Selected(msgspec.Struct, frozen=True):
    """Which requests are added up. `until_ms` is exclusive."""

    account: str | None = None
    model: str | None = None
    outcome: Outcome | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    token_id: str | None = None

    @property
    def days_suffice(self) -> bool:
        """Return whether the sums by day tell these requests from others."""
        return self.outcome is None and not any((ms or 0) % DAY_MS for ms in (self.since_ms, self.until_ms))

    @property
    def filters(self) -> tuple[str, list[str]]:
        """The conditions but for the time, and their values."""
        columns = {"account": self.account, "model": self.model, "outcome": self.outcome, "token_id": self.token_id}
        return equal(columns)

    @property
    def between_ms(self) -> tuple[int, int]:
        """The first moment, and the one after the last."""
        return self.since_ms or 0, LAST_MS if self.until_ms is None else self.until_ms


def grouped(home: Home, by: Sequence[str], wanted: Selected, unusable: list[UnusableFile]) -> list[dict[str, Any]]:
    """Return the sums by some of `NAMES`, sorted by these: dicts with these groups and `SUMS`.

    Where a file cannot be read, its error is added to `unusable`, and its requests are left out.
    """
    first, last = map(month_at, wanted.between_ms)
    found = over_months(home, first, last, unusable, lambda part: part.execute(*statement(part, by, wanted)).fetchall())
    return merged(found, by, SUMS)


def statement(part: Part, by: Sequence[str], wanted: Selected) -> tuple[str, Sequence[Any]]:
    """Return the statement that adds up the requests of a file, and its values: from the sums by day where these suffice."""
    return (
        _of_days(part, by, wanted)
        if wanted.days_suffice and _OF_DAYS.issuperset(by)
        else _of_requests(part, by, wanted)
    )


def _of_days(part: Part, by: Sequence[str], wanted: Selected) -> tuple[str, Sequence[Any]]:
    conditions, values = wanted.filters
    names = ["substr(day, 1, 7)" if name == "month" else name for name in by]
    since, until = (utc(ms)[:10] if ms < LAST_MS else "9999-12-32" for ms in wanted.between_ms)
    names += [f"sum({name})" for name in SUMS]
    text = f"SELECT {', '.join(names)} FROM {part.days} WHERE day >= ? AND day < ?{conditions}{_group(by)}"  # noqa: S608
    return text, (since, until, *values)


def _of_requests(part: Part, by: Sequence[str], wanted: Selected) -> tuple[str, Sequence[Any]]:
    conditions, values = wanted.filters
    sums = ["count(*)", f"count(*) FILTER (WHERE outcome = '{Outcome.COMPLETED}')"]
    sums += [f"sum({name})" for name in SUM_COLUMNS]
    sums.append("count(*) FILTER (WHERE cost_micros IS NULL)")
    names = list(map(_expression, by))
    since_ms, until_ms = wanted.between_ms
    text = (
        f"SELECT {', '.join([*names, *sums])} FROM {part.requests} "  # noqa: S608 - names of ours only
        f"WHERE id >= ? AND id < ? AND outcome IS NOT NULL{conditions}{_group(by)}"
    )
    return text, (first_id(since_ms), first_id(until_ms), *values)


def _expression(name: str) -> str:
    if name.startswith(TAG):
        return f"""coalesce("tags" ->> '{name.removeprefix(TAG)}', '')"""
    if name in _OF_FIRST:
        return f"""coalesce("attempts" -> 0 ->> '{_OF_FIRST[name]}', '')"""
    return f"substr(arrived_at, 1, {_TIMES[name]})" if name in _TIMES else f'"{name}"'


def _group(by: Sequence[str]) -> str:
    return f" GROUP BY {', '.join(str(number + 1) for number in range(len(by)))}" if by else ""


class Totals(msgspec.Struct, frozen=True):
    """Lines of groups and `SUMS`; how many there are in all, and the sum of all."""

    rows: list[Row]
    lines: int
    total: Row


class Order(msgspec.Struct, frozen=True):
    """The lines that are wanted: the first ones by the names of the groups, or with the largest `sort`, one of `SUMS`.

    `after`: only those whose groups come after these.
    """

    limit: int
    sort: str = ""
    after: tuple[str, ...] = ()


def totals(home: Home, by: Sequence[str], wanted: Selected, order: Order, unusable: list[UnusableFile]) -> Totals:
    """Return the sums by some of `NAMES`. Where a file cannot be read, its error is added to `unusable`, and it is left out."""
    width = len(by)
    if _IN_TIME.isdisjoint(by):
        parts = _parts(home, by, wanted, None, unusable)
        rows = added(parts, width)
        found, lines = selected(rows, width, order), len(rows)
        if lines <= FEW:
            return Totals(found, lines, sum_of(rows, width))
    else:
        parts = _parts(home, by, wanted, order, unusable)
        found = list(islice(merge(*(part.rows for part in parts), key=sorting_key(width, order)), order.limit))
        lines = sum(part.lines for part in parts)
    days = [row for part in _parts(home, ("day",), wanted, None, []) for row in part.rows]
    return Totals(found, lines, sum_of(days, 1))


def _parts(
    home: Home, by: Sequence[str], wanted: Selected, order: Order | None, unusable: list[UnusableFile]
) -> list[PartialSums]:
    """Return the sums of each month; with an order, its lines alone."""
    first, last = map(month_at, wanted.between_ms)

    def parts(part: Part) -> list[PartialSums]:
        return [read(part, by, within, order) for within in _spans(wanted)]

    return list(over_months(home, first, last, unusable, parts))


def _spans(wanted: Selected) -> list[Selected]:
    """Return the parts of the time: whole days, and what is before and after them."""
    since_ms, until_ms = wanted.between_ms
    cuts = {-(-since_ms // DAY_MS) * DAY_MS} | ({until_ms // DAY_MS * DAY_MS} if wanted.until_ms is not None else set())
    borders = [since_ms, *sorted(ms for ms in cuts if since_ms < ms < until_ms), wanted.until_ms]
    return [msgspec.structs.replace(wanted, since_ms=one, until_ms=other) for one, other in pairwise(borders)]


class PartialSums(msgspec.Struct, frozen=True, array_like=True):
    """The lines of a part of the time, and how many it has."""

    rows: list[Row]
    lines: int


def read(part: Part, by: Sequence[str], wanted: Selected, order: Order | None) -> PartialSums:
    """Add up requests. With an order, return only its lines."""
    text, values = statement(part, by, wanted)
    groups, sums = [f"g{number}" for number in range(len(by))], [f"s{number}" for number in range(len(SUMS))]
    names = ", ".join([*groups, *(f"coalesce({name}, 0)" for name in sums)])
    begin = f"WITH lines({', '.join([*groups, *sums])}) AS MATERIALIZED ({text})"
    if order is None:
        rows = part.execute(f"{begin} SELECT {names} FROM lines WHERE s0 != 0", values).fetchall()  # noqa: S608
        return PartialSums(rows, len(rows))
    after = f" AND ({', '.join(groups)}) > ({', '.join('?' * len(groups))})" if order.after else ""
    sort = f"s{SUMS.index(order.sort)} DESC, " if order.sort else ""
    found = part.execute(
        f"{begin} SELECT (SELECT count(*) FROM lines WHERE s0 != 0), {names} FROM lines WHERE s0 != 0{after} "  # noqa: S608
        f"ORDER BY {sort}{', '.join(groups)} LIMIT ?",
        (*values, *order.after, order.limit),
    ).fetchall()
    if found or not order.after:
        return PartialSums([row[1:] for row in found], found[0][0] if found else 0)
    (lines,) = part.execute(f"{begin} SELECT count(*) FROM lines WHERE s0 != 0", values).fetchone()  # noqa: S608
    return PartialSums([], lines)


def sorting_key(width: int, order: Order) -> Callable[[Row], Any]:
    """Return what lines are sorted by."""
    if not order.sort:
        return lambda row: row[:width]
    place = width + SUMS.index(order.sort)
    return lambda row: (-row[place], row[:width])


def added(parts: Sequence[PartialSums], width: int) -> list[Row]:
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
