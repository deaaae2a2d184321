"""Lists of requests, page by page, and one account's own sums, from the usage log's files. All of it blocks.

1. **Every statement for an account selects by it**: a cursor or a filter only narrows what the account has. A record without an
   account is nobody's.
2. **A query reads a bounded number of rows**: a page ends after so many of them, also where few of them match.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec

from gateway.exchange import Outcome
from gateway.request_id import utc
from gateway.usage.damage import UnusableFile
from gateway.usage.database import months
from gateway.usage.reading import collecting, lacks, merged, opened, select_rows
from gateway.usage.record import Record
from gateway.usage.tables import columns, record_of, summed

MAX_SCANNED: Final = 5_000
"""Rows of a page that are compared with its filters, for an account."""
_FIRST_MONTH: Final = ""
_LAST_MONTH: Final = "9"
_AFTER_ALL_IDS: Final = "g"

OWN_GROUPS: Final = ("day", "model", "token_id")
"""What an account's sums are grouped by."""
OWN_SUMS: Final = (
    *("requests", "completed", "prompt_tokens", "cached_tokens", "cache_write_tokens", "completion_tokens"),
    "charge_micros",
)
"""The sums that an account sees: no costs."""


class WantedOfAll(msgspec.Struct, frozen=True):
    """Which of all requests are listed, also those that have not ended. `after`: only requests that arrived before this one.

    `lowest` and `highest` are bounds of their ids, the second one exclusive. `reference` is a hash.
    """

    account: str | None = None
    after: str = ""
    lowest: str = ""
    highest: str = _AFTER_ALL_IDS
    token_id: str | None = None
    model: str | None = None
    channel: str | None = None
    outcome: Outcome | None = None
    error_code: str | None = None
    operation: str | None = None
    reference: str | None = None
    always: ClassVar[str] = ""

    @property
    def scope(self) -> tuple[str, list[str]]:
        """The condition that an index finds rows by, and its values."""
        if self.reference is not None:
            return "reference = ? AND reference != ''", [self.reference]
        return ("1", []) if self.account is None else ("account = ?", [self.account])

    @property
    def filters(self) -> tuple[str, list[str]]:
        """The further conditions, and their values."""
        names = ("token_id", "model", "channel", "outcome", "error_code", "operation")
        given = [(name, value) for name in names if (value := getattr(self, name)) is not None]
        return "".join(f" AND {column} = ?" for column, _ in given), [value for _, value in given]


class Wanted(msgspec.Struct, frozen=True):
    """Which of an account's requests are listed. `reference` is a hash; `after`: only requests that arrived before this one."""

    account: str
    after: str = ""
    model: str | None = None
    outcome: Outcome | None = None
    reference: str | None = None
    operation: str | None = None
    lowest: ClassVar[str] = ""
    highest: ClassVar[str] = _AFTER_ALL_IDS
    always: ClassVar[str] = " AND outcome IS NOT NULL"

    @property
    def scope(self) -> tuple[str, list[str]]:
        """The condition that an index finds rows by, and its values."""
        if self.reference is None:
            return "account = ?", [self.account]
        # The plus keeps SQLite from the index of accounts, the comparison lets it use that of references.
        return "reference = ? AND reference != '' AND +account = ?", [self.reference, self.account]

    @property
    def filters(self) -> tuple[str, list[str]]:
        """The further conditions, and their values."""
        pairs = (("model", self.model), ("outcome", self.outcome), ("operation", self.operation))
        given = [(column, value) for column, value in pairs if value is not None]
        return "".join(f" AND {column} = ?" for column, _ in given), [value for _, value in given]


class Page(msgspec.Struct):
    """A part of a list, newest first. `next`: the request after which the next part begins; empty where there is none."""

    records: list[Record]
    next: str = ""


def page(
    folder: Path, wanted: Wanted | WantedOfAll, limit: int, unusable: list[UnusableFile], most: int | None = None
) -> Page:
    """Return up to `limit` requests, newest first. It may be fewer, also where more follow: after `most` rows a page ends.

    Of an account, those that have ended. Where a file cannot be read, its error is added to `unusable`, and its requests are left
    out.
    """
    found, before, unread = Page([]), min(wanted.after or _AFTER_ALL_IDS, wanted.highest), most or MAX_SCANNED
    first, last = _month(wanted.lowest, _FIRST_MONTH), _month(before, _LAST_MONTH)
    for month in sorted(months(folder), reverse=True) if wanted.account != "" else ():
        if not first <= month <= last:
            continue
        with collecting(unusable), opened(folder, month) as file:
            if file is None or not _may_have(file, wanted):
                continue
            edge, scanned = _edge(file, wanted, before, unread)
            found.records += _select(file, wanted, (edge or wanted.lowest, before), limit + 1 - len(found.records))
            unread -= scanned
            found.next = edge
        if len(found.records) > limit:
            del found.records[limit:]
            found.next = found.records[-1].id
        if found.next:
            break
    unusable += lacks(folder, first, last)
    return found


def own_sums(
    folder: Path, account: str, by: Sequence[str], first: str, last: str, unusable: list[UnusableFile]
) -> list[dict[str, Any]]:
    """Return an account's sums of these days, both inclusive, by some of `OWN_GROUPS` and sorted by these.

    `unusable` is as for `page`.
    """
    inside = {month: [day for day in _days(month) if first <= day <= last] for month in months(folder) if account}

    def rows() -> Iterator[Sequence[Any]]:
        for month, days in inside.items():
            if days:
                with collecting(unusable), opened(folder, month) as file:
                    if file:
                        yield from _sums(file, account, by, days)

    found = merged(rows(), by, OWN_SUMS)
    unusable += lacks(folder, first[:7], last[:7])
    return found


def _may_have(file: sqlite3.Connection, wanted: Wanted | WantedOfAll) -> bool:
    return wanted.reference is None or "reference" in columns(file, "requests")


def _edge(file: sqlite3.Connection, wanted: Wanted | WantedOfAll, before: str, unread: int) -> tuple[str, int]:
    """Return the request at which a page ends that is not full before, if any, and how many rows its filters may skip."""
    if not wanted.filters[1]:
        return "", 0
    scope, values = wanted.scope
    inner = f"SELECT id FROM requests WHERE {scope} AND id >= ? AND id < ? ORDER BY id DESC LIMIT ?"  # noqa: S608 - texts of ours
    statement = f"SELECT coalesce(min(id), ''), count(*) FROM ({inner})"  # noqa: S608
    edge, scanned = file.execute(statement, (*values, wanted.lowest, before, unread)).fetchone()
    return (edge if scanned >= unread else ""), scanned


def _select(
    file: sqlite3.Connection, wanted: Wanted | WantedOfAll, between: tuple[str, str], limit: int
) -> list[Record]:
    (scope, own), (conditions, values) = wanted.scope, wanted.filters
    terms = f"WHERE {scope} AND id >= ? AND id < ?{wanted.always}{conditions} ORDER BY id DESC LIMIT ?"
    return [record_of(row) for row in select_rows(file, terms, (*own, *between, *values, limit))]


def _month(bound: str, otherwise: str) -> str:
    """Return the month of a bound of ids, or `otherwise` where it is none."""
    try:
        return utc(int(bound[:8] + bound[9:13], 16))[:7]
    except ValueError:
        return otherwise


def _sums(file: sqlite3.Connection, account: str, by: Sequence[str], days: Sequence[str]) -> list[Sequence[Any]]:
    names = ", ".join([*by, summed(file, OWN_SUMS)])
    group = f" GROUP BY {', '.join(by)}" if by else ""
    # Each day is looked up by itself: a row of the table begins with the day and the account.
    marks = ", ".join("?" * len(days))
    statement = f"SELECT {names} FROM days WHERE day IN ({marks}) AND account = ?{group}"  # noqa: S608 - names of ours only
    return file.execute(statement, (*days, account)).fetchall()


def _days(month: str) -> list[str]:
    return [f"{month}-{number:02}" for number in range(1, 32)]
