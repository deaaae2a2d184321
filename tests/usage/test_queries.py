"""Queries of the usage log's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.base.ids import arrival_ms
from gateway.domain.exchange import Outcome
from gateway.usage import queries
from gateway.usage.home import Home, Writer
from gateway.usage.record import Record
from tests.records import COSTED, arrival, close_open, end, id_at, writer

DAY_MS = 86_400_000
NEW_YEAR_MS = 1_798_761_600_000


@pytest.fixture
def database(home: Home) -> Writer:
    return writer(home)


def test_a_folder_that_does_not_exist_has_no_requests(tmp_path: Path) -> None:
    assert queries.find(tmp_path / "none", arrival().id) is None
    assert list(queries.select(tmp_path / "none")) == []
    assert queries.summary(tmp_path / "none", ["day"]) == []


@pytest.mark.parametrize("id", ["", "x", "../../../etc/passwd", "ffffffff-ffff-7fff-bfff-ffffffffffff"])
def test_an_invalid_id_is_not_found(database: Writer, id: str) -> None:  # noqa: A002
    database.write([arrival()])
    assert queries.find(database.home, id) is None


def test_requests_are_selected_in_the_order_of_their_arrival_across_months(database: Writer) -> None:
    times = [NEW_YEAR_MS + 7, NEW_YEAR_MS - 5, NEW_YEAR_MS, NEW_YEAR_MS - 9]
    database.write(arrival(id_at(ms)) for ms in times)
    stamps = [row.arrived_at[-5:-1] for row in queries.select(database.home)]
    assert stamps == [".991", ".995", ".000", ".007"]
    assert [row.arrived_at[-5:-1] for row in queries.select(database.home, newest_first=True)] == stamps[::-1]


def test_requests_are_selected_by_account_outcome_and_time(database: Writer) -> None:
    mine, theirs = end(arrival(id_at(NEW_YEAR_MS))), end(arrival(id_at(NEW_YEAR_MS)), account="other")
    cut = end(arrival(id_at(NEW_YEAR_MS + 1)), outcome=Outcome.CALLER_GONE)
    database.write([mine, theirs, cut])
    assert list(queries.select(database.home, account="demo")) == [mine, cut]
    assert list(queries.select(database.home, outcome=Outcome.CALLER_GONE)) == [cut]
    assert list(queries.select(database.home, since_ms=NEW_YEAR_MS + 1)) == [cut]
    assert list(queries.select(database.home, account="other", until_ms=NEW_YEAR_MS + 1)) == [theirs]


def test_a_summary_adds_up_everything_that_it_is_not_grouped_by(database: Writer) -> None:
    for ms in (NEW_YEAR_MS - 1, NEW_YEAR_MS, NEW_YEAR_MS + DAY_MS):
        other = end(arrival(id_at(ms)), model="llama-3", outcome=Outcome.REFUSED)
        database.write([end(arrival(id_at(ms)), **COSTED), other])
    sums = {"requests": 3, "prompt_tokens": 33, "completion_tokens": 123, "charge_micros": 369}
    known = {"cached_tokens": 12, "cache_write_tokens": 6, "cost_micros": 300, "margin_micros": 69, "unknown_costs": 0}
    unknown = {**dict.fromkeys(known, 0), "unknown_costs": 3}
    assert queries.summary(database.home, ["model"]) == [
        {"model": "gpt-4o-mini", "completed": 3, **sums, **known},
        {"model": "llama-3", "completed": 0, **sums, **unknown},
    ]
    assert [total["requests"] for total in queries.summary(database.home, [])] == [6]


def test_a_summary_includes_its_first_and_its_last_day(database: Writer) -> None:
    database.write(end(arrival(id_at(NEW_YEAR_MS + day * DAY_MS))) for day in range(-2, 3))
    totals = queries.summary(database.home, ["day"], since="2026-12-31", until="2027-01-02")
    assert [total["day"] for total in totals] == ["2026-12-31", "2027-01-01", "2027-01-02"]


def polled(tail: queries.Tail) -> list[Record]:
    return [record for _, record in tail.poll()]


def test_a_tail_returns_each_request_once_when_it_has_ended(database: Writer) -> None:
    before, across = arrival(), arrival()
    database.write([end(before), across])
    tail = queries.Tail(database.home)
    assert polled(tail) == []
    later = arrival()
    database.write([end(across), later])
    assert polled(tail) == [end(across)]
    database.write([end(later), end(across)])
    assert polled(tail) == [end(later)]
    assert polled(tail) == []


def test_a_tail_continues_into_the_next_month(database: Writer) -> None:
    database.write([end(arrival(id_at(NEW_YEAR_MS - 1)))])
    tail = queries.Tail(database.home)
    new = end(arrival(id_at(NEW_YEAR_MS)))
    database.write([new])
    assert polled(tail) == [new]


def test_a_tail_continues_after_any_cursor_of_another(database: Writer) -> None:
    beginning = queries.Tail(database.home).cursor
    ended = [end(arrival(id_at(NEW_YEAR_MS + offset))) for offset in (-3, -2, -1, 0, 1)]
    database.write(ended)
    first = queries.Tail(database.home, beginning).poll()
    assert [record for _, record in first] == ended
    for place, (cursor, _) in enumerate(first):
        assert polled(queries.Tail(database.home, cursor)) == ended[place + 1 :]


def test_a_tail_returns_a_request_again_when_its_presumed_end_was_wrong(database: Writer) -> None:
    tail, opened = queries.Tail(database.home), arrival()
    database.write([opened])
    close_open(database, arrival_ms(opened.id) + 1)
    assert [record.outcome for record in polled(tail)] == [Outcome.GATEWAY_CRASHED]
    database.write([end(opened)])
    assert polled(tail) == [end(opened)]


@pytest.mark.parametrize("wrong", ["x", "2026-11", "2026-11.1+", "2026-11.1+2026-12.1+2027-01.1", "2026-11.-1", "\n"])
def test_an_invalid_cursor_is_refused(database: Writer, wrong: str) -> None:
    with pytest.raises(ValueError, match="no such place"):
        queries.Tail(database.home, wrong)


def test_a_reader_sees_whole_batches_only_while_one_is_written(database: Writer) -> None:
    first = arrival()
    database.write([first])
    reading = queries.select(database.home)
    assert next(reading) == first
    database.write([arrival()])
    assert list(reading) == []


def test_requests_are_named_by_the_ids_of_their_answers(database: Writer) -> None:
    times = (NEW_YEAR_MS - DAY_MS, NEW_YEAR_MS, NEW_YEAR_MS + DAY_MS)
    found = [end(arrival(id_at(ms)), completion_id=f"chatcmpl-{number % 2}") for number, ms in enumerate(times)]
    database.write([*found, end(arrival(id_at(NEW_YEAR_MS)), completion_id="")])
    assert queries.named(database.home, "completion_id", ["chatcmpl-0"], 9) == [found[2], found[0]]
    assert queries.named(database.home, "completion_id", ["chatcmpl-0", "chatcmpl-1"], 2) == [found[2], found[1]]
    assert queries.named(database.home, "completion_id", [""], 9) == []
