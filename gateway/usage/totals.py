"""Sums of the usage log for pages that are looked at again and again: those of days that are over are kept in memory.

1. **What is kept is what a new look would find.** Each end of a request that is written has a place in its month's file. What was
   added up when the file had a place is used only while nothing after it is of the same days, and the file is the same one.
2. **Little is kept**: of sums by day or hour only the lines that were asked for, and all together at most `MAX_BYTES`.
3. What is not kept is added up anew at each look: the present day, and parts of days. In its first hours, the day before is kept
   by itself, since requests that began in it still end.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from heapq import merge, nlargest, nsmallest
from itertools import islice, pairwise
from operator import add, itemgetter
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.request_id import LAST_MS, utc
from gateway.usage.damage import UnusableFile
from gateway.usage.database import months, path_of
from gateway.usage.gaps import span_ms
from gateway.usage.reading import collecting, lacks, month_at, opened
from gateway.usage.sums import DAY_MS, Selected, statement
from gateway.usage.tables import SUMS

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


class Order(msgspec.Struct, frozen=True):
    """The lines that are wanted: the first ones by the names of the groups, or with the largest `sort`, one of `SUMS`.

    `after`: only those whose groups come after these.
    """

    limit: int
    sort: str = ""
    after: tuple[str, ...] = ()


class Totals(msgspec.Struct, frozen=True):
    """Lines of groups and `SUMS`; how many there are in all, and the sum of all."""

    rows: list[Row]
    lines: int
    total: Row


class _Part(msgspec.Struct, frozen=True, array_like=True):
    """The lines of a part of the time, and how many it has."""

    rows: list[Row]
    lines: int


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


_Key = tuple[tuple[_Span, ...], tuple[str, ...], Selected, Order | None]


class _Month:
    """What is known of a month's file: the last place, and at which place ends of each day were last written."""

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
def summing(folder: Path) -> Summing:
    """Return what adds up the log in a folder, with what this process has kept of it."""
    return Summing(folder)


class Summing:
    """Adds up one usage log. All of it blocks; any number of threads may use it."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        """`clock` tells the time, as seconds since 1970."""
        self._folder = folder
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
            rows = _merged(parts, width)
            found, lines = _selected(rows, width, order), len(rows)
            if lines <= FEW:
                return Totals(found, lines, _sum(rows, width))
        else:
            parts = self._parts(by, wanted, order, unusable)
            found = list(islice(merge(*(part.rows for part in parts), key=_key(width, order)), order.limit))
            lines = sum(part.lines for part in parts)
        days = [row for part in self._parts(("day",), wanted, None, []) for row in part.rows]
        return Totals(found, lines, _sum(days, 1))

    def _parts(
        self, by: Sequence[str], wanted: Selected, order: Order | None, unusable: list[UnusableFile]
    ) -> list[_Part]:
        """Return the sums of parts of the time; without an order, of all that is kept as one of them."""
        since_ms, until_ms = wanted.between_ms
        first, last = month_at(since_ms), month_at(until_ms)
        parts, old = list[_Part](), list[tuple[_Span, int]]()
        for month in months(self._folder):
            if first <= month <= last:
                with collecting(unusable), opened(self._folder, month) as file:
                    if file is None:
                        continue
                    place = self._look(month, file)
                    for span in _spans(month, since_ms, until_ms, self._clock()):
                        if span.kept and order is None:
                            old.append((span, place))
                        else:
                            parts.append(self._part(file, place, span, by, wanted, order))
        unusable += lacks(self._folder, first, last)
        return [*parts, self._old(old, by, wanted, unusable)] if old else parts

    def _old(
        self, spans: Sequence[tuple[_Span, int]], by: Sequence[str], wanted: Selected, unusable: list[UnusableFile]
    ) -> _Part:
        """Return the sums of all days that are over, as one part."""
        key = (tuple(span for span, _ in spans), tuple(by), _timeless(wanted), None)
        if (kept := self._of(key)) is not None:
            return kept
        parts = list[_Part]()
        for span, place in spans:
            with collecting(unusable), opened(self._folder, span.month) as file:
                if file is not None:
                    self._look(span.month, file)
                    parts.append(self._part(file, place, span, by, wanted, None))
        if len(spans) == 1 == len(parts):
            return parts[0]
        rows = _merged(parts, len(by))
        merged = _Part(rows, len(rows))
        if len(parts) == len(spans):
            self._keep(key, tuple(place for _, place in spans), merged)
        return merged

    @property
    def kept_bytes(self) -> int:
        """Bytes of what is kept."""
        return self._bytes

    def _look(self, month: str, file: sqlite3.Connection) -> int:
        """Begin to read a file as it is now; learn which days were written to since the last look; return its last place."""
        status = path_of(self._folder, month).stat()
        with self._lock:
            file.execute("BEGIN")
            (place,) = file.execute("SELECT coalesce(max(place), 0) FROM ends").fetchone()
            known = self._months.get(month)
            if known is None or known.file != (status.st_dev, status.st_ino) or place < known.place:
                for key in [key for key in self._kept if any(span.month == month for span in key[0])]:
                    self._drop(key)
                self._months[month] = _Month((status.st_dev, status.st_ino), place)
            elif place - known.place > MANY:
                known.floor = known.place = place
                known.written.clear()
            elif place > known.place:
                known.written |= file.execute(
                    "SELECT substr(arrived_at, 1, 10), max(place) FROM ends JOIN requests USING (number) "
                    "WHERE place > ? GROUP BY 1",
                    (known.place,),
                ).fetchall()
                known.place = place
        return int(place)

    def _part(
        self,
        file: sqlite3.Connection,
        place: int,
        span: _Span,
        by: Sequence[str],
        wanted: Selected,
        order: Order | None,
    ) -> _Part:
        key = ((span,), tuple(by), _timeless(wanted), order)
        if span.kept and (kept := self._of(key)) is not None:
            return kept
        within = msgspec.structs.replace(wanted, since_ms=span.since_ms, until_ms=span.until_ms)
        part = _read(file, by, within, order)
        if span.kept:
            self._keep(key, (place,), part)
        return part

    def _of(self, key: _Key) -> _Part | None:
        """Return what is kept, if it is still so."""
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
        return msgspec.msgpack.decode(encoded, type=_Part)

    def _keep(self, key: _Key, places: tuple[int, ...], part: _Part) -> None:
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


def _read(file: sqlite3.Connection, by: Sequence[str], wanted: Selected, order: Order | None) -> _Part:
    """Add up requests. With an order, return only its lines."""
    text, values = statement(file, by, wanted)
    groups, sums = [f"g{number}" for number in range(len(by))], [f"s{number}" for number in range(len(SUMS))]
    names = ", ".join([*groups, *(f"coalesce({name}, 0)" for name in sums)])
    begin = f"WITH lines({', '.join([*groups, *sums])}) AS MATERIALIZED ({text})"
    if order is None:
        rows = file.execute(f"{begin} SELECT {names} FROM lines WHERE s0 != 0", values).fetchall()  # noqa: S608
        return _Part(rows, len(rows))
    after = f" AND ({', '.join(groups)}) > ({', '.join('?' * len(groups))})" if order.after else ""
    sort = f"s{SUMS.index(order.sort)} DESC, " if order.sort else ""
    found = file.execute(
        f"{begin} SELECT (SELECT count(*) FROM lines WHERE s0 != 0), {names} FROM lines WHERE s0 != 0{after} "  # noqa: S608
        f"ORDER BY {sort}{', '.join(groups)} LIMIT ?",
        (*values, *order.after, order.limit),
    ).fetchall()
    if found or not order.after:
        return _Part([row[1:] for row in found], found[0][0] if found else 0)
    (lines,) = file.execute(f"{begin} SELECT count(*) FROM lines WHERE s0 != 0", values).fetchone()  # noqa: S608
    return _Part([], lines)


def _key(width: int, order: Order) -> Callable[[Row], Any]:
    """Return what lines are sorted by."""
    if not order.sort:
        return lambda row: row[:width]
    place = width + SUMS.index(order.sort)
    return lambda row: (-row[place], row[:width])


def _merged(parts: Sequence[_Part], width: int) -> list[Row]:
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


def _selected(rows: list[Row], width: int, order: Order) -> list[Row]:
    """Return the lines that are wanted of all."""
    if order.after:
        rows = [row for row in rows if row[:width] > order.after]
    if not order.sort:
        return nsmallest(order.limit, rows)  # no two lines have the same groups
    largest = nlargest(order.limit, rows, key=itemgetter(width + SUMS.index(order.sort)))
    return sorted(largest, key=_key(width, order))


def _sum(rows: Sequence[Row], width: int) -> Row:
    """Return the sums of all lines."""
    return tuple(sum(map(itemgetter(width + place), rows)) for place in range(len(SUMS)))
