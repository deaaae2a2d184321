"""Queries of the usage log, in either home. Readers never wait for the writer, nor the writer for them.

All of it blocks: do not call it on an event loop.

Lists of requests, page by page, and one account's own sums have two rules:

1. **Every statement for an account selects by it**: a cursor or a filter only narrows what the account has. A record without an
   account is nobody's.
2. **A query reads a bounded number of rows**: a page ends after so many of them, also where few of them match.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from gateway.base.ids import LAST_MS, first_id, utc
from gateway.base.ids import month as month_of
from gateway.base.log import log
from gateway.domain.exchange import Outcome
from gateway.usage.database import COLUMNS, UnusableFile, record_of
from gateway.usage.home import Home, Part
from gateway.usage.record import Record
from gateway.usage.rollups import ROLLUP_SUMS, STEPS

Found = TypeVar("Found")

_CURSOR: Final = re.compile(r"\d{4}-\d{2}\.\d{1,18}(\+\d{4}-\d{2}\.\d{1,18})?")
START: Final = "0000-00.0"
"""The cursor before all records."""


_AFTER_ALL_IDS: Final = "g"

_NEWEST: Final = slice(-2, None)
"""The months that a tail reads."""

AT_ONCE: Final = 500
"""Names that a query has at once."""

MAX_SCANNED: Final = 5_000
"""Rows of a page that are compared with its filters, for an account."""
_FIRST_MONTH: Final = ""
_LAST_MONTH: Final = "9"

OWN_GROUPS: Final = ("day", "model", "token_id")
"""What an account's sums are grouped by."""
OWN_SUMS: Final = (
    *("requests", "completed", "prompt_tokens", "cached_tokens", "cache_write_tokens", "completion_tokens"),
    "charge_micros",
)
"""The sums that an account sees: no costs."""


def find(home: Home, id: str) -> Record | None:  # noqa: A002 - the field's name
    """Return the record of a request, or None where the files do not have it (not yet, or no longer).

    Raises `UnusableFile` where it may be in a file that cannot be read.
    """
    try:
        month = month_of(id)
    except ValueError:
        return None
    with home.opened(month) as part:
        row = next(select_rows(part, "WHERE id = ?", (id,)), None) if part else None
        record = None if row is None else record_of(row)
    if record is None and (lost := home.missing(month, month)):
        raise lost[-1]
    return record


def named(home: Home, name: str, texts: Sequence[str], most: int) -> list[Record]:
    """Return the newest requests whose `name` is one of these: `completion_id`, `upstream_request_id` or `reference`.

    Raises `UnusableFile`.
    """
    found: list[Record] = []
    for month in sorted(home.months(), reverse=True):
        with home.opened(month) as part:
            for first in range(0, len(texts), AT_ONCE):
                if part is None:
                    break
                some = texts[first : first + AT_ONCE]
                # The `||` keeps the planner from walking all requests in the order of their ids.
                terms = (
                    f"WHERE {name} IN ({', '.join('?' * len(some))}) AND {name} != '' ORDER BY id || '' DESC LIMIT ?"
                )
                found += map(record_of, select_rows(part, terms, (*some, most)))
        if len(found) >= most:
            break
    return sorted(found, key=lambda record: record.id, reverse=True)[:most]


def select(
    home: Home,
    *,
    account: str | None = None,
    model: str | None = None,
    outcome: Outcome | None = None,
    since_ms: int | None = None,
    until_ms: int | None = None,
    token_id: str | None = None,
    newest_first: bool = False,
    unusable: list[UnusableFile] | None = None,
) -> Iterator[Record]:
    """Yield requests in the order of their arrival, or the newest first. `until_ms` is exclusive.

    Where a file cannot be read, its error is added to `unusable`, and the other months follow; without such a list it is raised.
    """
    ids, first, last = _between(since_ms, until_ms)
    conditions, values = equal({"account": account, "model": model, "outcome": outcome, "token_id": token_id})
    terms = f"WHERE id >= ? AND id < ?{conditions} ORDER BY id {'DESC' if newest_first else 'ASC'}"

    def read(part: Part) -> Iterator[Record]:
        return map(record_of, select_rows(part, terms, (*ids, *values)))

    return over_months(home, first, last, unusable, read, newest_first=newest_first)


def rows(
    home: Home,
    names: Sequence[str],
    *,
    since_ms: int | None = None,
    until_ms: int | None = None,
    unusable: list[UnusableFile],
) -> Iterator[Sequence[Any]]:
    """Yield some columns of the requests that ended, as the files have them: much faster than `select`."""
    ids, first, last = _between(since_ms, until_ms)
    terms = "WHERE id >= ? AND id < ? AND outcome IS NOT NULL ORDER BY id"
    return over_months(home, first, last, unusable, lambda part: select_rows(part, terms, ids, names=names))


def _between(since_ms: int | None, until_ms: int | None) -> tuple[tuple[str, str], str, str]:
    """Return the bounds of the ids of a time, the second one exclusive; its first month, and its last one."""
    since, until = since_ms or 0, LAST_MS if until_ms is None else until_ms
    return (first_id(since), first_id(until)), month_at(since), month_at(until)


def over_months(
    home: Home,
    first: str,
    last: str,
    unusable: list[UnusableFile] | None,
    read: Callable[[Part], Iterable[Found]],
    *,
    newest_first: bool = False,
) -> Iterator[Found]:
    """Yield what `read` finds in the part of each of these months.

    Where one cannot be read, its error is added to `unusable`, and the others follow; without such a list it is raised.
    """
    for month in sorted(home.months(), reverse=newest_first):
        if first <= month <= last:
            with collecting(unusable), home.opened(month) as part:
                if part:
                    yield from read(part)
    if unusable is not None:
        unusable += home.missing(first, last)


def equal(columns: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """Return the condition that columns have these values, but for those that are None, and the values."""
    given = {column: value for column, value in columns.items() if value is not None}
    return "".join(f' AND "{column}" = ?' for column in given), list(given.values())


class Tail:
    """Follows the files: returns each request that ended once, in the order in which the ends became known.

    `after` is the `cursor` of an earlier tail, or empty for what ends from now on. Raises `ValueError` for anything else.
    Only the two newest months are read: no request takes longer to end. While the home does not answer, nothing is returned, and
    what ends meanwhile comes later.
    """

    def __init__(self, home: Home, after: str = "") -> None:
        self._home = home
        self._began = bool(after)
        self._places = _places(after) if after else {}
        self._begin()

    @property
    def cursor(self) -> str:
        """The position of this tail."""
        return "+".join(f"{month}.{place}" for month, place in sorted(self._places.items())[_NEWEST]) or START

    def poll(self, limit: int = 500) -> list[tuple[str, Record]]:
        """Return the next requests that ended, up to `limit` of each month, each with the cursor after it."""
        with _reporting():
            found = self._home.months()[_NEWEST]
            if self._began:
                return [entry for month in found for entry in self._ends(month, limit)]
            self._begin()
        return []

    def _begin(self) -> None:
        """Begin with what ends from now on, unless it has begun."""
        if not self._began:
            with _reporting():
                self._places = {month: self._last_place(month) for month in self._home.months()[_NEWEST]}
                self._began = True

    def _last_place(self, month: str) -> int:
        with _reporting(), self._home.opened(month) as part:
            if part is None:
                return 0
            (place,) = part.execute(f"SELECT coalesce(max(place), 0) FROM {part.ends}").fetchone()  # noqa: S608
            return int(place)
        return 0

    def _ends(self, month: str, limit: int) -> Iterator[tuple[str, Record]]:
        with _reporting(), self._home.opened(month) as part:
            if part is None:
                return
            terms = f"JOIN {part.ends} AS ended USING ({part.key}) WHERE place > ? ORDER BY place LIMIT ?"
            for place, *row in select_rows(part, terms, (self._places.get(month, 0), limit), "place, "):
                self._places[month] = place
                yield self.cursor, record_of(row)


def _places(cursor: str) -> dict[str, int]:
    if not _CURSOR.fullmatch(cursor):
        raise ValueError("no such place in the log")
    return {month: int(place) for month, _, place in (part.partition(".") for part in cursor.split("+"))}


@contextlib.contextmanager
def _reporting() -> Iterator[None]:
    try:
        yield
    except UnusableFile as error:
        log.error("usage_file_unusable", reason=str(error))


class RequestsQuery(msgspec.Struct, frozen=True):
    """Which requests are listed, of an account or of all. Of an account, those that have ended: before, none is known to be its.

    `after`: only requests that arrived before this one. `lowest` and `highest` are bounds of their ids, the second one exclusive.
    `reference` is a hash, of one of the account's own.
    """

    account: str | None = None
    after: str = ""
    lowest: str = ""
    highest: str = _AFTER_ALL_IDS
    token_id: str | None = None
    group: str | None = None
    model: str | None = None
    channel: str | None = None
    outcome: Outcome | None = None
    error_code: str | None = None
    operation: str | None = None
    reference: str | None = None
    tag: str | None = None

    @property
    def scope(self) -> tuple[str, list[str]]:
        """The condition that an index finds rows by, and its values."""
        if self.reference is None:
            return ("true", []) if self.account is None else ("account = ?", [self.account])
        # The `||` keeps SQLite from the index of accounts, the comparison lets it use that of references.
        return "reference = ? AND reference != '' AND account || '' = ?", [self.reference, self.account or ""]

    @property
    def filters(self) -> tuple[str, list[str]]:
        """The further conditions, and their values."""
        names = ("token_id", "group", "model", "channel", "outcome", "error_code", "operation")
        conditions, values = equal({name: getattr(self, name) for name in names})
        if self.tag:
            name, _, value = self.tag.partition(":")
            return f"""{conditions} AND "tags" ->> '{name}' = ?""", [*values, value]
        return conditions, values


class RequestList(msgspec.Struct):
    """A part of a list, newest first. `next`: the request after which the next part begins; empty where there is none."""

    records: list[Record]
    next: str = ""


def page(
    home: Home,
    wanted: RequestsQuery,
    limit: int,
    unusable: list[UnusableFile],
    most: int | None = None,
) -> RequestList:
    """Return up to `limit` requests, newest first. It may be fewer, also where more follow: after `most` rows a page ends.

    Where a file cannot be read, its error is added to `unusable`, and its requests are left out.
    """
    found, before, unread = RequestList([]), min(wanted.after or _AFTER_ALL_IDS, wanted.highest), most or MAX_SCANNED
    first, last = _month(wanted.lowest, _FIRST_MONTH), _month(before, _LAST_MONTH)
    for month in sorted(home.months(), reverse=True) if wanted.account != "" else ():
        if not first <= month <= last:
            continue
        with collecting(unusable), home.opened(month) as part:
            if part is None:
                continue
            edge, scanned = _edge(part, wanted, before, unread)
            found.records += _select(part, wanted, (edge or wanted.lowest, before), limit + 1 - len(found.records))
            unread -= scanned
            found.next = edge
        if len(found.records) > limit:
            del found.records[limit:]
            found.next = found.records[-1].id
        if found.next:
            break
    unusable += home.missing(first, last)
    return found


def own_sums(
    home: Home, account: str, by: Sequence[str], first: str, last: str, unusable: list[UnusableFile]
) -> list[dict[str, Any]]:
    """Return an account's sums of these days, both inclusive, by some of `OWN_GROUPS` and sorted by these.

    `unusable` is as for `page`.
    """

    def rows() -> Iterator[Sequence[Any]]:
        for month in home.months() if account else ():
            days = [day for number in range(1, 32) if first <= (day := f"{month}-{number:02}") <= last]
            if days:
                with collecting(unusable), home.opened(month) as part:
                    if part:
                        yield from _sums_of_account(part, account, by, days)

    found = merged(rows(), by, OWN_SUMS)
    unusable += home.missing(first[:7], last[:7])
    return found


def _edge(part: Part, wanted: RequestsQuery, before: str, unread: int) -> tuple[str, int]:
    """Return the request at which a page ends that is not full before, if any, and how many rows its filters may skip."""
    if not wanted.filters[1]:
        return "", 0
    scope, values = wanted.scope
    inner = f"SELECT id FROM {part.requests} WHERE {scope} AND id >= ? AND id < ? ORDER BY id DESC LIMIT ?"  # noqa: S608
    statement = f"SELECT coalesce(min(id), ''), count(*) FROM ({inner}) AS scanned"  # noqa: S608
    edge, scanned = part.execute(statement, (*values, wanted.lowest, before, unread)).fetchone()
    return (edge if scanned >= unread else ""), scanned


def _select(part: Part, wanted: RequestsQuery, between: tuple[str, str], limit: int) -> list[Record]:
    (scope, own), (conditions, values) = wanted.scope, wanted.filters
    terms = f"WHERE {scope} AND id >= ? AND id < ?{conditions} ORDER BY id DESC LIMIT ?"
    return [record_of(row) for row in select_rows(part, terms, (*own, *between, *values, limit))]


def _month(bound: str, otherwise: str) -> str:
    """Return the month of a bound of ids, or `otherwise` where it is none."""
    try:
        return utc(int(bound[:8] + bound[9:13], 16))[:7]
    except ValueError:
        return otherwise


def _sums_of_account(part: Part, account: str, by: Sequence[str], days: Sequence[str]) -> list[Sequence[Any]]:
    names = ", ".join([*by, *(f"sum({name})" for name in OWN_SUMS)])
    group = f" GROUP BY {', '.join(by)}" if by else ""
    # Each day is looked up by itself: a row of the table begins with the day and the account.
    marks = ", ".join("?" * len(days))
    statement = f"SELECT {names} FROM {part.days} WHERE day IN ({marks}) AND account = ?{group}"  # noqa: S608 - names of ours only
    return part.execute(statement, (*days, account)).fetchall()


@contextlib.contextmanager
def collecting(unusable: list[UnusableFile] | None) -> Iterator[None]:
    """Add the error of a file that cannot be read to `unusable`; without such a list it is raised."""
    try:
        yield
    except UnusableFile as error:
        if unusable is None:
            raise
        unusable.append(error)


def select_rows(
    part: Part, terms: str, values: Sequence[Any], before: str = "", names: Sequence[str] = COLUMNS
) -> Iterator[Sequence[Any]]:
    """Yield columns of the requests that these terms select."""
    columns = ", ".join(f'{part.requests}."{name}"' for name in names)
    text = f"SELECT {before}{columns} FROM {part.requests} {terms}"  # noqa: S608 - names of ours only
    return part.execute(text, values) if "LIMIT" in terms else part.stream(text, values)


def merged(rows: Iterable[Sequence[Any]], by: Sequence[str], names: Sequence[str]) -> list[dict[str, Any]]:
    """Add up rows with groups and sums; return them sorted by the groups, without those of no request."""
    totals: dict[tuple[str, ...], dict[str, int]] = {}
    for row in rows:
        total = totals.setdefault(tuple(row[: len(by)]), dict.fromkeys(names, 0))
        for name, value in zip(names, row[len(by) :], strict=True):
            total[name] += value or 0
    return [dict(zip(by, group, strict=True)) | totals[group] for group in sorted(totals) if totals[group]["requests"]]


def month_at(ms: int) -> str:
    """Return the month of a time in milliseconds since 1970."""
    return utc(ms)[:7]


def rollups_of(part: Part, step: str, since: str, until: str, model: str) -> list[tuple[Any, ...]]:
    """Return when each step of a time began, as in `2026-11-21T10:30`, with its sums; of one model, or of all."""
    sums = ", ".join(f"sum({name})" for name in ROLLUP_SUMS)
    terms, width = " AND model = ?" if model else "", STEPS[step]
    text = f"SELECT at, {sums} FROM {part.rollups} WHERE step = ? AND at >= ? AND at < ?{terms} GROUP BY at"  # noqa: S608
    return list(part.execute(text, (step, since[:width], until[:width], *([model] if model else []))).fetchall())
