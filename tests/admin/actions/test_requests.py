"""Requests are listed newest first and found by any of their ids, summed, exported, and told in words and steps."""

from __future__ import annotations

import csv
import io
import time
from typing import Any

import msgspec
import pytest

from gateway.admin.actions import accounts, requests, tokens, usage
from gateway.admin.actions.accounts import NewAccount
from gateway.admin.actions.local import LocalClient
from gateway.admin.actions.requests import Filters, Found, FoundRecord, RequestPage, Requests, SearchQuery, record_of
from gateway.admin.actions.tokens import NewToken
from gateway.admin.actions.usage import Summary, SumsQuery, dicts
from gateway.base.errors import GatewayError, Refused
from gateway.base.ids import utc
from gateway.domain.exchange import Outcome
from gateway.store.pepper import VARIABLE
from gateway.usage.database import UsageFiles, path_of
from gateway.usage.record import AttemptRecord, Record, hashed_reference
from gateway.usage.sums import NAMES, Selected, grouped
from tests.records import COSTED, arrival, end, id_at

NOW_MS = 1_798_761_600_000
"""The begin of 2027, so that some are in two months."""


def written(rows: UsageFiles) -> list[Record]:
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
async def test_all_are_listed_newest_first(local_client: LocalClient, rows: UsageFiles, limit: int) -> None:
    assert await listed(local_client) == []
    found = written(rows)
    assert await listed(local_client, limit=limit) == found[::-1]


@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        *(({"account": "bbb"}, [9, 7, 5, 3, 1]), ({"token": "aaa-k3f9x2a0"}, [6, 0])),
        *(({"account": "bbb", "token": "aaa-k3f9x2a0"}, []), ({"model": "model3", "channel": "channel0"}, [3])),
        *(({"outcome": "refused"}, [3]), ({"error_code": "insufficient_balance"}, [3])),
        *(({"operation": "models"}, [4]), ({"account": "aaa", "reference": "mine"}, [2])),
        *(({"token": "aaa-k3f9x2a2", "reference": "mine"}, [2]), ({"account": "bbb", "reference": "mine"}, [])),
        ({"since": utc(NOW_MS + 180_000)}, [11, 10, 9]),
        ({"since": "2027-01-01T00:03", "until": "2027-01-01T00:05"}, [10, 9]),
        ({"until": "2026-12"}, [5, 4, 3, 2, 1, 0]),
        ({"account": "aaa", "since": "2026-12-31", "until": "2026-12-31"}, [4, 2, 0]),
    ],
)
@pytest.mark.parametrize("scanned", [1, 20_000])
async def test_those_are_listed_to_which_all_applies(
    local_client: LocalClient,
    rows: UsageFiles,
    monkeypatch: pytest.MonkeyPatch,
    query: dict[str, str],
    numbers: list[int],
    scanned: int,
) -> None:
    found = written(rows)
    monkeypatch.setattr(requests, "SCANNED", scanned)
    assert await listed(local_client, **query) == [found[number] for number in numbers]


async def test_an_id_is_found_by_what_it_begins_with(local_client: LocalClient, rows: UsageFiles) -> None:
    found = written(rows)
    assert await listed(local_client, id=found[7].id) == [found[7]]
    assert await listed(local_client, id=found[7].id[:-20]) == [found[7]]
    assert await listed(local_client, id=found[7].id[:4], account="bbb") == [
        found[number] for number in (9, 7, 5, 3, 1)
    ]
    assert await listed(local_client, id="ffff") == []


async def test_a_page_ends_in_time_where_few_match(
    local_client: LocalClient, rows: UsageFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = written(rows)
    monkeypatch.setattr(requests, "SCANNED", 1)
    monkeypatch.setattr(requests, "LONGEST_S", -1.0)
    page = await asked(local_client, error_code="insufficient_balance")
    assert (page.data, page.next) == ([], found[11].id)
    assert await listed(local_client, error_code="insufficient_balance") == [found[3]]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        *(({"reference": "mine"}, "reference"), ({"since": "yesterday"}, "since")),
        *(({"until": "2026-13"}, "until"), ({"since": "2027", "until": "1h"}, "since")),
        ({"since": "1h", "until": "2h"}, "since"),
    ],
)
async def test_what_cannot_be_asked_is_refused(local_client: LocalClient, query: dict[str, str], param: str) -> None:
    with pytest.raises(Refused) as caught:
        await asked(local_client, **query)
    assert (caught.value.status, caught.value.param) == (400, param)


async def test_a_month_that_cannot_be_read_is_named(local_client: LocalClient, rows: UsageFiles) -> None:
    found = written(rows)
    rows.close()
    path_of(local_client.store.usage.folder, "2026-12").write_bytes(b"no database" * 1000)
    page = await asked(local_client)
    assert page.data == found[:5:-1]
    assert ["usage-2026-12" in text for text in page.unread] == [True]


async def test_a_request_is_read_from_the_files_or_the_store(local_client: LocalClient, rows: UsageFiles) -> None:
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


async def test_a_story_has_its_steps_with_their_times(local_client: LocalClient, rows: UsageFiles) -> None:
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


def written_by_the_hour(rows: UsageFiles) -> list[Record]:
    found = [
        end(
            arrival(id_at(NOW_MS + (number - 6) * 3_600_000)),
            **COSTED if number % 2 else {},
            account="ab"[number % 2] * 3,
            model=f"model{number % 4}",
            outcome=Outcome.CALLER_GONE if number == 3 else Outcome.COMPLETED,
            charge_micros=number,
        )
        for number in range(12)
    ]
    rows.write(found)
    return found


async def summed(local_client: LocalClient, **query: Any) -> Summary:
    return await usage.summary(local_client, query=msgspec.convert(query, SumsQuery))


@pytest.mark.parametrize("by", ["", "day", "month,hour", "account,model", "token,error,outcome", "channel,group"])
async def test_sums_are_those_of_the_log(local_client: LocalClient, rows: UsageFiles, by: str) -> None:
    written_by_the_hour(rows)
    names = usage.groups(by)
    found = await summed(local_client, by=by)
    expected = grouped(UsageFiles(local_client.store.usage.folder), names, Selected(), [])
    assert dicts(found.data, names) == expected
    assert (found.total.requests, found.total.charge_micros, found.total.unknown_costs) == (12, 66, 6)
    assert (found.lines, found.has_more, found.unread) == (len(expected), False, [])
    encoded = msgspec.json.decode(msgspec.json.encode(found))
    assert all(set(NAMES) & line.keys() == set(names) for line in encoded["data"])


async def test_the_largest_come_first_where_that_is_asked_for(local_client: LocalClient, rows: UsageFiles) -> None:
    written_by_the_hour(rows)
    found = await summed(local_client, by="hour", sort="charge_micros", limit=3)
    assert [line.charge_micros for line in found.data] == [11, 10, 9]
    assert (found.lines, found.has_more, found.total.charge_micros) == (12, True, 66)


async def test_an_unknown_group_is_refused(local_client: LocalClient) -> None:
    with pytest.raises(Refused) as caught:
        await summed(local_client, by="day,planet")
    assert (caught.value.status, caught.value.param) == (400, "by")


@pytest.mark.parametrize("at_once", [1, 5, 1000])
async def test_an_export_has_every_record_once_and_no_formula(
    local_client: LocalClient, rows: UsageFiles, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(usage, "ROWS", at_once)
    found = [
        *written_by_the_hour(rows),
        end(arrival(id_at(NOW_MS + 86_400_000)), requested_model="=1+1", refused_by="@plugin"),
    ]
    rows.write(found[-1:])
    file = await usage.export(local_client, query=Filters())
    lines = list(csv.DictReader(io.StringIO("".join([piece async for piece in file.pieces]))))
    assert [line["id"] for line in lines] == [record.id for record in found[::-1]]
    assert (lines[0]["requested_model"], lines[0]["refused_by"]) == ("'=1+1", "'@plugin")
    assert lines[0]["charge_micros"] == "123"
    few = await usage.export(local_client, query=Filters(account="bbb", since="2027-01"))
    assert len("".join([piece async for piece in few.pieces]).splitlines()) == 4


async def found(local_client: LocalClient, text: str) -> tuple[list[str], list[str], list[str]]:
    """Return the ids of the requests, accounts and tokens that a text finds."""
    result: Found = await requests.search(local_client, query=SearchQuery(text))
    return (
        [each.id for each in result.requests],
        [each.id for each in result.accounts],
        [each.id for each in result.tokens],
    )


async def test_a_request_is_found_by_any_of_its_ids(local_client: LocalClient, rows: UsageFiles) -> None:
    for name in ("alice", "bob"):
        await accounts.create(local_client, body=NewAccount(name))
    ids = {"completion_id": "chatcmpl-7", "upstream_request_id": "req_011C"}
    mine = end(arrival(), account="alice", reference=hashed_reference("alice", "order 4711"), **ids)
    theirs = end(arrival(), account="bob", reference=hashed_reference("bob", "order 4711"), upstream_request_id="")
    rows.write([mine, theirs])
    for text in (mine.id, "chatcmpl-7", " req_011C "):
        assert await found(local_client, text) == ([mine.id], [], []), text
    assert await found(local_client, "order 4711") == ([theirs.id, mine.id], [], [])
    assert await found(local_client, "order 4712") == ([], [], [])


async def test_accounts_and_tokens_are_found_by_their_ids_and_by_the_beginning_of_a_token(
    local_client: LocalClient, rows: UsageFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "p" * 40)
    await accounts.create(local_client, body=NewAccount("alice", external_id="cus_Q1"))
    made = await tokens.create(local_client, "alice", body=NewToken())
    other = await tokens.create(local_client, "alice", body=NewToken())
    assert await found(local_client, "alice") == await found(local_client, "cus_Q1") == ([], ["alice"], [])
    for text in (made.id, f"sk-{made.id}", made.token or "", (made.token or "")[:18]):
        assert await found(local_client, text) == ([], [], [made.id]), text
    assert set((await found(local_client, "sk-alice-"))[2]) == {made.id, other.id}
    assert other.id not in (await found(local_client, made.id))[2]


@pytest.mark.parametrize("text", ["ffffffff-ffff-7fff-bfff-ffffffffffff", "x' OR 1=1 --", "\u00e4" * 200])
async def test_anything_may_be_looked_for(local_client: LocalClient, rows: UsageFiles, text: str) -> None:
    assert await found(local_client, text) == ([], [], [])
