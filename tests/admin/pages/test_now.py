"""The feed sends what ends, to as many as may look, until their sessions end; nobody who reads slowly keeps anything waiting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
import pytest
from aiohttp import ClientResponse

from gateway.admin.pages import now
from gateway.domain.exchange import Outcome
from gateway.store.channels import ChannelReport
from gateway.usage.database import UsageFiles
from tests.admin.pages.conftest import House, PlainBrowser
from tests.patience import PATIENCE_S
from tests.records import arrival, end, usage_database


@asynccontextmanager
async def following(browser: PlainBrowser, query: str = "") -> AsyncIterator[ClientResponse]:
    async with browser.client.get(f"/now/feed{query}") as response:
        assert (response.status, response.content_type) == (200, "text/event-stream")
        yield response


async def snapshots(response: ClientResponse) -> AsyncIterator[Any]:
    async for line in response.content:
        if line.startswith(b"data: {"):
            yield msgspec.json.decode(line.removeprefix(b"data: "))


async def rows_of(response: ClientResponse, number: int) -> list[str]:
    """Return the ids of the next requests that a feed tells of, the oldest first."""
    ids: list[str] = []
    async with asyncio.timeout(PATIENCE_S):
        async for snapshot in snapshots(response):
            ids += [row["id"] for row in reversed(snapshot["rows"])]
            if len(ids) >= number:
                break
    return ids


@pytest.fixture
def rows(house: House) -> UsageFiles:
    return usage_database(house.store.usage.folder)


async def test_what_ends_is_told_once_in_order_after_what_has_ended_before(house: House, rows: UsageFiles) -> None:
    browser, before = await house.browser(), [end(arrival()) for _ in range(3)]
    rows.write(before)
    async with following(browser) as response:
        assert await rows_of(response, 3) == [record.id for record in before]
        later = [end(arrival()) for _ in range(30)]
        rows.write(later[:20])
        rows.write(later[20:])
        assert await rows_of(response, 30) == [record.id for record in later]


async def test_a_snapshot_has_forty_requests_at_most_and_counts_all(house: House, rows: UsageFiles) -> None:
    browser = await house.browser()
    async with following(browser) as response, asyncio.timeout(PATIENCE_S):
        feed = snapshots(response)
        await anext(feed)
        rows.write([end(arrival(), outcome=Outcome.UPSTREAM_FAILED, charge_micros=1000) for _ in range(450)])
        most = 0
        async for snapshot in feed:
            most = max(most, len(snapshot["rows"]))
            if sum(snapshot["figures"]["rates"]) == 450:
                break
    assert most == 40
    assert snapshot["figures"]["failed"] == "100.0 %"
    assert snapshot["figures"]["money"] == f"{450 * 60 / 1000:.2f}"
    assert (snapshot["health"]["store_well"], snapshot["health"]["workers"]) == (True, "0 workers")


async def test_the_minute_before_is_counted_once(house: House, rows: UsageFiles) -> None:
    browser = await house.browser()
    rows.write([end(arrival(), duration_ms=0) for _ in range(50)])
    async with following(browser) as response, asyncio.timeout(PATIENCE_S):
        async for snapshot in snapshots(response):
            if sum(snapshot["figures"]["rates"]):  # the second in which they ended is over
                break
        assert sum(snapshot["figures"]["rates"]) <= 50


async def test_what_nobody_asked_for_is_left_out(house: House, rows: UsageFiles) -> None:
    browser = await house.browser()
    others = [
        end(arrival(), account="other"),
        end(arrival(), account="mine", model="else"),
        end(arrival(), account="mine"),
    ]
    wanted = end(arrival(), account="mine", outcome=Outcome.UPSTREAM_STALLED)
    async with following(browser, "?account=mine&trouble=true&model=gpt-4o-mini") as response:
        rows.write([*others, wanted])
        assert await rows_of(response, 1) == [wanted.id]


async def test_one_too_many_is_refused_until_another_has_left(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(now, "MAX_FOLLOWERS", 4)
    browser = await house.browser()
    async with AsyncExitStack() as stack:
        for _ in range(4):
            await stack.enter_async_context(following(browser))
        answers = await asyncio.gather(*(browser.get("/now/feed") for _ in range(5)))
        assert [status for status, _ in answers] == [503] * 5
    async with asyncio.timeout(PATIENCE_S):
        while True:
            async with browser.client.get("/now/feed") as response:
                if response.status == 200:
                    break


async def test_a_feed_ends_with_its_session(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(now, "CHECK_S", 0.0)
    browser, other = await house.browser(), await house.browser()
    async with following(browser) as response, following(other) as kept, asyncio.timeout(PATIENCE_S):
        assert (await browser.post("/leave"))[0] == 200
        assert (await response.content.read()).endswith(b"event: left\ndata: left\n\n")
        async for _ in snapshots(kept):
            break


async def test_who_has_not_entered_follows_nothing(house: House) -> None:
    browser = PlainBrowser(await house.client_of())
    assert (await browser.get("/now/feed"))[0] == 401
    assert (await browser.get("/"))[0] == 401


async def test_channels_are_shown_with_their_conditions_and_nothing_of_an_earlier_look(
    house: House, rows: UsageFiles
) -> None:
    async def look(browser: PlainBrowser, wanted: bool) -> tuple[Any, Any]:
        """Return the first snapshot, and the first with channels that are healthy or not."""
        first = None
        async with following(browser) as response, asyncio.timeout(PATIENCE_S):
            async for snapshot in snapshots(response):
                first = first or snapshot
                found = snapshot["channels"]
                if (
                    found
                    and (found[0]["condition"] == "healthy") == wanted
                    and snapshot["figures"]["requests"][0] != "0"
                ):
                    return first, snapshot
        raise AssertionError

    browser = await house.browser()
    name = next(iter(house.loaded.config.channels))
    unavailable = {"outcome": Outcome.UPSTREAM_FAILED, "error_code": "model_unavailable", "status": 503}
    rows.write([end(arrival(), **unavailable)])
    _, shown = await look(browser, wanted=True)
    assert (shown["channels"][0]["channel"], shown["channels"][0]["tone"]) == (name, "ok")
    assert shown["figures"]["failures"] == "1 failed, 0 refused"
    await house.store.channels.sync("w", {name: ChannelReport(failed=3, limited=1, cool_ms=60_000)})
    first, shown = await look(browser, wanted=False)
    assert first["channels"] == [], "what an earlier look has found is not shown"
    line = shown["channels"][0]
    assert line["condition"].startswith("cooling until 20")
    assert (line["tone"], line["calls"], line["success"], line["rate_limited"]) == ("bad", "3", "0 %", "1")
