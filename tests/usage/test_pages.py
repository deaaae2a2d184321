"""Pages and sums of one account, from files of any version."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.domain.exchange import Outcome
from gateway.usage import queries
from gateway.usage.database import UnusableFile, path_of
from gateway.usage.home import Home, Writer
from gateway.usage.queries import RequestsQuery, own_sums, page
from gateway.usage.record import Record, hashed_reference
from tests.records import arrival, end, id_at, usage_database, writer

NEW_YEAR_MS = 1_798_761_600_000
DAY_MS = 86_400_000


@pytest.fixture
def database(home: Home) -> Writer:
    return writer(home)


def all_pages(home: Home, wanted: RequestsQuery, limit: int) -> list[Record]:
    """Return what all pages have, and assert that no page has too much."""
    found, after = list[Record](), wanted.after
    while True:
        part = page(
            home, RequestsQuery(wanted.account, after, wanted.model, wanted.outcome, wanted.reference), limit, []
        )
        assert len(part.records) <= limit
        found += part.records
        if not part.next:
            return found
        assert not after or part.next < after, "it goes on"
        after = part.next


@pytest.mark.parametrize("scanned", [1, 2, 3, 100])
@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_all_pages_together_have_each_request_once(
    database: Writer, monkeypatch: pytest.MonkeyPatch, scanned: int, limit: int
) -> None:
    monkeypatch.setattr(queries, "MAX_SCANNED", scanned)
    named = hashed_reference("demo", "x")
    own = [
        end(
            arrival(id_at(NEW_YEAR_MS + (number - 5) * DAY_MS * 9)),
            model="ab"[number % 2],
            outcome=Outcome.REFUSED if number % 3 == 0 else Outcome.COMPLETED,
            reference=named if number % 4 == 0 else "",
        )
        for number in range(10)
    ]
    database.write([*own, *(end(arrival(each.id[:-1] + "z"), account="other") for each in own)])
    own.reverse()
    home = database.home
    assert all_pages(home, RequestsQuery("demo"), limit) == own
    assert all_pages(home, RequestsQuery("demo", model="a"), limit) == [each for each in own if each.model == "a"]
    refused = [each for each in own if each.outcome is Outcome.REFUSED]
    assert all_pages(home, RequestsQuery("demo", outcome=Outcome.REFUSED), limit) == refused
    assert all_pages(home, RequestsQuery("demo", reference=named), limit) == [each for each in own if each.reference]
    both = [each for each in refused if each.reference]
    assert all_pages(home, RequestsQuery("demo", outcome=Outcome.REFUSED, reference=named), limit) == both


def test_a_reference_of_another_account_is_not_found_even_with_the_same_hash(database: Writer) -> None:
    database.write([end(arrival(), account="other", reference="same")])
    assert page(database.home, RequestsQuery("demo", reference="same"), 10, []).records == []


def test_records_without_an_account_are_in_no_list_and_no_sum(database: Writer) -> None:
    database.write([end(arrival(), account=""), arrival()])
    assert page(database.home, RequestsQuery(""), 10, []).records == []
    assert own_sums(database.home, "", ["day"], "0000-01-01", "9999-12-31", []) == []


def test_only_the_rows_of_requests_with_a_reference_are_in_its_index(tmp_path: Path) -> None:
    database = usage_database(tmp_path)
    database.write([end(arrival()), end(arrival(), reference="x")])
    (file,) = [file for _, file in database._files.values()]
    ids = file.execute("SELECT id FROM requests INDEXED BY requests_of_reference WHERE reference != ''").fetchall()
    assert len(ids) == 1


def test_a_file_that_cannot_be_read_is_left_out_and_named(tmp_path: Path) -> None:
    database = usage_database(tmp_path)
    before, after = end(arrival(id_at(NEW_YEAR_MS - 1))), end(arrival(id_at(NEW_YEAR_MS)))
    database.write([before, after])
    database.close()
    path_of(database.home, "2026-12").write_bytes(b"no database" * 1000)
    unusable: list[UnusableFile] = []
    assert page(database.home, RequestsQuery("demo"), 10, unusable).records == [after]
    assert [line["requests"] for line in own_sums(database.home, "demo", [], "2026-01-01", "2027-12-31", unusable)] == [
        1
    ]
    assert len(unusable) == 2
    assert all("usage-2026-12.sqlite" in str(error) for error in unusable)
