"""Money adds up by what is asked for, and is drawn and exported."""

from __future__ import annotations

import csv
import time

import pytest

from gateway.usage.database import UsageFiles
from tests.admin.pages.conftest import House
from tests.records import COSTED, arrival, end, usage_database


@pytest.fixture
def rows(house: House) -> UsageFiles:
    return usage_database(house.store.usage.folder)


async def test_without_charges_the_page_says_how_there_are_some(house: House) -> None:
    _, text = await (await house.browser()).get("/money")
    assert "Nothing was charged in this time" in text
    assert "<rect" not in text


async def test_sums_are_shown_drawn_and_exported(house: House, rows: UsageFiles) -> None:
    browser = await house.browser()
    rows.write(
        [end(arrival(), account="a", **COSTED), end(arrival(), account="a", **COSTED), end(arrival(), account="b")]
    )
    rows.write([end(arrival(), account="b", attempts=[], charge_micros=0, cost_micros=0, margin_micros=0)])
    status, text = await browser.get("/money?by=account&by=channel")
    assert (status, text.count(">unknown<")) == (200, 6)
    for part in (
        "0.000369",
        "0.0002<",
        "0.000046",
        "1 request of unknown cost, the others 0.0002",
        'href="/accounts/a"',
        'class="charge"',
    ):
        assert part in text, part
    status, text = await browser.get("/money.csv?by=account&by=channel")
    table = list(csv.DictReader(text.splitlines()))
    assert {(line["account"], line["channel"], line["charge_micros"], line["cost_micros"]) for line in table} == {
        ("a", "openai", "246", "200"),
        ("b", "openai", "123", "0"),
    }
    assert "Nothing was charged" in (await browser.get("/money?model=none"))[1]
    status, text = await browser.get("/money?account=nobody")
    assert (status, "There is no account `nobody`" in text) == (404, True)
    assert "Nothing was charged" in (await browser.get("/money?since=2001-01&until=2001-02"))[1]
    for query in ("?since=x", "?since=2026-11-22&until=2026-11-21"):
        status, text = await browser.get(f"/money{query}")
        assert (status, 'role="alert"' in text) == (400, True), query


async def test_a_month_is_added_up_by_group_and_times_have_buttons(house: House, rows: UsageFiles) -> None:
    browser = await house.browser()
    rows.write([end(arrival(), account="a", group="trial"), end(arrival(), account="b", group="default")])
    month = time.strftime("%Y-%m", time.gmtime())
    _, text = await browser.get(f"/money?by=month&by=group&since={month}")
    for part in (f">{month}<", ">trial<", f'href="/money?by=month&amp;by=group&amp;since={month}">This month<'):
        assert part in text, part


async def test_lines_are_sorted_by_their_headings(house: House, rows: UsageFiles) -> None:
    browser = await house.browser()
    rows.write(
        [end(arrival(), account="many", charge_micros=1) for _ in range(3)]
        + [end(arrival(), account="dear", charge_micros=9)]
    )
    for sort, first, last in (("", "dear", "many"), ("-charge_micros", "dear", "many"), ("-requests", "many", "dear")):
        _, text = await browser.get(f"/money?by=account&sort={sort}")
        assert text.index(f">{first}</a>") < text.index(f">{last}</a>"), sort
    assert 'aria-sort="descending"><a href="?by=account">Requests</a>' in text
    assert '<a href="?by=account&amp;sort=-charge_micros">Charge</a>' in text
