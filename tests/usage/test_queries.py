"""What can be asked of the files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.exchange import Outcome
from gateway.request_id import arrival_ms
from gateway.usage import queries
from gateway.usage.database import UsageDatabase
from gateway.usage.record import Record
from tests.records import arrival, end, id_at

DAY_MS = 86_400_000
NEW_YEAR_MS = 1_798_761_600_000


@pytest.fixture
def rows(tmp_path: Path) -> Iterator[UsageDatabase]:
    writer = UsageDatabase(tmp_path)
    yield writer
    writer.close()


def test_nothing_is_found_where_there_is_nothing(tmp_path: Path) -> None:
    assert queries.find(tmp_path / "none", arrival().id) is None
    assert list(queries.select(tmp_path / "none")) == []
    assert queries.summary(tmp_path / "none", ["day"]) == []


@pytest.mark.parametrize("id", ["", "x", "../../../etc/passwd", "ffffffff-ffff-7fff-bfff-ffffffffffff"])
def test_what_is_no_id_of_ours_is_not_found(rows: UsageDatabase, id: str) -> None:  # noqa: A002
    rows.write([arrival()])
    assert queries.find(rows.folder, id) is None


def test_requests_are_told_in_the_order_of_their_arrival_across_months(rows: UsageDatabase) -> None:
    times = [NEW_YEAR_MS + 7, NEW_YEAR_MS - 5, NEW_YEAR_MS, NEW_YEAR_MS - 9]
    rows.write(arrival(id_at(ms)) for ms in times)
    told = [row.arrived_at[-5:-1] for row in queries.select(rows.folder)]
    assert told == [".991", ".995", ".000", ".007"]
    assert [row.arrived_at[-5:-1] for row in queries.select(rows.folder, newest_first=True)] == told[::-1]


def test_requests_are_chosen_by_account_outcome_and_time(rows: UsageDatabase) -> None:
    mine, theirs = end(arrival(id_at(NEW_YEAR_MS))), end(arrival(id_at(NEW_YEAR_MS)), account="other")
    cut = end(arrival(id_at(NEW_YEAR_MS + 1)), outcome=Outcome.CALLER_GONE)
    rows.write([mine, theirs, cut])
    assert list(queries.select(rows.folder, account="demo")) == [mine, cut]
    assert list(queries.select(rows.folder, outcome=Outcome.CALLER_GONE)) == [cut]
    assert list(queries.select(rows.folder, since_ms=NEW_YEAR_MS + 1)) == [cut]
    assert list(queries.select(rows.folder, account="other", until_ms=NEW_YEAR_MS + 1)) == [theirs]


def test_a_summary_adds_up_over_all_that_it_is_not_asked_by(rows: UsageDatabase) -> None:
    for ms in (NEW_YEAR_MS - 1, NEW_YEAR_MS, NEW_YEAR_MS + DAY_MS):
        rows.write([end(arrival(id_at(ms))), end(arrival(id_at(ms)), model="llama-3", outcome=Outcome.REFUSED)])
    sums = {"requests": 3, "prompt_tokens": 33, "completion_tokens": 123, "charge_micros": 369}
    assert queries.summary(rows.folder, ["model"]) == [
        {"model": "gpt-4o-mini", "completed": 3, **sums},
        {"model": "llama-3", "completed": 0, **sums},
    ]
    assert [total["requests"] for total in queries.summary(rows.folder, [])] == [6]


def test_a_summary_includes_its_first_and_its_last_day(rows: UsageDatabase) -> None:
    rows.write(end(arrival(id_at(NEW_YEAR_MS + day * DAY_MS))) for day in range(-2, 3))
    told = queries.summary(rows.folder, ["day"], since="2026-12-31", until="2027-01-02")
    assert [total["day"] for total in told] == ["2026-12-31", "2027-01-01", "2027-01-02"]


def told(tail: queries.Tail) -> list[Record]:
    return [record for _, record in tail.poll()]


def test_a_tail_tells_each_request_once_when_it_has_ended(rows: UsageDatabase) -> None:
    before, across = arrival(), arrival()
    rows.write([end(before), across])
    tail = queries.Tail(rows.folder)
    assert told(tail) == []
    later = arrival()
    rows.write([end(across), later])
    assert told(tail) == [end(across)]
    rows.write([end(later), end(across)])
    assert told(tail) == [end(later)]
    assert told(tail) == []


def test_a_tail_goes_on_into_the_next_month(rows: UsageDatabase) -> None:
    rows.write([end(arrival(id_at(NEW_YEAR_MS - 1)))])
    tail = queries.Tail(rows.folder)
    new = end(arrival(id_at(NEW_YEAR_MS)))
    rows.write([new])
    assert told(tail) == [new]


def test_a_tail_goes_on_behind_every_record_that_another_told(rows: UsageDatabase) -> None:
    beginning = queries.Tail(rows.folder).cursor
    ended = [end(arrival(id_at(NEW_YEAR_MS + offset))) for offset in (-3, -2, -1, 0, 1)]
    rows.write(ended)
    first = queries.Tail(rows.folder, beginning).poll()
    assert [record for _, record in first] == ended
    for place, (cursor, _) in enumerate(first):
        assert told(queries.Tail(rows.folder, cursor)) == ended[place + 1 :]


def test_a_tail_is_told_again_of_a_guess_that_was_wrong(rows: UsageDatabase) -> None:
    tail, opened = queries.Tail(rows.folder), arrival()
    rows.write([opened])
    rows.close_crashed(arrival_ms(opened.id) + 1)
    assert [record.outcome for record in told(tail)] == [Outcome.GATEWAY_CRASHED]
    rows.write([end(opened)])
    assert told(tail) == [end(opened)]


@pytest.mark.parametrize("wrong", ["x", "2026-11", "2026-11.1+", "2026-11.1+2026-12.1+2027-01.1", "2026-11.-1", "\n"])
def test_what_never_was_a_place_is_no_cursor(rows: UsageDatabase, wrong: str) -> None:
    with pytest.raises(ValueError, match="no such place"):
        queries.Tail(rows.folder, wrong)


def test_reading_sees_only_whole_batches_while_one_is_written(rows: UsageDatabase) -> None:
    first = arrival()
    rows.write([first])
    reading = queries.select(rows.folder)
    assert next(reading) == first
    rows.write([arrival()])
    assert list(reading) == []
