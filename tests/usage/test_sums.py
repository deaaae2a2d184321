"""Sums from the sums by day, and from the requests themselves, are the same."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.domain.exchange import Outcome
from gateway.usage import queries, sums
from gateway.usage.home import Home, Writer
from gateway.usage.sums import DAY_MS, Selected, grouped
from tests.records import COSTED, arrival, end, id_at, writer

NEW_YEAR_MS = 1_798_761_600_000


@pytest.fixture
def database(home: Home) -> Writer:
    database = writer(home)
    for number in range(12):
        changes: dict[str, Any] = {**COSTED} if number % 2 else {}
        opened = arrival(id_at(NEW_YEAR_MS + (number - 6) * DAY_MS // 2))
        outcome = Outcome.REFUSED if number % 5 == 0 else Outcome.COMPLETED
        database.write([end(opened, account="ab"[number % 2], model="mn"[number % 3 % 2], outcome=outcome, **changes)])
    return database


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
    database: Writer, monkeypatch: pytest.MonkeyPatch, by: list[str], wanted: Selected
) -> None:
    fast = grouped(database.home, by, wanted, [])
    assert fast
    monkeypatch.setattr(sums, "_OF_DAYS", set())
    if by:
        assert grouped(database.home, by, wanted, []) == fast
    if wanted == Selected() and "month" not in by:
        assert queries.summary(database.home, by) == fast


def test_a_time_within_a_day_is_exact(database: Writer) -> None:
    def counted(since_ms: int, until_ms: int) -> int:
        return sum(
            line["requests"]
            for line in grouped(database.home, ["day"], Selected(None, None, None, since_ms, until_ms), [])
        )

    assert counted(NEW_YEAR_MS + 1, NEW_YEAR_MS + DAY_MS // 2) == 0
    assert counted(NEW_YEAR_MS, NEW_YEAR_MS + DAY_MS // 2 + 1) == 2


def test_sums_are_grouped_by_a_tag(home: Home) -> None:
    database = writer(home)
    tags: list[dict[str, str]] = [{"tenant": "acme"}, {"tenant": "acme", "feature": "chat"}, {"tenant": "it's"}, {}]
    database.write([end(arrival(id_at(NEW_YEAR_MS)), tags=each) for each in tags])
    found = grouped(home, ["tag:tenant"], Selected(), [])
    assert [(line["tag:tenant"], line["requests"]) for line in found] == [("", 1), ("acme", 2), ("it's", 1)]
