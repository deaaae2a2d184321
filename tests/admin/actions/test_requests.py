"""Requests are listed newest first by any of their fields, read with who was not asked, and told in words and steps."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from gateway.admin.actions import requests
from gateway.admin.actions import requests as module
from gateway.admin.actions.local import LocalClient
from gateway.admin.actions.requests import FoundRecord, RequestPage, Requests, record_of
from gateway.base.errors import GatewayError, Refused
from gateway.base.ids import utc
from gateway.domain.exchange import Outcome
from gateway.usage.database import UsageDatabase, path_of
from gateway.usage.record import AttemptRecord, Record, hashed_reference
from tests.records import arrival, end, id_at

NOW_MS = 1_798_761_600_000
"""The begin of 2027, so that some are in two months."""


def written(rows: UsageDatabase) -> list[Record]:
    """Write twelve requests in the order of their arrival, a minute apart, over the end of a month; the last is under way."""
    found = [
        end(
            arrival(id_at(NOW_MS + (number - 6) * 60_000)),
            account="ab"[number % 2] * 3,
            token_id=f"{'ab'[number % 2] * 3}-k3f9x2a{number % 3}",
            model=f"model{number % 4}",
            channel=f"channel{number % 3}",
            outcome=Outcome.REFUSED if number == 3 else Outcome.COMPLETED,
            error_code="insufficient_balance" if number == 3 else "",
            operation="models" if number == 4 else "chat.completions",
            reference=hashed_reference("aaa", "mine") if number == 2 else "",
        )
        for number in range(11)
    ]
    found.append(arrival(id_at(NOW_MS + 6 * 60_000)))
    rows.write(found)
    return found


async def asked(local_client: LocalClient, **query: Any) -> RequestPage:
    return await requests.list_(local_client, query=msgspec.convert(query, Requests))


async def listed(local_client: LocalClient, **query: Any) -> list[Record]:
    """Return what all pages have."""
    found, after = list[Record](), ""
    while True:
        page = await asked(local_client, after=after, **query)
        found += page.data
        assert page.has_more == (page.next is not None)
        if page.next is None:
            return found
        after = page.next


@pytest.mark.parametrize("limit", [1, 5, 100])
async def test_all_are_listed_newest_first(local_client: LocalClient, rows: UsageDatabase, limit: int) -> None:
    assert await listed(local_client) == []
    found = written(rows)
    assert await listed(local_client, limit=limit) == found[::-1]


@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        ({"account": "bbb"}, [9, 7, 5, 3, 1]),
        ({"token": "aaa-k3f9x2a0"}, [6, 0]),
        ({"account": "bbb", "token": "aaa-k3f9x2a0"}, []),
        ({"model": "model3", "channel": "channel0"}, [3]),
        ({"outcome": "refused"}, [3]),
        ({"error_code": "insufficient_balance"}, [3]),
        ({"operation": "models"}, [4]),
        ({"account": "aaa", "reference": "mine"}, [2]),
        ({"token": "aaa-k3f9x2a2", "reference": "mine"}, [2]),
        ({"account": "bbb", "reference": "mine"}, []),
        ({"since": utc(NOW_MS + 180_000)}, [11, 10, 9]),
        ({"since": "2027-01-01T00:03", "until": "2027-01-01T00:05"}, [10, 9]),
        ({"until": "2026-12"}, [5, 4, 3, 2, 1, 0]),
        ({"account": "aaa", "since": "2026-12-31", "until": "2026-12-31"}, [4, 2, 0]),
    ],
)
@pytest.mark.parametrize("scanned", [1, 20_000])
async def test_those_are_listed_to_which_all_applies(
    local_client: LocalClient,
    rows: UsageDatabase,
    monkeypatch: pytest.MonkeyPatch,
    query: dict[str, str],
    numbers: list[int],
    scanned: int,
) -> None:
    found = written(rows)
    monkeypatch.setattr(module, "SCANNED", scanned)
    assert await listed(local_client, **query) == [found[number] for number in numbers]


async def test_an_id_is_found_by_what_it_begins_with(local_client: LocalClient, rows: UsageDatabase) -> None:
    found = written(rows)
    assert await listed(local_client, id=found[7].id) == [found[7]]
    assert await listed(local_client, id=found[7].id[:-20]) == [found[7]]
    assert await listed(local_client, id=found[7].id[:4], account="bbb") == [
        found[number] for number in (9, 7, 5, 3, 1)
    ]
    assert await listed(local_client, id="ffff") == []


async def test_a_page_ends_in_time_where_few_match(
    local_client: LocalClient, rows: UsageDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = written(rows)
    monkeypatch.setattr(module, "SCANNED", 1)
    monkeypatch.setattr(module, "LONGEST_S", -1.0)
    page = await asked(local_client, error_code="insufficient_balance")
    assert (page.data, page.next) == ([], found[11].id)
    assert await listed(local_client, error_code="insufficient_balance") == [found[3]]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"reference": "mine"}, "reference"),
        ({"since": "yesterday"}, "since"),
        ({"until": "2026-13"}, "until"),
        ({"since": "2027", "until": "1h"}, "since"),
        ({"since": "1h", "until": "2h"}, "since"),
    ],
)
async def test_what_cannot_be_asked_is_refused(local_client: LocalClient, query: dict[str, str], param: str) -> None:
    with pytest.raises(Refused) as caught:
        await asked(local_client, **query)
    assert (caught.value.status, caught.value.param) == (400, param)


async def test_a_month_that_cannot_be_read_is_named(local_client: LocalClient, rows: UsageDatabase) -> None:
    found = written(rows)
    rows.close()
    path_of(local_client.store.usage.folder, "2026-12").write_bytes(b"no database" * 1000)
    page = await asked(local_client)
    assert page.data == found[:5:-1]
    assert ["usage-2026-12" in text for text in page.unread] == [True]


async def test_a_request_is_read_from_the_files_or_the_store(local_client: LocalClient, rows: UsageDatabase) -> None:
    ended, open_ = end(arrival()), arrival()
    rows.write([ended])
    assert await requests.read(local_client, ended.id) == FoundRecord(**msgspec.structs.asdict(ended))
    assert record_of(await requests.read(local_client, ended.id)) == ended
    await local_client.store.usage.submit_arrival(open_)
    found = await requests.read(local_client, open_.id)
    assert (record_of(found), found.outcome) == (open_, None)


async def test_a_request_that_is_nowhere_is_a_404_and_has_a_story(local_client: LocalClient) -> None:
    unknown = id_at(round(time.time() * 1000))
    with pytest.raises(GatewayError) as caught:
        await requests.read(local_client, unknown)
    assert (caught.value.kind, unknown in str(caught.value)) == ("not_found", True)
    story = await requests.trace(local_client, unknown)
    assert story.record is None
    assert story.verdict.startswith("never arrived: ")
    assert (story.steps, story.unasked) == ([], [])
    for operation in (requests.read, requests.trace):
        with pytest.raises(Refused):
            await operation(local_client, "../accounts")


async def test_a_story_has_its_steps_with_their_times(local_client: LocalClient, rows: UsageDatabase) -> None:
    tried = [AttemptRecord("one", 503, "upstream_overloaded"), AttemptRecord("two", 200)]
    record = end(arrival(), attempts=tried, changed_by=["redact"])
    rows.write([record])
    story = await requests.trace(local_client, record.id)
    assert [(step.kind, step.after_ms) for step in story.steps] == [
        ("arrival", 0),
        ("change", None),
        ("attempt", None),
        ("attempt", None),
        ("first_byte", 312),
        ("end", 2300),
        ("charge", None),
    ]
    assert story.verdict == ", ".join(step.text for step in story.steps[1:])
    refused = end(
        arrival(), outcome=Outcome.REFUSED, error_code="token_expired", refused_by="auth", attempts=[], charge_micros=0
    )
    rows.write([refused])
    story = await requests.trace(local_client, refused.id)
    assert [step.kind for step in story.steps] == ["arrival", "charge"]
    assert story.steps[0].text.startswith("arrived and refused by auth: token expired")
