"""Sums of the usage log by any of `NAMES`. They are read from the sums by day where these suffice, and else added up from the
requests, which takes about two seconds for a million. All of it blocks.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.exchange import Outcome
from gateway.request_id import LAST_MS, first_id, utc
from gateway.usage.damage import UnusableFile
from gateway.usage.database import months
from gateway.usage.reading import collecting, lacks, merged, month_at, opened
from gateway.usage.tables import GROUPS, SUM_COLUMNS, SUMS, columns, summed

DAY_MS: Final = 86_400_000
_TIMES: Final = {"hour": 13, "day": 10, "month": 7}
"""Characters of a time that name its hour, its day and its month."""
NAMES: Final = ("month", "day", "hour", "account", "group", "token_id", "model", "channel", "outcome", "error_code")
"""What sums are grouped by."""
_OF_DAYS: Final = {*GROUPS, "month"}


class Selected(msgspec.Struct, frozen=True):
    """Which requests are added up. `until_ms` is exclusive."""

    account: str | None = None
    model: str | None = None
    outcome: Outcome | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    @property
    def days_suffice(self) -> bool:
        """Return whether the sums by day tell these requests from others."""
        return self.outcome is None and not any((ms or 0) % DAY_MS for ms in (self.since_ms, self.until_ms))

    @property
    def filters(self) -> tuple[str, list[str]]:
        """The conditions but for the time, and their values."""
        pairs = (("account", self.account), ("model", self.model), ("outcome", self.outcome))
        given = [(column, value) for column, value in pairs if value is not None]
        return "".join(f" AND {column} = ?" for column, _ in given), [value for _, value in given]

    @property
    def between_ms(self) -> tuple[int, int]:
        """The first moment, and the one after the last."""
        return self.since_ms or 0, LAST_MS if self.until_ms is None else self.until_ms


def grouped(folder: Path, by: Sequence[str], wanted: Selected, unusable: list[UnusableFile]) -> list[dict[str, Any]]:
    """Return the sums by some of `NAMES`, sorted by these: dicts with these groups and `SUMS`.

    Where a file cannot be read, its error is added to `unusable`, and its requests are left out.
    """
    since_ms, until_ms = wanted.between_ms
    first, last = month_at(since_ms), month_at(until_ms)

    def rows() -> Iterator[Sequence[Any]]:
        for month in months(folder):
            if first <= month <= last:
                with collecting(unusable), opened(folder, month) as file:
                    if file:
                        yield from file.execute(*statement(file, by, wanted)).fetchall()

    found = merged(rows(), by, SUMS)
    unusable += lacks(folder, first, last)
    return found


def statement(file: sqlite3.Connection, by: Sequence[str], wanted: Selected) -> tuple[str, Sequence[Any]]:
    """Return the statement that adds up the requests of a file, and its values: from the sums by day where these suffice."""
    return (
        _of_days(file, by, wanted)
        if wanted.days_suffice and _OF_DAYS.issuperset(by)
        else _of_requests(file, by, wanted)
    )


def _of_days(file: sqlite3.Connection, by: Sequence[str], wanted: Selected) -> tuple[str, Sequence[Any]]:
    conditions, values = wanted.filters
    names = ["substr(day, 1, 7)" if name == "month" else name for name in by]
    since, until = (utc(ms)[:10] if ms < LAST_MS else "9999-12-32" for ms in wanted.between_ms)
    text = f"SELECT {', '.join([*names, summed(file)])} FROM days WHERE day >= ? AND day < ?{conditions}{_group(by)}"  # noqa: S608
    return text, (since, until, *values)


def _of_requests(file: sqlite3.Connection, by: Sequence[str], wanted: Selected) -> tuple[str, Sequence[Any]]:
    conditions, values = wanted.filters
    present = columns(file, "requests")
    sums = ["count(*)", f"sum(outcome = '{Outcome.COMPLETED}')"]
    sums += [f"sum({name})" if name in present else "0" for name in SUM_COLUMNS]
    sums.append("sum(cost_micros IS NULL)" if "cost_micros" in present else "count(*)")
    names = [f"substr(arrived_at, 1, {_TIMES[name]})" if name in _TIMES else f'"{name}"' for name in by]
    since_ms, until_ms = wanted.between_ms
    text = (
        f"SELECT {', '.join([*names, *sums])} FROM requests "  # noqa: S608 - names of ours only
        f"WHERE id >= ? AND id < ? AND outcome IS NOT NULL{conditions}{_group(by)}"
    )
    return text, (first_id(since_ms), first_id(until_ms), *values)


def _group(by: Sequence[str]) -> str:
    return f" GROUP BY {', '.join(str(number + 1) for number in range(len(by)))}" if by else ""
