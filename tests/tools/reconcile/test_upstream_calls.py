"""The calls of upstreams are read from the files."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from gateway.tools.reconcile.join import Call, logged
from gateway.usage.database import UnusableFile, path_of
from gateway.usage.record import AttemptRecord, Record
from tests.records import arrival, end, id_at, usage_database

NOV_20 = 1_795_132_800_000
"""2026-11-20 00:00 UTC."""
DAY_MS = 86_400_000


def served(at_ms: int, *attempts: AttemptRecord, **changes: object) -> Record:
    return end(arrival(id_at(at_ms)), attempts=list(attempts), **changes)


def calls(folder: Path, since_ms: int | None = None, until_ms: int | None = None) -> list[Call]:
    unusable: list[UnusableFile] = []
    found = list(logged(folder, since_ms=since_ms, until_ms=until_ms, unusable=unusable))
    assert unusable == []
    return found


def test_each_attempt_is_a_call_with_its_names_and_its_cost(tmp_path: Path) -> None:
    record = served(
        NOV_20,
        AttemptRecord("a", 500, "upstream_error", 0, "req-1"),
        AttemptRecord("b", 200, "", 7, "req-2", "cmpl-2"),
        upstream_request_id="req-2",
    )
    usage_database(tmp_path).write([record])
    assert calls(tmp_path) == [
        Call(record.id, "2026-11-20", "gpt-4o-mini", "a", ("req-1",), 0),
        Call(record.id, "2026-11-20", "gpt-4o-mini", "b", ("req-2", "cmpl-2"), 7000),
    ]


def test_an_id_that_is_both_is_one_name(tmp_path: Path) -> None:
    usage_database(tmp_path).write([served(NOV_20, AttemptRecord("a", 200, "", 1, "same", "same"))])
    assert calls(tmp_path)[0].names == ("same",)


def test_where_no_cost_is_known_the_one_that_the_upstream_stated_counts(tmp_path: Path) -> None:
    tried, last = AttemptRecord("a", 502, "x", None, "req-1"), AttemptRecord("b", 200, "", None, "req-2")
    usage_database(tmp_path).write([served(NOV_20, tried, last, upstream_cost_micros=9)])
    assert [call.cost for call in calls(tmp_path)] == [None, 9000]


def test_only_requests_that_ended_and_called_an_upstream_count(tmp_path: Path) -> None:
    opened = arrival(id_at(NOV_20))
    usage_database(tmp_path).write([opened, served(NOV_20 + 1)])
    assert calls(tmp_path) == []


def test_only_requests_of_the_period_are_read(tmp_path: Path) -> None:
    attempt = AttemptRecord("a", 200)
    records = [served(NOV_20 + day * DAY_MS, attempt) for day in (-25, 0, 1, 2, 30)]
    usage_database(tmp_path).write(records)
    found = calls(tmp_path, NOV_20, NOV_20 + 2 * DAY_MS)
    assert [call.request for call in found] == [records[1].id, records[2].id]
    assert len(calls(tmp_path)) == 5


def test_the_last_attempt_without_an_id_has_that_of_the_record(tmp_path: Path) -> None:
    record = served(NOV_20, AttemptRecord("a", 500), AttemptRecord("b", 200), upstream_request_id="req-2")
    usage_database(tmp_path).write([record])
    with sqlite3.connect(path_of(tmp_path, "2026-11")) as file:
        plain = '[{"channel":"a","status":500,"error":"x"},{"channel":"b","status":200,"error":""}]'
        file.execute("UPDATE requests SET attempts = ?", (plain,))
    file.close()
    assert [(call.names, call.cost) for call in calls(tmp_path)] == [((), None), (("req-2",), None)]


def test_a_file_that_cannot_be_read_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    attempt = AttemptRecord("a", 200)
    database = usage_database(tmp_path)
    database.write([served(NOV_20, attempt), served(NOV_20 - 25 * DAY_MS, attempt)])
    database.close()
    path_of(tmp_path, "2026-10").write_bytes(b"no database" * 1000)
    unusable: list[UnusableFile] = []
    assert len(list(logged(tmp_path, since_ms=None, until_ms=None, unusable=unusable))) == 1
    assert "usage-2026-10.sqlite" in str(unusable[0])
