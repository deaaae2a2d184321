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
from heapq import merge
from itertools import islice, pairwise
from pathlib import Path
from typing import Final

import msgspec

from gateway.request_id import LAST_MS, utc
from gateway.usage.damage import UnusableFile
from gateway.usage.database import months, path_of
from gateway.usage.gaps import span_ms
from gateway.usage.reading import collecting, lacks, month_at, opened
from gateway.usage.sums import DAY_MS, Selected
from gateway.usage.total_lines import Order, Part, Row, added, read, selected, sorting_key, sum_of

MAX_BYTES: Final = 48 * 1024 * 1024
SETTLED_S: Final = 2 * 3600
FEW: Final = 10_000
"""Lines that are added up here. The sum of more is found by day."""
MANY: Final = 20_000
"""Ends that were written since the last look. Beyond, it is not looked whose days they are of."""
_IN_TIME: Final = frozenset(("day", "hour"))
"""Groups of which no two parts of a time have the same."""


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
    ) -> list[Part]:
        """Return the sums of parts of the time; without an order, of all that is kept as one of them."""
        since_ms, until_ms = wanted.between_ms
        first, last = month_at(since_ms), month_at(until_ms)
        parts, old = list[Part](), list[tuple[_Span, int]]()
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
    ) -> Part:
        """Return the sums of all days that are over, as one part."""
        key = (tuple(span for span, _ in spans), tuple(by), _timeless(wanted), None)
        if (kept := self._of(key)) is not None:
            return kept
        parts = list[Part]()
        for span, place in spans:
            with collecting(unusable), opened(self._folder, span.month) as file:
                if file is not None:
                    self._look(span.month, file)
                    parts.append(self._part(file, place, span, by, wanted, None))
        if len(spans) == 1 == len(parts):
            return parts[0]
        rows = added(parts, len(by))
        merged = Part(rows, len(rows))
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
    ) -> Part:
        key = ((span,), tuple(by), _timeless(wanted), order)
        if span.kept and (kept := self._of(key)) is not None:
            return kept
        within = msgspec.structs.replace(wanted, since_ms=span.since_ms, until_ms=span.until_ms)
        part = read(file, by, within, order)
        if span.kept:
            self._keep(key, (place,), part)
        return part

    def _of(self, key: _Key) -> Part | None:
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
        return msgspec.msgpack.decode(encoded, type=Part)

    def _keep(self, key: _Key, places: tuple[int, ...], part: Part) -> None:
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
