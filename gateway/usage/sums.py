"""Sums of the usage log by any of `NAMES`, and their cache for pages that are looked at again and again. All of it blocks.

They are read from the sums by day where these suffice, and else added up from the requests, which takes about two seconds for a
million.

Sums of days that are over are kept in memory (`Summing`):

1. **What is kept is what a new look would find.** Each end of a request that is written has a place in its month's file. What was
   added up when the file had a place is used only while nothing after it is of the same days, and the file is the same one.
2. **Little is kept**: of sums by day or hour only the lines that were asked for, and all together at most `MAX_BYTES`.
3. What is not kept is added up anew at each look: the present day, and parts of days. In its first hours, the day before is kept
   by itself, since requests that began in it still end.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from heapq import merge, nlargest, nsmallest
from itertools import islice, pairwise
from operator import add, itemgetter
from typing import Any, Final

import msgspec

from gateway.base.ids import LAST_MS, first_id, utc
from gateway.domain.exchange import Outcome
from gateway.usage.completeness import span_ms
from gateway.usage.database import GROUPS, SUM_COLUMNS, SUMS, UnusableFile
from gateway.usage.home import Home, Part, identity, missing, months, opened
from gateway.usage.queries import collecting, merged, month_at

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

MAX_BYTES: Final = 48 * 1024 * 1024
SETTLED_S: Final = 2 * 3600
FEW: Final = 10_000
"""Lines that are added up here. The sum of more is found by day."""
MANY: Final = 20_000
"""Ends that were written since the last look. Beyond, it is not looked whose days they are of."""
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
        pairs = (
            ("account", self.account),
            ("model", self.model),
            ("outcome", self.outcome),
            ("token_id", self.token_id),
        )
        given = [(column, value) for column, value in pairs if value is not None]
        return "".join(f" AND {column} = ?" for column, _ in given), [value for _, value in given]

    @property
    def between_ms(self) -> tuple[int, int]:
        """The first moment, and the one after the last."""
        return self.since_ms or 0, LAST_MS if self.until_ms is None else self.until_ms


def grouped(home: Home, by: Sequence[str], wanted: Selected, unusable: list[UnusableFile]) -> list[dict[str, Any]]:
    """Return the sums by some of `NAMES`, sorted by these: dicts with these groups and `SUMS`.

    Where a file cannot be read, its error is added to `unusable`, and its requests are left out.
    """
    since_ms, until_ms = wanted.between_ms
    first, last = month_at(since_ms), month_at(until_ms)

    def rows() -> Iterator[Sequence[Any]]:
        for month in months(home):
            if first <= month <= last:
                with collecting(unusable), opened(home, month) as part:
                    if part:
                        yield from part.execute(*statement(part, by, wanted)).fetchall()

    found = merged(rows(), by, SUMS)
    unusable += missing(home, first, last)
    return found


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


class _Span(msgspec.Struct, frozen=True):
    """A part of a month. `kept`: it is of whole days that are over."""

    month: str
    since_ms: int
    until_ms: int
    kept: bool

    @property
    def days(self) -> tuple[str, str]:
        """The first day and the one after the last."""
        return utc(self.since_ms)[:10], utc(self.until_ms)[:10]


class Order(msgspec.Struct, frozen=True):
    """The lines that are wanted: the first ones by the names of the groups, or with the largest `sort`, one of `SUMS`.

    `after`: only those whose groups come after these.
    """

    limit: int
    sort: str = ""
    after: tuple[str, ...] = ()


_Key = tuple[tuple[_Span, ...], tuple[str, ...], Selected, Order | None]


class _Month:
    """Remembered state of a month's file: its last place, and the place at which ends of each day were last written."""

    def __init__(self, file: tuple[int, int], place: int) -> None:
        self.file = file
        self.place = place
        self.floor = place
        """Nothing is known of what was written up to this place."""
        self.written: dict[str, int] = {}

    def is_as_at(self, place: int, days: tuple[str, str]) -> bool:
        """Return whether nothing of these days was written after a place."""
        first, end = days
        return self.floor <= place and all(at <= place for day, at in self.written.items() if first <= day < end)


@lru_cache(maxsize=4)
def summing(home: Home) -> Summing:
    """Return the `Summing` of this process for a folder, with the sums that it has kept."""
    return Summing(home)


class Summing:
    """Adds up one usage log. All of it blocks; any number of threads may use it."""

    def __init__(self, home: Home, clock: Callable[[], float] = time.time) -> None:
        """`clock` tells the time, as seconds since 1970."""
        self._home = home
        self._clock = clock
        self._lock = threading.Lock()
        self._months: dict[str, _Month] = {}
        self._kept: OrderedDict[_Key, tuple[tuple[int, ...], bytes]] = OrderedDict()
        self._bytes = 0

    def totals(self, by: Sequence[str], wanted: Selected, order: Order, unusable: list[UnusableFile]) -> Totals:
        """Return the sums by some of `NAMES`. Where a file cannot be read, its error is added to `unusable`, and it is left out."""
        width = len(by)
        if _IN_TIME.isdisjoint(by):
            parts = self._parts(by, wanted, None, unusable)
            rows = added(parts, width)
            found, lines = selected(rows, width, order), len(rows)
            if lines <= FEW:
                return Totals(found, lines, sum_of(rows, width))
        else:
            parts = self._parts(by, wanted, order, unusable)
            found = list(islice(merge(*(part.rows for part in parts), key=sorting_key(width, order)), order.limit))
            lines = sum(part.lines for part in parts)
        days = [row for part in self._parts(("day",), wanted, None, []) for row in part.rows]
        return Totals(found, lines, sum_of(days, 1))

    def _parts(
        self, by: Sequence[str], wanted: Selected, order: Order | None, unusable: list[UnusableFile]
    ) -> list[PartialSums]:
        """Return the sums of parts of the time; without an order, of all that is kept as one of them."""
        since_ms, until_ms = wanted.between_ms
        first, last = month_at(since_ms), month_at(until_ms)
        parts, old = list[PartialSums](), list[tuple[_Span, int]]()
        for month in months(self._home):
            if first <= month <= last:
                with collecting(unusable), opened(self._home, month) as part:
                    if part is None:
                        continue
                    place = self._look(month, part)
                    for span in _spans(month, since_ms, until_ms, self._clock()):
                        if span.kept and order is None:
                            old.append((span, place))
                        else:
                            parts.append(self._part(part, place, span, by, wanted, order))
        unusable += missing(self._home, first, last)
        return [*parts, self._old(old, by, wanted, unusable)] if old else parts

    def _old(
        self, spans: Sequence[tuple[_Span, int]], by: Sequence[str], wanted: Selected, unusable: list[UnusableFile]
    ) -> PartialSums:
        """Return the sums of all days that are over, as one part."""
        key = (tuple(span for span, _ in spans), tuple(by), _timeless(wanted), None)
        if (kept := self._of(key)) is not None:
            return kept
        parts = list[PartialSums]()
        for span, place in spans:
            with collecting(unusable), opened(self._home, span.month) as part:
                if part is not None:
                    self._look(span.month, part)
                    parts.append(self._part(part, place, span, by, wanted, None))
        if len(spans) == 1 == len(parts):
            return parts[0]
        rows = added(parts, len(by))
        merged = PartialSums(rows, len(rows))
        if len(parts) == len(spans):
            self._keep(key, tuple(place for _, place in spans), merged)
        return merged

    @property
    def kept_bytes(self) -> int:
        """Bytes of the sums that are kept."""
        return self._bytes

    def _look(self, month: str, part: Part) -> int:
        """Begin to read a file as it is now; learn which days were written to since the last look; return its last place."""
        which = identity(self._home, month)
        with self._lock:
            (place,) = part.execute(f"SELECT coalesce(max(place), 0) FROM {part.ends}").fetchone()  # noqa: S608
            known = self._months.get(month)
            if known is None or known.file != which or place < known.place:
                for key in [key for key in self._kept if any(span.month == month for span in key[0])]:
                    self._drop(key)
                self._months[month] = _Month(which, place)
            elif place - known.place > MANY:
                known.floor = known.place = place
                known.written.clear()
            elif place > known.place:
                known.written |= part.execute(
                    f"SELECT substr(arrived_at, 1, 10), max(place) FROM {part.ends} AS ended JOIN {part.requests} "  # noqa: S608
                    f"USING ({part.key}) WHERE place > ? GROUP BY 1",
                    (known.place,),
                ).fetchall()
                known.place = place
        return int(place)

    def _part(
        self,
        part: Part,
        place: int,
        span: _Span,
        by: Sequence[str],
        wanted: Selected,
        order: Order | None,
    ) -> PartialSums:
        key = ((span,), tuple(by), _timeless(wanted), order)
        if span.kept and (kept := self._of(key)) is not None:
            return kept
        within = msgspec.structs.replace(wanted, since_ms=span.since_ms, until_ms=span.until_ms)
        found = read(part, by, within, order)
        if span.kept:
            self._keep(key, (place,), found)
        return found

    def _of(self, key: _Key) -> PartialSums | None:
        """Return the kept sums, unless the files have changed since."""
        with self._lock:
            places, encoded = self._kept.get(key, ((), b""))
            if not encoded:
                return None
            if not all(
                self._months[span.month].is_as_at(place, span.days) for span, place in zip(key[0], places, strict=True)
            ):
                self._drop(key)
                return None
            self._kept.move_to_end(key)
        return msgspec.msgpack.decode(encoded, type=PartialSums)

    def _keep(self, key: _Key, places: tuple[int, ...], part: PartialSums) -> None:
        encoded = msgspec.msgpack.encode(part)
        if len(encoded) > MAX_BYTES // 2:
            return
        with self._lock:
            self._drop(key)
            self._kept[key] = places, encoded
            self._bytes += len(encoded)
            while self._bytes > MAX_BYTES:
                self._drop(next(iter(self._kept)))

    def _drop(self, key: _Key) -> None:
        if key in self._kept:
            self._bytes -= len(self._kept.pop(key)[1])


def _spans(month: str, since_ms: int, until_ms: int, now_s: float) -> Iterator[_Span]:
    """Yield the parts of a time that are in a month, in their order."""
    first_ms, end_ms = _month_ms(month)
    since_ms, until_ms = max(since_ms, first_ms), min(until_ms, end_ms)
    today_ms = int(now_s // 86_400) * DAY_MS
    whole_ms, rest_ms = -(-since_ms // DAY_MS) * DAY_MS, until_ms // DAY_MS * DAY_MS
    settled_ms = int((now_s - SETTLED_S) // 86_400) * DAY_MS
    cuts = (whole_ms, rest_ms, settled_ms, today_ms)
    borders = sorted({since_ms, until_ms, *(ms for ms in cuts if since_ms < ms < until_ms)})
    for one_ms, other_ms in pairwise(borders) if since_ms < until_ms else ():
        whole = not one_ms % DAY_MS and not other_ms % DAY_MS
        yield _Span(month, one_ms, other_ms, whole and other_ms <= today_ms)


def _timeless(wanted: Selected) -> Selected:
    return msgspec.structs.replace(wanted, since_ms=None, until_ms=None)


def _month_ms(month: str) -> tuple[int, int]:
    """Return when a month begins and ends."""
    year, number = int(month[:4]), int(month[5:])
    following = None if month == "9999-12" else f"{year + number // 12:04}-{number % 12 + 1:02}-01"
    first_ms, end_ms = span_ms(f"{month}-01", None)[0], span_ms(following, None)[0]
    return first_ms or 0, LAST_MS if end_ms is None else end_ms


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
