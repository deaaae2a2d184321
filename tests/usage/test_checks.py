"""A file that is damaged on the disk is noticed by its writer, which has the pages in memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.base.ids import month
from gateway.usage import database, queries
from gateway.usage.database import SUSPECT, UnusableFile, UsageDatabase, files_aside, path_of
from tests.records import arrival, end, usage_database

OLD = end(arrival())
MONTH = month(OLD.id)


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> UsageDatabase:
    """Return a writer that has written some hundred records, and checks its files each time."""
    monkeypatch.setattr(database, "CHECK_S", 0)
    rows = usage_database(tmp_path)
    rows.write([OLD, *(end(arrival()) for _ in range(400))])
    return rows


def overwrite(path: Path, first: int, last: int) -> None:
    with path.open("r+b") as file:
        file.seek(first)
        file.write(os.urandom(last - first))


def test_a_file_overwritten_while_it_is_written_is_set_aside(rows: UsageDatabase) -> None:
    path, wal = path_of(rows.folder, MONTH), path_of(rows.folder, MONTH, "-wal")
    overwrite(path, 0, path.stat().st_size)
    overwrite(wal, 0, wal.stat().st_size)
    rows.write([after := end(arrival())])  # it does not notice
    rows.check()
    assert len(files_aside(rows.folder)) == 1
    rows.write([after])
    assert list(queries.select(rows.folder)) == [after]


def test_damage_that_a_reader_finds_is_reported_to_the_writer(
    rows: UsageDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "look", lambda path: None)
    wal = path_of(rows.folder, MONTH, "-wal")
    overwrite(wal, wal.stat().st_size // 3, wal.stat().st_size // 2)
    rows.check()
    assert files_aside(rows.folder) == []
    with pytest.raises(UnusableFile):
        list(queries.select(rows.folder))
    rows.check()
    assert len(files_aside(rows.folder)) == 1
    assert not path_of(rows.folder, MONTH, SUSPECT).exists()


def test_a_report_about_a_sound_file_changes_nothing(rows: UsageDatabase) -> None:
    path_of(rows.folder, MONTH, SUSPECT).touch()
    rows.check()
    assert files_aside(rows.folder) == []
    assert queries.find(rows.folder, OLD.id) == OLD
    assert not path_of(rows.folder, MONTH, SUSPECT).exists()


def test_a_file_that_something_else_removed_is_lost_and_followers_go_on(rows: UsageDatabase) -> None:
    tail = queries.Tail(rows.folder)
    path_of(rows.folder, MONTH).unlink()
    with capture_logs() as logs:
        rows.write([after := end(arrival())])
    assert len(files_aside(rows.folder)) == 1
    assert [entry["event"] for entry in logs] == ["usage_file_gone"]
    assert [record.id for _, record in tail.poll()[-1:]] == [after.id]
    with pytest.raises(UnusableFile, match="is empty in place of a file that was removed"):
        queries.find(rows.folder, OLD.id)
