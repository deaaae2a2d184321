"""Sums, pages and lists of the usage log."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.base.ids import arrival_ms
from gateway.domain.exchange import Outcome
from gateway.usage import queries, sums
from gateway.usage.database import SUMS, UnusableFile, UsageFiles, path_of
from gateway.usage.home import Home
from gateway.usage.queries import RequestsQuery, own_sums, page
from gateway.usage.record import AttemptRecord, Record, hashed_reference
from gateway.usage.sums import DAY_MS, Order, Row, Selected, grouped, totals
from tests.records import COSTED, arrival, close_open, end, id_at, usage_database, writer

NEW_YEAR_MS = 1_798_761_600_000
NOW_MS = NEW_YEAR_MS + 5 * DAY_MS + 9 * 3_600_000
ALL = 1_000_000
BY = (
    *((), ("day",), ("month",), ("account",), ("account", "model", "channel"), ("day", "account", "model")),
    *(("model", "day"), ("outcome", "error_code"), ("hour", "account")),
)

WANTED = (
    Selected(),
    Selected(account="alice"),
    Selected(token_id="alice-1"),
    Selected(account="alice", token_id="alice-2", outcome=Outcome.REFUSED),
    Selected(model="a", outcome=Outcome.REFUSED),
    Selected(since_ms=NEW_YEAR_MS - 3 * DAY_MS, until_ms=NEW_YEAR_MS + 2 * DAY_MS),
    Selected(since_ms=NEW_YEAR_MS - 3 * DAY_MS - 5000, until_ms=NEW_YEAR_MS + 2 * DAY_MS + 5000),
    Selected(since_ms=NEW_YEAR_MS + 1000, until_ms=NEW_YEAR_MS + 5000_000),
    Selected(since_ms=NOW_MS - DAY_MS),
)


@pytest.fixture
def database(home: Home) -> Home:
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


def check(home: Home, by: tuple[str, ...], wanted: Selected) -> None:
    """Assert that the sums are those of the log, in any order, and page by page."""
    expected = grouped(home, by, wanted, [])
    found = totals(home, by, wanted, Order(ALL), [])
    assert dicts(found.rows, by) == expected
    assert (found.lines, dict(zip(SUMS, found.total, strict=True))) == (
        len(expected),
        {name: sum(line[name] for line in expected) for name in SUMS},
    )
    for sort in ("requests", "charge_micros"):
        largest = totals(home, by, wanted, Order(3, sort), [])
        assert [row[len(by) + SUMS.index(sort)] for row in largest.rows] == sorted(
            (line[sort] for line in expected), reverse=True
        )[:3]
        assert (largest.lines, largest.total) == (found.lines, found.total)
    paged, after = list[Row](), tuple[str, ...]()
    of_a_page = max(7, len(expected) // 3)
    while by and (part := totals(home, by, wanted, Order(of_a_page, after=after), [])).rows:
        assert (part.lines, part.total) == (found.lines, found.total)
        paged += part.rows
        after = part.rows[-1][: len(by)]
    assert paged == (found.rows if by else [])


@pytest.mark.parametrize("by", BY)
def test_sums_are_those_of_the_log_whatever_is_written(
    database: Home, monkeypatch: pytest.MonkeyPatch, by: tuple[str, ...]
) -> None:
    random_ = random.Random(4711)
    monkeypatch.setattr(sums, "FEW", 4)
    now_ms = NOW_MS
    for turn in range(5):
        for wanted in WANTED:  # the log is written once for all of them
            check(database, by, wanted)
        database.write(some(random_, 30, now_ms))
        now_ms += turn * 7 * 3_600_000


def test_sums_are_grouped_by_a_tag(home: Home) -> None:
    sums_database = writer(home)
    tags: list[dict[str, str]] = [{"tenant": "acme"}, {"tenant": "acme", "feature": "chat"}, {"tenant": "it's"}, {}]
    sums_database.write([end(arrival(id_at(NEW_YEAR_MS)), tags=each) for each in tags])
    found = grouped(home, ["tag:tenant"], Selected(), [])
    assert [(line["tag:tenant"], line["requests"]) for line in found] == [("", 1), ("acme", 2), ("it's", 1)]


def test_sums_are_grouped_by_what_the_first_attempt_met_and_by_address(home: Home) -> None:
    sums_database = writer(home)
    spared = [AttemptRecord("one", 500, "upstream_error", message="it's"), AttemptRecord("two", 200)]
    for attempts, address in ((spared, "192.0.2.0/24"), (spared[1:], "192.0.2.0/24"), ([], "")):
        sums_database.write([end(arrival(id_at(NEW_YEAR_MS)), attempts=attempts, address=address)])
    names = ["first_channel", "first_error"]
    found = [[*map(line.get, names)] for line in grouped(home, names, Selected(), [])]
    assert found == [["", ""], ["one", "upstream_error"], ["two", ""]]
    found = [[line["address"], line["requests"]] for line in grouped(home, ["address"], Selected(), [])]
    assert found == [["", 1], ["192.0.2.0/24", 2]]


# Queries of the usage log's files.
QUERIES_DAY_MS = 86_400_000


def test_a_folder_that_does_not_exist_has_no_requests(tmp_path: Path) -> None:
    assert queries.find(UsageFiles(tmp_path / "none"), arrival().id) is None
    assert list(queries.select(UsageFiles(tmp_path / "none"))) == []
    assert grouped(UsageFiles(tmp_path / "none"), ["day"], Selected(), []) == []


@pytest.mark.parametrize("id", ["", "x", "../../../etc/passwd", "ffffffff-ffff-7fff-bfff-ffffffffffff"])
def test_an_invalid_id_is_not_found(database: Home, id: str) -> None:  # noqa: A002
    database.write([arrival()])
    assert queries.find(database, id) is None


def test_requests_are_selected_in_the_order_of_their_arrival_across_months(database: Home) -> None:
    times = [NEW_YEAR_MS + 7, NEW_YEAR_MS - 5, NEW_YEAR_MS, NEW_YEAR_MS - 9]
    database.write(arrival(id_at(ms)) for ms in times)
    stamps = [row.arrived_at[-5:-1] for row in queries.select(database)]
    assert stamps == [".991", ".995", ".000", ".007"]
    assert [row.arrived_at[-5:-1] for row in queries.select(database, newest_first=True)] == stamps[::-1]


def test_requests_are_selected_by_account_outcome_and_time(database: Home) -> None:
    mine, theirs = end(arrival(id_at(NEW_YEAR_MS))), end(arrival(id_at(NEW_YEAR_MS)), account="other")
    cut = end(arrival(id_at(NEW_YEAR_MS + 1)), outcome=Outcome.CALLER_GONE)
    database.write([mine, theirs, cut])
    assert list(queries.select(database, account="demo")) == [mine, cut]
    assert list(queries.select(database, outcome=Outcome.CALLER_GONE)) == [cut]
    assert list(queries.select(database, since_ms=NEW_YEAR_MS + 1)) == [cut]
    assert list(queries.select(database, account="other", until_ms=NEW_YEAR_MS + 1)) == [theirs]


def polled(tail: queries.Tail) -> list[Record]:
    return [record for _, record in tail.poll()]


def test_a_tail_returns_each_request_once_when_it_has_ended(database: Home) -> None:
    before, across = arrival(), arrival()
    database.write([end(before), across])
    tail = queries.Tail(database)
    assert polled(tail) == []
    later = arrival()
    database.write([end(across), later])
    assert polled(tail) == [end(across)]
    database.write([end(later), end(across)])
    assert polled(tail) == [end(later)]
    assert polled(tail) == []


def test_a_tail_continues_into_the_next_month(database: Home) -> None:
    database.write([end(arrival(id_at(NEW_YEAR_MS - 1)))])
    tail = queries.Tail(database)
    new = end(arrival(id_at(NEW_YEAR_MS)))
    database.write([new])
    assert polled(tail) == [new]


def test_a_tail_continues_after_any_cursor_of_another(database: Home) -> None:
    beginning = queries.Tail(database).cursor
    ended = [end(arrival(id_at(NEW_YEAR_MS + offset))) for offset in (-3, -2, -1, 0, 1)]
    database.write(ended)
    first = queries.Tail(database, beginning).poll()
    assert [record for _, record in first] == ended
    for place, (cursor, _) in enumerate(first):
        assert polled(queries.Tail(database, cursor)) == ended[place + 1 :]


def test_a_tail_returns_a_request_again_when_its_presumed_end_was_wrong(database: Home) -> None:
    tail, opened = queries.Tail(database), arrival()
    database.write([opened])
    close_open(database, arrival_ms(opened.id) + 1)
    assert [record.outcome for record in polled(tail)] == [Outcome.GATEWAY_CRASHED]
    database.write([end(opened)])
    assert polled(tail) == [end(opened)]


@pytest.mark.parametrize("wrong", ["x", "2026-11", "2026-11.1+", "2026-11.1+2026-12.1+2027-01.1", "2026-11.-1", "\n"])
def test_an_invalid_cursor_is_refused(database: Home, wrong: str) -> None:
    with pytest.raises(ValueError, match="no such place"):
        queries.Tail(database, wrong)


def test_a_reader_sees_whole_batches_only_while_one_is_written(database: Home) -> None:
    first = arrival()
    database.write([first])
    reading = queries.select(database)
    assert next(reading) == first
    database.write([arrival()])
    assert list(reading) == []


def test_requests_are_named_by_the_ids_of_their_answers(database: Home) -> None:
    times = (NEW_YEAR_MS - QUERIES_DAY_MS, NEW_YEAR_MS, NEW_YEAR_MS + QUERIES_DAY_MS)
    found = [end(arrival(id_at(ms)), completion_id=f"chatcmpl-{number % 2}") for number, ms in enumerate(times)]
    database.write([*found, end(arrival(id_at(NEW_YEAR_MS)), completion_id="")])
    assert queries.named(database, "completion_id", ["chatcmpl-0"], 9) == [found[2], found[0]]
    assert queries.named(database, "completion_id", ["chatcmpl-0", "chatcmpl-1"], 2) == [found[2], found[1]]
    assert queries.named(database, "completion_id", [""], 9) == []


# Pages and sums of one account, from files of any version.
PAGES_DAY_MS = 86_400_000


def all_pages(home: Home, wanted: RequestsQuery, limit: int) -> list[Record]:
    """Return what all pages have, and assert that no page has too much."""
    found, after = list[Record](), wanted.after
    while True:
        part = page(home, msgspec.structs.replace(wanted, after=after), limit, [])
        assert len(part.records) <= limit
        found += part.records
        if not part.next:
            return found
        assert not after or part.next < after, "it goes on"
        after = part.next


def test_all_pages_together_have_each_request_once(database: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    named = hashed_reference("demo", "x")
    own = [
        end(
            arrival(id_at(NEW_YEAR_MS + (number - 5) * PAGES_DAY_MS * 9)),
            model="ab"[number % 2],
            outcome=Outcome.REFUSED if number % 3 == 0 else Outcome.COMPLETED,
            reference=named if number % 4 == 0 else "",
        )
        for number in range(10)
    ]
    database.write([*own, *(end(arrival(each.id[:-1] + "z"), account="other") for each in own)])
    own.reverse()
    refused = [each for each in own if each.outcome is Outcome.REFUSED]
    both = [each for each in refused if each.reference]
    home = database
    for scanned, limit in itertools.product([1, 3, 100], repeat=2):
        monkeypatch.setattr(queries, "MAX_SCANNED", scanned)
        assert all_pages(home, RequestsQuery("demo"), limit) == own
        assert all_pages(home, RequestsQuery("demo", model="a"), limit) == [each for each in own if each.model == "a"]
        assert all_pages(home, RequestsQuery("demo", outcome=Outcome.REFUSED), limit) == refused
        assert all_pages(home, RequestsQuery("demo", reference=named), limit) == [
            each for each in own if each.reference
        ]
        assert all_pages(home, RequestsQuery("demo", outcome=Outcome.REFUSED, reference=named), limit) == both


def test_a_reference_of_another_account_is_not_found_even_with_the_same_hash(database: Home) -> None:
    database.write([end(arrival(), account="other", reference="same")])
    assert page(database, RequestsQuery("demo", reference="same"), 10, []).records == []


def test_records_without_an_account_are_in_no_list_and_no_sum(database: Home) -> None:
    database.write([end(arrival(), account=""), arrival()])
    assert page(database, RequestsQuery(""), 10, []).records == []
    assert own_sums(database, "", ["day"], "0000-01-01", "9999-12-31", []) == []


def test_a_file_that_cannot_be_read_is_left_out_and_named(tmp_path: Path) -> None:
    database = usage_database(tmp_path)
    before, after = end(arrival(id_at(NEW_YEAR_MS - 1))), end(arrival(id_at(NEW_YEAR_MS)))
    database.write([before, after])
    database.close()
    path_of(tmp_path, "2026-12").write_bytes(b"no database" * 1000)
    unusable: list[UnusableFile] = []
    assert page(database, RequestsQuery("demo"), 10, unusable).records == [after]
    assert [line["requests"] for line in own_sums(database, "demo", [], "2026-01-01", "2027-12-31", unusable)] == [1]
    totals(database, ("account",), Selected(), Order(ALL), unusable)
    assert len(unusable) == 3
    assert all("usage-2026-12.sqlite" in str(error) for error in unusable)
