"""Sums are by any groups, the largest first where that is asked for; an export has every record that is selected."""

from __future__ import annotations

import csv
import io
from typing import Any

import msgspec
import pytest

from gateway.admin.actions import usage
from gateway.admin.actions import usage as module
from gateway.admin.actions.local import LocalClient
from gateway.admin.actions.requests import Filters
from gateway.admin.actions.usage import Followed, Summary, SumsQuery, dicts
from gateway.base.errors import Refused
from gateway.domain.exchange import Outcome
from gateway.usage.database import UsageDatabase
from gateway.usage.record import Record
from gateway.usage.sums import NAMES, Selected, grouped
from tests.records import COSTED, arrival, end, id_at

NOW_MS = 1_798_761_600_000


def written(rows: UsageDatabase) -> list[Record]:
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


async def asked(local_client: LocalClient, **query: Any) -> Summary:
    return await usage.summary(local_client, query=msgspec.convert(query, SumsQuery))


@pytest.mark.parametrize("by", ["", "day", "month,hour", "account,model", "token,error,outcome", "channel,group"])
async def test_sums_are_those_of_the_log(local_client: LocalClient, rows: UsageDatabase, by: str) -> None:
    written(rows)
    names = usage.groups(by)
    found = await asked(local_client, by=by)
    expected = grouped(local_client.store.usage.folder, names, Selected(), [])
    assert dicts(found.data, names) == expected
    assert (found.total.requests, found.total.charge_micros, found.total.unknown_costs) == (12, 66, 6)
    assert (found.lines, found.has_more, found.unread) == (len(expected), False, [])
    encoded = msgspec.json.decode(msgspec.json.encode(found))
    assert all(set(NAMES) & line.keys() == set(names) for line in encoded["data"])


async def test_the_largest_come_first_where_that_is_asked_for(local_client: LocalClient, rows: UsageDatabase) -> None:
    written(rows)
    found = await asked(local_client, by="hour", sort="charge_micros", limit=3)
    assert [line.charge_micros for line in found.data] == [11, 10, 9]
    assert (found.lines, found.has_more, found.total.charge_micros) == (12, True, 66)


async def test_an_unknown_group_is_refused(local_client: LocalClient) -> None:
    with pytest.raises(Refused) as caught:
        await asked(local_client, by="day,planet")
    assert (caught.value.status, caught.value.param) == (400, "by")


@pytest.mark.parametrize("at_once", [1, 5, 1000])
async def test_an_export_has_every_record_once_and_no_formula(
    local_client: LocalClient, rows: UsageDatabase, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(module, "ROWS", at_once)
    found = [*written(rows), end(arrival(id_at(NOW_MS + 86_400_000)), requested_model="=1+1", refused_by="@plugin")]
    rows.write(found[-1:])
    file = await usage.export(local_client, query=Filters())
    lines = list(csv.DictReader(io.StringIO("".join([piece async for piece in file.pieces]))))
    assert [line["id"] for line in lines] == [record.id for record in found[::-1]]
    assert (lines[0]["requested_model"], lines[0]["refused_by"]) == ("'=1+1", "'@plugin")
    assert lines[0]["charge_micros"] == "123"
    few = await usage.export(local_client, query=Filters(account="bbb", since="2027-01"))
    assert len("".join([piece async for piece in few.pieces]).splitlines()) == 4


async def test_a_feed_selects(local_client: LocalClient) -> None:
    feed = await usage.live(local_client, query=Followed(account="aaa", outcome=Outcome.COMPLETED))
    assert feed.selects(end(arrival(), account="aaa"))
    assert not feed.selects(end(arrival(), account="aaa", outcome=Outcome.CALLER_GONE))
    assert not feed.selects(end(arrival()))
