"""Sums from the sums by day, and from the requests themselves, are the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.domain.exchange import Outcome
from gateway.usage import queries, sums
from gateway.usage.database import UsageDatabase
from gateway.usage.sums import DAY_MS, Selected, grouped
from tests.records import COSTED, arrival, end, id_at, usage_database

NEW_YEAR_MS = 1_798_761_600_000


@pytest.fixture
def database(tmp_path: Path) -> Iterator[UsageDatabase]:
    database = usage_database(tmp_path)
    for number in range(12):
        changes: dict[str, Any] = {**COSTED} if number % 2 else {}
        opened = arrival(id_at(NEW_YEAR_MS + (number - 6) * DAY_MS // 2))
        outcome = Outcome.REFUSED if number % 5 == 0 else Outcome.COMPLETED
        database.write([end(opened, account="ab"[number % 2], model="mn"[number % 3 % 2], outcome=outcome, **changes)])
    yield database
    database.close()


@pytest.mark.parametrize("by", [["day"], ["month", "account"], ["model", "day", "channel", "token_id"], []])
@pytest.mark.parametrize(
    "wanted",
    [
        Selected(),
        Selected(account="a", model="m"),
        Selected(since_ms=NEW_YEAR_MS, until_ms=NEW_YEAR_MS + DAY_MS),
        Selected(until_ms=NEW_YEAR_MS),
    ],
)
def test_both_ways_give_the_same(
    database: UsageDatabase, monkeypatch: pytest.MonkeyPatch, by: list[str], wanted: Selected
) -> None:
    fast = grouped(database.folder, by, wanted, [])
    assert fast
    monkeypatch.setattr(sums, "_OF_DAYS", set())
    if by:
        assert grouped(database.folder, by, wanted, []) == fast
    if wanted == Selected() and "month" not in by:
        assert queries.summary(database.folder, by) == fast


def test_a_time_within_a_day_is_exact(database: UsageDatabase) -> None:
    def counted(since_ms: int, until_ms: int) -> int:
        return sum(
            line["requests"]
            for line in grouped(database.folder, ["day"], Selected(None, None, None, since_ms, until_ms), [])
        )

    assert counted(NEW_YEAR_MS + 1, NEW_YEAR_MS + DAY_MS // 2) == 0
    assert counted(NEW_YEAR_MS, NEW_YEAR_MS + DAY_MS // 2 + 1) == 2
