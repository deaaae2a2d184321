"""A row is one request, and the sums by day equal the sum of the closed rows, whatever is written in whatever order."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.exchange import Outcome
from gateway.request_id import arrival_ms
from gateway.usage import queries
from gateway.usage.database import GROUPS, SUMS, UsageDatabase, months, months_ago, path_of
from gateway.usage.record import Record
from tests.records import arrival, end, id_at

NEW_YEAR_MS = 1_798_761_600_000


@pytest.fixture
def database(tmp_path: Path) -> Iterator[UsageDatabase]:
    database = UsageDatabase(tmp_path)
    yield database
    database.close()


def rolled_up(folder: Path) -> list[dict[str, object]]:
    return queries.summary(folder, GROUPS)


def summed(folder: Path) -> list[dict[str, object]]:
    """The sums by day, computed from the rows."""
    totals: dict[tuple[str, ...], list[int]] = {}
    for row in queries.select(folder):
        if row.outcome is not None:
            key = (row.arrived_at[:10], row.account, row.token_id, row.model, row.channel)
            values = [1, row.outcome is Outcome.COMPLETED, row.prompt_tokens, row.completion_tokens, row.charge_micros]
            totals[key] = [old + new for old, new in zip(totals.get(key, [0] * 5), values, strict=True)]
    return [dict(zip((*GROUPS, *SUMS), (*key, *totals[key]), strict=True)) for key in sorted(totals)]


def test_an_arrival_is_an_open_row(database: UsageDatabase) -> None:
    opened = arrival()
    database.write([opened])
    assert queries.find(database.folder, opened.id) == opened
    assert rolled_up(database.folder) == []


def test_an_end_replaces_its_arrival(database: UsageDatabase) -> None:
    opened = arrival()
    database.write([opened])
    database.write([end(opened)])
    assert list(queries.select(database.folder)) == [end(opened)]


def test_an_end_that_comes_before_its_arrival_stays(database: UsageDatabase) -> None:
    opened = arrival()
    database.write([end(opened)])
    database.write([opened])
    assert list(queries.select(database.folder)) == [end(opened)]


def test_writing_a_record_again_changes_nothing(database: UsageDatabase) -> None:
    opened = arrival()
    for _ in range(3):
        database.write([opened, end(opened)])
        database.write([end(opened, charge_micros=999)])
    assert list(queries.select(database.folder)) == [end(opened)]
    assert [day["charge_micros"] for day in rolled_up(database.folder)] == [123]


def test_requests_around_midnight_on_new_year_are_in_their_own_files(database: UsageDatabase) -> None:
    old, new = arrival(id_at(NEW_YEAR_MS - 1)), arrival(id_at(NEW_YEAR_MS))
    database.write([old, new, end(old), end(new)])
    assert months(database.folder) == ["2026-12", "2027-01"]
    assert [day["day"] for day in queries.summary(database.folder, ["day"])] == ["2026-12-31", "2027-01-01"]


def test_close_crashed_closes_only_old_open_requests(database: UsageDatabase) -> None:
    old, ended, young = arrival(id_at(NEW_YEAR_MS)), arrival(id_at(NEW_YEAR_MS)), arrival(id_at(NEW_YEAR_MS + 5000))
    database.write([old, ended, end(ended), young])
    assert database.close_crashed(NEW_YEAR_MS + 5000) == 1
    outcomes = {row.id: row.outcome for row in queries.select(database.folder)}
    assert outcomes == {old.id: Outcome.GATEWAY_CRASHED, ended.id: Outcome.COMPLETED, young.id: None}


def test_an_actual_end_that_comes_late_replaces_a_presumed_one(database: UsageDatabase) -> None:
    opened = arrival()
    database.write([opened])
    database.close_crashed(arrival_ms(opened.id) + 1)
    database.write([end(opened)])
    assert queries.find(database.folder, opened.id) == end(opened)
    assert rolled_up(database.folder) == summed(database.folder)


def test_close_crashed_never_replaces_an_actual_end(database: UsageDatabase) -> None:
    opened = arrival()
    database.write([end(opened, outcome=Outcome.CALLER_GONE)])
    assert database.close_crashed(arrival_ms(opened.id) + 1) == 0


def test_the_files_of_old_months_are_dropped_and_may_be_written_again(database: UsageDatabase) -> None:
    old, new = arrival(id_at(NEW_YEAR_MS - 1)), arrival(id_at(NEW_YEAR_MS))
    database.write([old, new])
    assert database.drop_before("2027-01") == ["2026-12"]
    assert sorted(path.name for path in database.folder.glob("usage-2026*")) == []
    assert list(queries.select(database.folder)) == [new]
    database.write([old])
    assert queries.find(database.folder, old.id) == old


def test_months_are_counted_back_over_the_turn_of_the_year() -> None:
    assert [months_ago(count, NEW_YEAR_MS / 1000) for count in (0, 1, 12, 13)] == [
        "2027-01", "2026-12", "2026-01", "2025-12",
    ]  # fmt: skip


def test_a_batch_that_fails_leaves_neither_a_row_nor_a_sum(database: UsageDatabase) -> None:
    good = arrival()
    database.write([good])
    with sqlite3.connect(path_of(database.folder, months(database.folder)[0])) as other:
        other.execute("CREATE TRIGGER full BEFORE INSERT ON days BEGIN SELECT raise(ABORT, 'disk is full'); END")
    other.close()
    late = arrival()
    with pytest.raises(sqlite3.Error):
        database.write([late, end(good)])
    assert list(queries.select(database.folder)) == [good]
    assert rolled_up(database.folder) == []


def test_an_id_with_a_quote_in_it_is_only_data(database: UsageDatabase) -> None:
    opened = arrival()
    database.write([end(opened, account="a'; DROP TABLE requests; --", model='"')])
    record = queries.find(database.folder, opened.id)
    assert record is not None
    assert record.account == "a'; DROP TABLE requests; --"


REQUESTS = [arrival() for _ in range(6)]
ENDS = st.builds(
    lambda of, account, model, outcome, charge: end(
        of, account=account, model=model, outcome=outcome, charge_micros=charge
    ),
    st.sampled_from(REQUESTS),
    st.sampled_from(["", "a", "b"]),
    st.sampled_from(["", "m"]),
    st.sampled_from(list(Outcome)),
    st.integers(0, 2**53),
)
WRITES = st.lists(st.one_of(st.sampled_from(REQUESTS), ENDS), max_size=8)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(WRITES, st.none()), max_size=6))
def test_the_sums_by_day_equal_the_sum_of_the_rows_whatever_is_written_in_whatever_order(
    steps: list[list[Record] | None],
) -> None:
    with TemporaryDirectory() as name:
        database = UsageDatabase(Path(name))
        written: set[str] = set()
        for step in steps:
            if step is None:
                database.close_crashed(arrival_ms(REQUESTS[3].id) + 1)
            else:
                database.write(step)
                written |= {record.id for record in step}
        database.close()
        assert rolled_up(database.folder) == summed(database.folder)
        assert {row.id for row in queries.select(database.folder)} == written
