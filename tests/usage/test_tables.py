"""A month's file of an earlier version is read as it is, and completed when it is written to."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

import msgspec
import pytest

from gateway.usage import database, queries
from gateway.usage.database import COLUMNS, GROUPS, SUM_COLUMNS, SUMS, path_of
from gateway.usage.record import Record
from tests.records import COSTED, arrival, end, id_at, usage_database

NEW_YEAR_MS: Final = 1_798_761_600_000
MONTH: Final = "2027-01"
EARLIER: Final = (
    *("id", "arrived_at", "operation", "account", "token_id", "group", "model", "channel", "upstream_request_id"),
    *("attempts", "status", "outcome", "error_code", "refused_by", "prompt_tokens", "completion_tokens"),
    *("usage_source", "charge_micros", "price", "first_byte_ms", "duration_ms", "longest_gap_ms", "events", "bytes"),
    "config",
)
"""The columns of the earlier version."""
DAY: Final = """INSERT INTO days VALUES (substr({0}.arrived_at, 1, 10), {0}.account, {0}.token_id, {0}.model, {0}.channel,
{1}1, {1}({0}.outcome = 'completed'), {1}{0}.prompt_tokens, {1}{0}.completion_tokens, {1}{0}.charge_micros)
ON CONFLICT DO UPDATE SET requests = requests + excluded.requests, completed = completed + excluded.completed,
prompt_tokens = prompt_tokens + excluded.prompt_tokens,
completion_tokens = completion_tokens + excluded.completion_tokens, charge_micros = charge_micros + excluded.charge_micros;"""
LATER_DAY: Final = f"""INSERT INTO days ({", ".join((*GROUPS, *SUMS))}) VALUES (substr({{0}}.arrived_at, 1, 10),
{{0}}.account, {{0}}.token_id, {{0}}.model, {{0}}.channel, {{1}}1, {{1}}({{0}}.outcome = 'completed'),
{", ".join(f"{{1}}coalesce({{0}}.{name}, 0)" for name in SUM_COLUMNS)}, {{1}}({{0}}.cost_micros IS NULL))
ON CONFLICT DO UPDATE SET {", ".join(f"{name} = {name} + excluded.{name}" for name in SUMS)};"""
"""What the last version that kept sums by triggers has in them."""
EARLIER_SCHEMA: Final = f"""
PRAGMA journal_mode = WAL;
CREATE TABLE requests (number INTEGER PRIMARY KEY, {", ".join(f'"{name}"' for name in EARLIER)}, UNIQUE (id));
CREATE INDEX requests_of_account ON requests (account, id);
CREATE INDEX requests_open ON requests (id) WHERE outcome IS NULL;
CREATE TABLE days (day TEXT, account TEXT, token_id TEXT, model TEXT, channel TEXT, requests INTEGER, completed INTEGER,
prompt_tokens INTEGER, completion_tokens INTEGER, charge_micros INTEGER,
PRIMARY KEY (day, account, token_id, model, channel)) WITHOUT ROWID;
CREATE TABLE ends (place INTEGER PRIMARY KEY, number INTEGER);
"""


def triggers(day: str) -> str:
    """Return the triggers that an earlier version creates where they are missing; `day` adds a row to its day's sums."""
    return f"""
CREATE TRIGGER IF NOT EXISTS closed_at_once AFTER INSERT ON requests WHEN NEW.outcome IS NOT NULL
BEGIN {day.format("NEW", "+")} INSERT INTO ends (number) VALUES (NEW.number); END;
CREATE TRIGGER IF NOT EXISTS reopened BEFORE UPDATE ON requests WHEN OLD.outcome IS NOT NULL
BEGIN {day.format("OLD", "-")} END;
CREATE TRIGGER IF NOT EXISTS closed AFTER UPDATE ON requests WHEN NEW.outcome IS NOT NULL
BEGIN {day.format("NEW", "+")} INSERT INTO ends (number) VALUES (NEW.number); END;
"""


def write_earlier(file: sqlite3.Connection, record: Record) -> None:
    """Write a record as the earlier version does."""
    names = ", ".join(f'"{name}"' for name in EARLIER)
    values = msgspec.to_builtins(record)
    attempts = [{name: attempt[name] for name in ("channel", "status", "error")} for attempt in values["attempts"]]
    values |= {"attempts": msgspec.json.encode(attempts), "price": msgspec.json.encode(values["price"])}
    rows = [values[name].decode() if isinstance(values[name], bytes) else values[name] for name in EARLIER]
    file.execute(f"INSERT INTO requests ({names}) VALUES ({', '.join('?' * len(EARLIER))})", rows)


def as_earlier(record: Record) -> Record:
    """Return a record as the earlier version knows it."""
    known = {name: getattr(record, name) for name in EARLIER}
    attempts = [msgspec.structs.replace(attempt, cost_micros=None) for attempt in record.attempts]
    return Record(**{**known, "attempts": attempts})


@pytest.fixture
def earlier(tmp_path: Path) -> list[Record]:
    """A file of the earlier version with two closed requests and an open one."""
    records = [end(arrival(id_at(NEW_YEAR_MS + at)), **COSTED) for at in range(2)]
    records.append(arrival(id_at(NEW_YEAR_MS + 2)))
    file = sqlite3.connect(path_of(tmp_path, MONTH), isolation_level=None)
    file.executescript(EARLIER_SCHEMA)
    file.executescript(triggers(DAY))
    for record in records:
        write_earlier(file, record)
    file.close()
    return records


def test_it_is_read_as_it_is(tmp_path: Path, earlier: list[Record]) -> None:
    before = path_of(tmp_path, MONTH).read_bytes()
    known = [as_earlier(record) for record in earlier]
    assert list(queries.select(tmp_path)) == known
    assert queries.find(tmp_path, earlier[0].id) == known[0]
    assert [record for _, record in queries.Tail(tmp_path, queries.START).poll()] == known[:2]
    (total,) = queries.summary(tmp_path, ["model"])
    assert total["charge_micros"] == 246
    assert (total["requests"], total["unknown_costs"]) == (2, 2)
    assert (total["cost_micros"], total["margin_micros"], total["cached_tokens"]) == (0, 0, 0)
    assert path_of(tmp_path, MONTH).read_bytes() == before


def test_it_is_completed_when_it_is_written_to(tmp_path: Path, earlier: list[Record]) -> None:
    late, added = end(earlier[2], **COSTED), end(arrival(id_at(NEW_YEAR_MS + 3)), cached_tokens=4, cache_write_tokens=2)
    for _ in range(2):
        database = usage_database(tmp_path)
        database.write([late, added])
        database.close()
    assert list(queries.select(tmp_path)) == [as_earlier(earlier[0]), as_earlier(earlier[1]), late, added]
    (total,) = queries.summary(tmp_path, ["model"])
    assert (total["requests"], total["completed"], total["charge_micros"]) == (4, 4, 4 * 123)
    assert (total["cost_micros"], total["margin_micros"], total["unknown_costs"]) == (100, 23, 3)
    assert (total["cached_tokens"], total["cache_write_tokens"]) == (8, 4)


def test_the_earlier_version_can_still_write_to_a_completed_file(tmp_path: Path, earlier: list[Record]) -> None:
    database = usage_database(tmp_path)
    database.write([earlier[2]])
    record = end(arrival(id_at(NEW_YEAR_MS + 4)), **COSTED)
    with closing(sqlite3.connect(path_of(tmp_path, MONTH), isolation_level=None)) as file:
        file.executescript(triggers(LATER_DAY))  # as it does when it opens a file
        write_earlier(file, record)
    database.write([end(earlier[2], **COSTED)])
    database.close()
    assert queries.find(tmp_path, record.id) == as_earlier(record)
    (total,) = queries.summary(tmp_path, ["model"])
    assert (total["requests"], total["unknown_costs"], total["charge_micros"]) == (4, 3, 4 * 123)


def test_an_interrupted_completion_changes_nothing(
    tmp_path: Path, earlier: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = sqlite3.connect(path_of(tmp_path, MONTH), isolation_level=None)
    monkeypatch.setattr(database, "SUMS", (*SUMS, "1"))
    with pytest.raises(sqlite3.Error):
        database.create(file)
    monkeypatch.undo()
    assert database.columns(file, "requests") == {"number", *EARLIER}
    assert "unknown_costs" not in database.columns(file, "days")
    database.create(file)
    assert database.columns(file, "requests") == {"number", *COLUMNS}
    assert database.columns(file, "days") == {*GROUPS, *SUMS}
    file.close()
    assert list(queries.select(tmp_path)) == [as_earlier(record) for record in earlier]
