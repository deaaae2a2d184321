"""Requests are found by what they have, told as stories, and exported without formulas."""

from __future__ import annotations

import re
import time
from html import unescape
from urllib.parse import urlencode

import msgspec
import pytest

from gateway.admin.actions import accounts
from gateway.admin.actions.accounts import NewAccount
from gateway.domain.exchange import Outcome
from gateway.usage.database import UsageFiles
from gateway.usage.record import AttemptRecord, hashed_reference
from tests.admin.pages.conftest import House
from tests.records import COSTED, arrival, end, id_at, usage_database


@pytest.fixture
def rows(house: House) -> UsageFiles:
    return usage_database(house.store.usage.folder)


async def test_without_requests_the_page_says_how_one_comes_here(house: House) -> None:
    browser = await house.browser()
    assert "No request yet" in (await browser.get("/requests"))[1]
    assert "No request fits this search" in (await browser.get("/requests?model=m"))[1]
    status, text = await browser.get("/requests?account=nobody")
    assert (status, "There is no account `nobody`" in text) == (404, True)


async def test_requests_are_found_by_what_they_have(house: House, rows: UsageFiles) -> None:
    browser = await house.browser()
    mine = end(arrival(), account="mine", model="m1", channel="c1", token_id="mine-1", group="trial")
    mine = msgspec.structs.replace(mine, reference=hashed_reference("mine", "order/7"))
    failed = end(arrival(), account="other", model="m2", outcome=Outcome.UPSTREAM_FAILED, error_code="upstream_timeout")
    rows.write([mine, failed])
    for query, found in {
        "": {mine.id, failed.id},
        "?account=mine": {mine.id},
        "?token=mine-1": {mine.id},
        "?model=m2": {failed.id},
        "?outcome=upstream_failed": {failed.id},
        "?channel=up": set(),
        "?group=trial": {mine.id},
        "?account=mine&reference=order/7": {mine.id},
        "?account=mine&reference=order/8": set(),
        f"?id={mine.id[:30]}&account=mine": {mine.id},
        "?since=1h": {mine.id, failed.id},
        "?until=2001-01": set(),
    }.items():
        status, text = await browser.get(f"/requests{query}")
        assert (status, {each.id for each in (mine, failed) if f"/requests/{each.id}" in text}) == (200, found), query
    status, _ = await browser.get(f"/requests?id={mine.id}")
    assert (status, browser.headers["Location"]) == (303, f"/requests/{mine.id}")
    status, _ = await browser.get("/requests?reference=order/7")  # whose it is, the search finds out
    assert (status, browser.headers["Location"]) == (303, "/search?q=order/7")
    for query in ("?since=yesterday", "?outcome=x", "?since=2026-11-22&until=2026-11-21", "?after=x"):
        status, text = await browser.get(f"/requests{query}")
        assert (status, 'role="alert"' in text or "That did not work" in text) == (400, True), query


async def test_the_page_of_an_account_has_its_last_requests(house: House, rows: UsageFiles) -> None:
    await accounts.create(house.local_client(), body=NewAccount("mine"))
    sent = [end(arrival(), account="mine") for _ in range(12)]
    rows.write([*sent, other := end(arrival(), account="other")])
    text = (await (await house.browser()).get("/accounts/mine"))[1]
    assert [f"/requests/{each.id}" in text for each in (*sent, other)] == [False, False, *[True] * 10, False]


async def test_times_are_in_the_zone_of_the_file_or_of_the_address(house: House, rows: UsageFiles) -> None:
    browser = await house.browser()
    record = end(arrival())
    rows.write([record])
    utc = record.arrived_at[:19].replace("T", " ")
    assert f">{utc}Z</time>" in (await browser.get("/requests"))[1]
    status, text = await browser.get("/requests?zone=Asia/Kolkata")
    assert (status, f'title="{utc}Z"' in text, f">{utc}Z</time>" in text, "+05:30</time>" in text) == (
        200,
        True,
        False,
        True,
    )
    assert (await browser.get("/requests?zone=Nowhere"))[0] == 400


async def test_a_time_copied_from_a_table_finds_the_request_with_and_without_its_zone(
    house: House, rows: UsageFiles
) -> None:
    house.loaded = house.configured("time_zone: Asia/Kolkata")
    browser = await house.browser()
    now_ms = int(time.time() * 1000) // 60_000 * 60_000
    record, before = (end(arrival(id_at(now_ms - ago_s * 1000))) for ago_s in (60, 3660))
    rows.write([before, record])
    _, text = await browser.get("/requests")
    shown = text.partition(f"/requests/{record.id}")[2].partition("</time>")[0].rpartition(">")[2]
    assert shown.endswith("+05:30") and "Since (Asia/Kolkata)" in text
    for since in (shown, shown.removesuffix("+05:30")):
        for page in ("/requests", "/requests.csv"):
            _, text = await browser.get(f"{page}?{urlencode({'since': since})}")
            assert (record.id in text, before.id in text) == (True, False), (page, since)
        _, text = await browser.get(f"/requests?{urlencode({'until': since})}")
        assert (record.id in text, before.id in text) == (False, True), since
    day = shown[:10]
    assert record.id in (await browser.get(f"/requests?since={day}&until={day}"))[1]


async def test_buttons_show_a_range_and_keep_the_rest_of_the_search(house: House) -> None:
    browser = await house.browser()
    _, text = await browser.get("/requests?model=m1&since=24h&until=2026-11&after=")
    ranges = re.findall(r'href="/requests\?model=m1&amp;since=([^"&]+)"( aria-current="page")?>([^<]+)<', text)
    assert ranges[:3] == [
        ("1h", "", "The last hour"),
        ("24h", ' aria-current="page"', "24 hours"),
        ("7d", "", "7 days"),
    ]
    assert (len(ranges), ranges[3][2]) == (4, "This month")
    for since, _, _ in ranges:
        assert (await browser.get(f"/requests?since={since}"))[0] == 200


async def test_an_external_id_is_found_with_and_without_ext(house: House, rows: UsageFiles) -> None:
    await accounts.create(house.local_client(), body=NewAccount("mine", external_id="user-17"))
    browser = await house.browser()
    record = end(arrival(), account="mine")
    rows.write([record])
    for text in ("user-17", "ext:user-17"):
        status, _ = await browser.get(f"/search?q={text}")
        assert (status, browser.headers["Location"]) == (303, "/accounts/mine"), text
    assert record.id in (await browser.get("/requests?account=ext:user-17"))[1]
    status, _ = await browser.get("/requests?account=user-17&since=1h")
    assert (status, browser.headers["Location"]) == (303, "/requests?account=mine&since=1h")


async def test_a_list_goes_on(house: House, rows: UsageFiles) -> None:
    browser = await house.browser()
    records = [end(arrival(), account="mine") for _ in range(120)]
    rows.write(records)
    path, seen = "/requests?account=mine", []
    for _ in range(3):
        _, text = await browser.get(path)
        seen += [each.id for each in reversed(records) if f"/requests/{each.id}" in text]
        path = text.partition('rel="next" href="')[2].partition('"')[0].replace("&amp;", "&")
    assert (seen, path) == ([each.id for each in reversed(records)], "")


async def test_a_request_is_told_as_a_story(house: House, rows: UsageFiles) -> None:
    browser = await house.browser()
    record = end(arrival(), **COSTED, upstream_request_id="req-of-the-upstream")
    rows.write([record])
    status, text = await browser.get(f"/requests/{record.id}")
    assert status == 200
    for part in (
        "Sent to channel openai",
        "312 ms",
        "2.3 s",
        "0.000123",
        "0.0001",
        "req-of-the-upstream",
        "prompt_tokens",
    ):
        assert part in text, part
    status, text = await browser.get(f"/requests/{arrival().id}")
    assert status == 404
    for wrong in ("x", "00000000-0000-0000-0000-000000000000", "%3Cscript%3E"):
        assert (await browser.get(f"/requests/{wrong}"))[0] in (400, 404), wrong


async def test_the_export_has_what_was_searched_for_and_no_formula(house: House, rows: UsageFiles) -> None:
    browser = await house.browser()
    rows.write([end(arrival(), account="mine", model="=1+1"), end(arrival(), account="other")])
    status, text = await browser.get("/requests.csv?account=mine")
    lines = text.splitlines()
    assert (status, len(lines), lines[0].startswith("id,")) == (200, 2, True)
    assert browser.headers["Content-Disposition"] == 'attachment; filename="requests.csv"'
    assert ",'=1+1," in lines[1]


async def test_the_search_leads_to_what_an_id_names(house: House, rows: UsageFiles) -> None:
    browser = await house.browser()
    mine = end(arrival(), account="mine", completion_id="chatcmpl-7", tags={"tenant": "acme"}, address="192.0.2.0/24")
    rows.write([mine, end(arrival(), upstream_request_id="r-1"), end(arrival(), upstream_request_id="r-1")])
    status, _ = await browser.get("/search?q=chatcmpl-7")
    assert (status, browser.headers["Location"]) == (303, f"/requests/{mine.id}")
    status, text = await browser.get("/search?q=r-1")
    assert (status, text.count('href="/requests/')) == (200, 2)
    assert (await browser.get("/search?q=nothing"))[0] == 404
    _, text = await browser.get(f"/requests/{mine.id}")
    assert "192.0.2.0/24" in text
    assert 'href="/requests?tag=tenant%3Aacme"' in text
    assert mine.id in (await browser.get("/requests?tag=tenant:acme"))[1]
    assert mine.id not in (await browser.get("/requests?tag=tenant:other"))[1]


async def test_errors_are_counted_by_code_model_and_channel(house: House, rows: UsageFiles) -> None:
    browser = await house.browser()
    assert "No request had an error" in (await browser.get("/errors"))[1]
    failed = {"outcome": Outcome.UPSTREAM_FAILED, "error_code": "upstream_timeout", "model": "m1", "channel": "c1"}
    refused = {"outcome": Outcome.REFUSED, "error_code": "token_invalid", "model": "", "channel": ""}
    old = arrival(id_at(round(time.time() * 1000) - 2 * 3600 * 1000))
    rows.write(
        [
            end(arrival(), **failed),
            end(arrival(), **failed),
            end(arrival(), **refused),
            end(arrival()),
            end(old, **failed),
        ]
    )
    _, text = await browser.get("/errors?since=1h")
    links = re.findall(r'href="/requests\?([^"]+)"', text)
    assert [unescape(link) for link in links] == [
        "since=1h&error_code=upstream_timeout&model=m1&channel=c1",
        "since=1h&error_code=token_invalid",
    ]
    assert "75.0 %" in text
    assert "that another attempt covered" not in text
    spared = [AttemptRecord("c7", 500, "upstream_error"), AttemptRecord("c8", 200)]
    rows.write([end(arrival(), attempts=spared, channel="c8")])
    _, text = await browser.get("/errors?since=1h")
    assert all(part in text for part in ("that another attempt covered", "c7", "c8", "60.0 %"))
    assert "66.7 %" in (await browser.get("/errors?since=24h"))[1]
    _, text = await browser.get("/errors?since=1h&sort=error_code")
    assert text.index(">token_<wbr>invalid<") < text.index(">upstream_<wbr>timeout<")
    assert 'aria-sort="ascending"><a href="?since=1h">Code</a>' in text
