"""Sums of days that are over are kept, and are still those of the log whatever is written later."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.domain.exchange import Outcome
from gateway.usage import sums
from gateway.usage.database import SUMS, UnusableFile, path_of
from gateway.usage.home import Home, Part, Writer
from gateway.usage.record import Record
from gateway.usage.sums import DAY_MS, Order, Row, Selected, Summing, grouped, statement
from tests.records import COSTED, arrival, end, id_at, usage_database, writer

NEW_YEAR_MS = 1_798_761_600_000
NOW_MS = NEW_YEAR_MS + 5 * DAY_MS + 9 * 3_600_000
ALL = 1_000_000
BY = (
    (),
    ("day",),
    ("month",),
    ("account",),
    ("account", "model", "channel"),
    ("day", "account", "model"),
    ("model", "day"),
    ("outcome", "error_code"),
    ("hour", "account"),
)


@pytest.fixture
def database(home: Home) -> Writer:
    return writer(home)


def some(random_: random.Random, count: int, last_ms: int = NOW_MS) -> list[Record]:
    """Return ends of requests of the last ten days."""
    return [
        end(
            arrival(id_at(last_ms - random_.randrange(10 * DAY_MS))),
            **COSTED if random_.random() < 0.5 else {},
            account=random_.choice(["", "alice", "bob", "carol"]),
            model=random_.choice(["a", "b"]),
            channel=random_.choice(["x", "y"]),
            outcome=random_.choice([Outcome.COMPLETED, Outcome.REFUSED]),
            error_code=random_.choice(["", "rate_limited"]),
            charge_micros=random_.randrange(1000),
        )
        for _ in range(count)
    ]


def dicts(rows: list[Row], by: tuple[str, ...]) -> list[dict[str, Any]]:
    return [dict(zip((*by, *SUMS), row, strict=True)) for row in rows]


def check(summing: Summing, home: Home, by: tuple[str, ...], wanted: Selected) -> None:
    """Assert that the sums are those of the log, in any order, and page by page."""
    expected = grouped(home, by, wanted, [])
    found = summing.totals(by, wanted, Order(ALL), [])
    assert dicts(found.rows, by) == expected
    assert (found.lines, dict(zip(SUMS, found.total, strict=True))) == (
        len(expected),
        {name: sum(line[name] for line in expected) for name in SUMS},
    )
    for sort in ("requests", "charge_micros"):
        largest = summing.totals(by, wanted, Order(3, sort), [])
        assert [row[len(by) + SUMS.index(sort)] for row in largest.rows] == sorted(
            (line[sort] for line in expected), reverse=True
        )[:3]
        assert (largest.lines, largest.total) == (found.lines, found.total)
    paged, after = list[Row](), tuple[str, ...]()
    while by and (part := summing.totals(by, wanted, Order(7, after=after), [])).rows:
        assert (part.lines, part.total) == (found.lines, found.total)
        paged += part.rows
        after = part.rows[-1][: len(by)]
    assert paged == (found.rows if by else [])


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize(
    "wanted",
    [
        Selected(),
        Selected(account="alice"),
        Selected(model="a", outcome=Outcome.REFUSED),
        Selected(since_ms=NEW_YEAR_MS - 3 * DAY_MS, until_ms=NEW_YEAR_MS + 2 * DAY_MS),
        Selected(since_ms=NEW_YEAR_MS - 3 * DAY_MS - 5000, until_ms=NEW_YEAR_MS + 2 * DAY_MS + 5000),
        Selected(since_ms=NEW_YEAR_MS + 1000, until_ms=NEW_YEAR_MS + 5000_000),
        Selected(since_ms=NOW_MS - DAY_MS),
    ],
)
def test_sums_are_those_of_the_log_whatever_is_written(
    database: Writer, monkeypatch: pytest.MonkeyPatch, by: tuple[str, ...], wanted: Selected
) -> None:
    random_ = random.Random(4711)
    monkeypatch.setattr(sums, "FEW", 4)
    now_ms = NOW_MS
    summing = Summing(database.home, lambda: now_ms / 1000)
    check(summing, database.home, by, wanted)
    for turn in range(4):
        database.write(some(random_, 30, now_ms))
        check(summing, database.home, by, wanted)
        now_ms += turn * 7 * 3_600_000


def test_a_presumed_end_of_an_old_day_that_is_replaced_counts_anew(database: Writer) -> None:
    summing = Summing(database.home, lambda: NOW_MS / 1000)
    opened = arrival(id_at(NOW_MS - 4 * DAY_MS))
    database.write([opened, *some(random.Random(1), 20)])
    database.write([msgspec.structs.replace(opened, outcome=Outcome.GATEWAY_CRASHED)])
    for by in BY:
        check(summing, database.home, by, Selected())
    database.write([end(opened, charge_micros=999_999)])
    for by in BY:
        check(summing, database.home, by, Selected())
    assert summing.totals((), Selected(), Order(1), []).total[SUMS.index("charge_micros")] >= 999_999


def test_days_that_are_over_are_not_added_up_again(database: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    database.write(some(random.Random(2), 50))
    summing = Summing(database.home, lambda: NOW_MS / 1000)
    read: list[Selected] = []
    real = statement

    def counting(part: Part, by: Sequence[str], wanted: Selected) -> tuple[str, Sequence[Any]]:
        read.append(wanted)
        return real(part, by, wanted)

    monkeypatch.setattr("gateway.usage.sums.statement", counting)
    today_ms = NOW_MS // DAY_MS * DAY_MS
    for order in (Order(10), Order(10, "requests")):
        for by in (("account",), ("day", "account")):
            summing.totals(by, Selected(), order, [])
            read.clear()
            summing.totals(by, Selected(), order, [])
            assert {wanted.since_ms for wanted in read} == {today_ms}
    database.write([end(arrival(id_at(NEW_YEAR_MS + DAY_MS)))])
    read.clear()
    summing.totals(("account",), Selected(), Order(10), [])
    assert {wanted.since_ms for wanted in read} == {NEW_YEAR_MS, today_ms}


def test_after_many_ends_all_is_added_up_again(database: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "MANY", 10)
    summing = Summing(database.home, lambda: NOW_MS / 1000)
    for count in (5, 15, 5, 30):
        database.write(some(random.Random(count), count))
        check(summing, database.home, ("account",), Selected())


def test_another_file_in_the_place_of_one_is_read_anew(tmp_path: Path) -> None:
    summing = Summing(tmp_path, lambda: NOW_MS / 1000)
    for seed in (1, 2):
        database = usage_database(tmp_path)
        database.write(some(random.Random(seed), 40))
        for by in BY:
            check(summing, tmp_path, by, Selected())
        database.close()
        for month in ("2026-12", "2027-01"):
            path_of(tmp_path, month).unlink()
    assert summing.totals(("account",), Selected(), Order(ALL), []).rows == []


def test_no_more_is_kept_than_some_bytes(database: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    database.write(some(random.Random(1), 200))
    monkeypatch.setattr(sums, "MAX_BYTES", 2000)
    summing = Summing(database.home, lambda: NOW_MS / 1000)
    for by in BY * 2:
        check(summing, database.home, by, Selected())
    assert 0 < summing.kept_bytes <= 2000


def test_a_file_that_cannot_be_read_is_named_and_not_kept_as_nothing(tmp_path: Path) -> None:
    database = usage_database(tmp_path)
    database.write(some(random.Random(1), 40))
    expected = grouped(tmp_path, ("account",), Selected(), [])
    database.close()
    path = path_of(tmp_path, "2026-12")
    whole = path.read_bytes()
    summing, unusable = Summing(tmp_path, lambda: NOW_MS / 1000), list[UnusableFile]()
    path.write_bytes(b"no database" * 1000)
    summing.totals(("account",), Selected(), Order(ALL), unusable)
    assert len(unusable) == 1
    path.write_bytes(whole)
    assert dicts(summing.totals(("account",), Selected(), Order(ALL), []).rows, ("account",)) == expected
