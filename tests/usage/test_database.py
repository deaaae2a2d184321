"""The database of the usage log: a row is one request, and sums by day equal the sum of rows, whatever is written how."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from gateway.base.errors import GatewayError
from gateway.base.ids import arrival_ms, month
from gateway.domain.exchange import Outcome
from gateway.usage import database as checks_database
from gateway.usage import queries, rollups
from gateway.usage.database import (
    GROUPS,
    SUM_COLUMNS,
    SUMS,
    SUSPECT,
    UnusableFile,
    UsageFiles,
    check_files,
    files_aside,
    month_before,
    path_of,
)
from gateway.usage.home import Home
from gateway.usage.postgres import Postgres
from gateway.usage.record import MAX_NUMBER, Record
from gateway.usage.sums import Selected, grouped
from tests.records import COSTED, arrival, close_open, end, id_at, usage_database, writer

# A row is one request, and the sums by day equal the sum of the closed rows, whatever is written in whatever order.
NEW_YEAR_MS = 1_798_761_600_000


@pytest.fixture
def database(home: Home) -> Home:
    return writer(home)


def rolled_up(home: Home) -> list[dict[str, object]]:
    return grouped(home, GROUPS, Selected(), [])


def check_sums(home: Home) -> None:
    """Check that the sums by day and the roll-ups are those of the rows."""
    assert rolled_up(home) == summed(home)
    closed = [row for row in queries.select(home) if row.outcome is not None]
    found: list[Sequence[object]] = []
    for each in home.months():
        with home.opened(each) as part:
            found += part.execute(f"SELECT * FROM {part.rollups} WHERE requests != 0").fetchall() if part else []
    assert sorted(map(tuple, found)) == sorted(rollups.rolled_up(closed))


def summed(home: Home) -> list[dict[str, object]]:
    """The sums by day, computed from the rows."""
    totals: dict[tuple[str, ...], list[int]] = {}
    for row in queries.select(home):
        if row.outcome is not None:
            key = (row.arrived_at[:10], row.account, row.token_id, row.model, row.channel)
            sums = [getattr(row, name) or 0 for name in SUM_COLUMNS]
            values = [1, row.outcome is Outcome.COMPLETED, *sums, row.cost_micros is None]
            old = totals.get(key, [0] * len(values))
            totals[key] = [before + more for before, more in zip(old, values, strict=True)]
    return [dict(zip((*GROUPS, *SUMS), (*key, *totals[key]), strict=True)) for key in sorted(totals)]


def test_requests_around_midnight_on_new_year_are_in_their_own_files(database: Home) -> None:
    old, new = arrival(id_at(NEW_YEAR_MS - 1)), arrival(id_at(NEW_YEAR_MS))
    database.write([old, new, end(old), end(new)])
    assert database.months() == ["2026-12", "2027-01"]
    assert [day["day"] for day in grouped(database, ["day"], Selected(), [])] == ["2026-12-31", "2027-01-01"]


def test_the_files_of_old_months_are_dropped_and_may_be_written_again(database: Home) -> None:
    old, new = arrival(id_at(NEW_YEAR_MS - 1)), arrival(id_at(NEW_YEAR_MS))
    database.write([old, new])
    database.drop("2026-12")
    assert database.months() == ["2027-01"]
    assert sorted(path.name for path in database.folder.glob("usage-2026*")) == []
    assert list(queries.select(database)) == [new]
    database.write([old])
    assert queries.find(database, old.id) == old


def test_months_are_counted_back_over_the_turn_of_the_year() -> None:
    assert [month_before("2027-01", count) for count in (0, 1, 12, 13)] == [
        "2027-01", "2026-12", "2026-01", "2025-12",
    ]  # fmt: skip


def test_a_batch_that_fails_leaves_neither_a_row_nor_a_sum(tmp_path: Path) -> None:
    database = usage_database(tmp_path)
    good = arrival()
    database.write([good])
    with sqlite3.connect(path_of(database.folder, database.months()[0])) as other:
        other.execute("CREATE TRIGGER full BEFORE INSERT ON days BEGIN SELECT raise(ABORT, 'disk is full'); END")
    other.close()
    late = arrival()
    with pytest.raises(UnusableFile, match="disk is full"):
        database.write([late, end(good)])
    assert list(queries.select(database)) == [good]
    assert rolled_up(database) == []


def test_an_id_with_a_quote_in_it_is_only_data(database: Home) -> None:
    opened = arrival()
    database.write([end(opened, account="a'; DROP TABLE requests; --", model='"')])
    record = queries.find(database, opened.id)
    assert record is not None
    assert record.account == "a'; DROP TABLE requests; --"


def emptied(home: Postgres) -> Postgres:
    with home._transaction("BEGIN") as connection:
        for name in (each.replace("-", "_") for each in home.months()):
            connection.execute(
                "; ".join(f"DELETE FROM sluicegate.{table}_{name}" for table in ("requests", "days", "rollups"))
            )
    return home


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


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(WRITES, st.none()), max_size=6))
def test_the_sums_by_day_equal_the_sum_of_the_rows_whatever_is_written_in_whatever_order(
    home: Home, steps: list[list[Record] | None]
) -> None:
    with TemporaryDirectory() as name:
        database = usage_database(Path(name)) if isinstance(home, UsageFiles) else emptied(home)
        written: set[str] = set()
        for step in steps:
            if step is None:
                close_open(database, arrival_ms(REQUESTS[3].id) + 1)
            else:
                database.write(step)
                written |= {record.id for record in step}
        database.close()
        check_sums(database)
        assert {row.id for row in queries.select(database)} == written


@pytest.mark.parametrize("content", [b"garbage" * 5000, b"\0" * 8192, b"SQLite format 3\0" + b"\xff" * 9000])
def test_a_damaged_file_is_set_aside_and_a_fresh_one_begun(tmp_path: Path, content: bytes) -> None:
    database, first, second = usage_database(tmp_path), end(arrival()), end(arrival())
    database.write([first])
    database.close()
    path = path_of(tmp_path, month(first.id))
    path.write_bytes(content)
    with capture_logs() as logs:
        database.write([second])
        database.write([second])
    assert list(queries.select(UsageFiles(tmp_path))) == [second]
    (aside,) = files_aside(tmp_path)
    assert aside.read_bytes()[: len(content)] == content
    assert [entry["event"] for entry in logs] == ["usage_file_damaged"]
    with pytest.raises(UnusableFile, match="was damaged and set aside"):
        queries.find(UsageFiles(tmp_path), first.id)
    lacks: list[UnusableFile] = []
    assert [total["requests"] for total in grouped(UsageFiles(tmp_path), [], Selected(), lacks)] == [1]
    assert [str(aside) in str(each) for each in lacks] == [True]


def test_a_follower_goes_on_in_the_file_that_replaces_a_damaged_one(tmp_path: Path) -> None:
    database, later = usage_database(tmp_path), end(arrival())
    database.write([end(arrival()) for _ in range(5)])
    database.close()
    tail = queries.Tail(UsageFiles(tmp_path))
    path_of(tmp_path, month(later.id)).write_bytes(b"garbage" * 5000)
    assert tail.poll() == []
    database.write([later])
    assert [record for _, record in tail.poll()] == [later]


def test_a_file_that_was_cut_anywhere_stops_no_record(tmp_path: Path) -> None:
    chance = random.Random(3)
    for number in range(12):
        folder, record = tmp_path / str(number), end(arrival())
        database = usage_database(folder)
        database.write([end(arrival()) for _ in range(40)])
        database.close()
        path = path_of(folder, month(record.id))
        os.truncate(path, chance.randrange(path.stat().st_size))
        database.write([record])
        assert queries.find(UsageFiles(folder), record.id) == record
        database.close()


@pytest.mark.parametrize("in_the_way", [Path.mkdir, lambda path: path.symlink_to("/nowhere/else")])
def test_what_is_in_the_place_of_a_file_is_set_aside(tmp_path: Path, in_the_way: Callable[[Path], object]) -> None:
    record = end(arrival())
    in_the_way(path_of(tmp_path, month(record.id)))
    usage_database(tmp_path).write([record])
    assert queries.find(UsageFiles(tmp_path), record.id) == record
    assert len(files_aside(tmp_path)) == 1


def test_an_old_month_that_is_damaged_stops_no_other(tmp_path: Path) -> None:
    old, now = end(arrival(id_at(1_700_000_000_000))), end(arrival())
    database = usage_database(tmp_path)
    database.write([old, now, arrival()])
    database.close()
    path_of(tmp_path, month(old.id)).write_bytes(b"garbage" * 5000)
    unusable: list[UnusableFile] = []
    assert [row.id for row in queries.select(UsageFiles(tmp_path), outcome=Outcome.COMPLETED, unusable=unusable)] == [
        now.id
    ]
    assert [str(each) for each in unusable] == [
        f"{path_of(tmp_path, month(old.id))} cannot be used: file is not a database"
    ]
    with pytest.raises(UnusableFile):
        list(queries.select(UsageFiles(tmp_path)))
    assert close_open(database, 9_000_000_000_000) == 1
    database.close()


def test_a_row_with_garbage_is_named_by_its_file(tmp_path: Path) -> None:
    record = end(arrival())
    database = usage_database(tmp_path)
    database.write([record])
    database.close()
    with contextlib.closing(sqlite3.connect(path_of(tmp_path, month(record.id)))) as file, file:
        file.execute("UPDATE requests SET price = ?", (b"\xff",))
    with pytest.raises(UnusableFile, match="a row is unreadable"):
        queries.find(UsageFiles(tmp_path), record.id)


@pytest.mark.parametrize(
    "changed", ["requests DROP COLUMN bytes", "requests ADD COLUMN later TEXT", "days DROP COLUMN requests"]
)
def test_a_file_of_another_version_is_refused_and_stays_as_it_is(tmp_path: Path, changed: str) -> None:
    record = end(arrival())
    writer = usage_database(tmp_path)
    writer.write([record])
    writer.close()
    check_files(tmp_path)
    path = path_of(tmp_path, month(record.id))
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.execute(f"ALTER TABLE {changed}")
        file.commit()
    before = path.read_bytes()
    calls: list[Callable[[], object]] = [
        lambda: usage_database(tmp_path).write([record]),
        lambda: queries.find(UsageFiles(tmp_path), record.id),
        lambda: check_files(tmp_path),
    ]
    for refused in calls:
        with pytest.raises(GatewayError, match=f"{path.name} was written by another version of the gateway"):
            refused()
    assert path.read_bytes() == before
    assert files_aside(tmp_path) == []


# A batch is written with each sum, row and place as if its records had been written one by one.
OPENED = [arrival() for _ in range(3)]
ENDED = [end(OPENED[0], account="b", **COSTED), end(OPENED[1], account="a"), end(OPENED[2], account="b")]
CRASHED = end(OPENED[0], account="c", outcome=Outcome.GATEWAY_CRASHED)


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("records", [
    [*OPENED, CRASHED, *ENDED, *OPENED, *ENDED],
    [CRASHED, ENDED[0], CRASHED, end(OPENED[0], account="late"), OPENED[0]],
])  # fmt: skip
def test_the_size_of_the_batches_changes_nothing(database: Home, records: list[Record], size: int) -> None:
    coming = iter(records)
    while batch := list(itertools.islice(coming, size)):
        database.write(batch)
    expected = {record.id: record for record in ENDED if record in records}
    assert {record.id: record for record in queries.select(database)} == expected
    check_sums(database)


def test_sums_beyond_what_a_file_can_hold_stop_no_record(database: Home) -> None:
    opened = [arrival() for _ in range(1100)]
    database.write([end(record, prompt_tokens=MAX_NUMBER, completion_tokens=-MAX_NUMBER) for record in opened])
    (total,) = rolled_up(database)
    assert total["requests"] == len(opened)
    assert total["prompt_tokens"] == pytest.approx(MAX_NUMBER * len(opened))
    assert total["completion_tokens"] == pytest.approx(-MAX_NUMBER * len(opened))


# A file that is damaged on the disk is noticed by its writer, which has the pages in memory.
OLD = end(arrival())
MONTH = month(OLD.id)


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> UsageFiles:
    """Return a writer that has written some hundred records, and checks its files each time."""
    monkeypatch.setattr(checks_database, "CHECK_S", 0)
    rows = usage_database(tmp_path)
    rows.write([OLD, *(end(arrival()) for _ in range(400))])
    return rows


def overwrite(path: Path, first: int, last: int) -> None:
    with path.open("r+b") as file:
        file.seek(first)
        file.write(os.urandom(last - first))


def test_a_file_overwritten_while_it_is_written_is_set_aside(rows: UsageFiles) -> None:
    path, wal = path_of(rows.folder, MONTH), path_of(rows.folder, MONTH, "-wal")
    overwrite(path, 0, path.stat().st_size)
    overwrite(wal, 0, wal.stat().st_size)
    rows.write([after := end(arrival())])  # it does not notice
    rows.check()
    assert len(files_aside(rows.folder)) == 1
    rows.write([after])
    assert list(queries.select(UsageFiles(rows.folder))) == [after]


def test_damage_that_a_reader_finds_is_reported_to_the_writer(
    rows: UsageFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks_database, "look", lambda path: None)
    wal = path_of(rows.folder, MONTH, "-wal")
    overwrite(wal, wal.stat().st_size // 3, wal.stat().st_size // 2)
    rows.check()
    assert files_aside(rows.folder) == []
    with pytest.raises(UnusableFile):
        list(queries.select(UsageFiles(rows.folder)))
    rows.check()
    assert len(files_aside(rows.folder)) == 1
    assert not path_of(rows.folder, MONTH, SUSPECT).exists()


def test_a_report_about_a_sound_file_changes_nothing(rows: UsageFiles) -> None:
    path_of(rows.folder, MONTH, SUSPECT).touch()
    rows.check()
    assert files_aside(rows.folder) == []
    assert queries.find(UsageFiles(rows.folder), OLD.id) == OLD
    assert not path_of(rows.folder, MONTH, SUSPECT).exists()


def test_a_file_that_something_else_removed_is_lost_and_followers_go_on(rows: UsageFiles) -> None:
    tail = queries.Tail(UsageFiles(rows.folder))
    path_of(rows.folder, MONTH).unlink()
    with capture_logs() as logs:
        rows.write([after := end(arrival())])
    assert len(files_aside(rows.folder)) == 1
    assert [entry["event"] for entry in logs] == ["usage_file_gone"]
    assert [record.id for _, record in tail.poll()[-1:]] == [after.id]
    with pytest.raises(UnusableFile, match="is empty in place of a file that was removed"):
        queries.find(UsageFiles(rows.folder), OLD.id)
