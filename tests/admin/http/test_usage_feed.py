"""The live stream sends each request once when it has ended, in order, and goes on after a reconnection without loss."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import ClientResponse

from gateway.admin.http import usage_feed
from gateway.usage.database import UsageDatabase
from gateway.usage.record import Record, decode
from tests.admin.http.conftest import Client
from tests.patience import PATIENCE_S
from tests.records import arrival, end


@asynccontextmanager
async def following(client: Client, last_event_id: str = "", **query: str) -> AsyncIterator[ClientResponse]:
    headers = {"Last-Event-ID": last_event_id} if last_event_id else {}
    async with client.get("/api/v1/usage/live", params=query, headers=headers) as response:
        assert (response.status, response.content_type) == (200, "text/event-stream")
        assert await response.content.readuntil(b"\n\n") == b": from here on\n\n"
        yield response


async def next_event(response: ClientResponse) -> tuple[str, Record]:
    """Return the next event's id and record."""
    async with asyncio.timeout(PATIENCE_S):
        event = (await response.content.readuntil(b"\n\n")).decode()
    event_id, data = event.splitlines()[:2]
    return event_id.removeprefix("id: "), decode(data.removeprefix("data: "))


async def test_each_request_is_one_event_when_it_has_ended(client: Client, rows: UsageDatabase) -> None:
    rows.write([end(arrival())])
    async with following(client) as response:
        opened, other = arrival(), arrival()
        rows.write([opened, other])
        rows.write([end(other)])
        assert (await next_event(response))[1] == end(other)
        rows.write([end(opened)])
        assert (await next_event(response))[1] == end(opened)


async def test_one_account_is_selected(client: Client, rows: UsageDatabase) -> None:
    async with following(client, account="mine") as response:
        mine = [end(arrival(), account="mine") for _ in range(2)]
        rows.write([end(arrival()), mine[0], end(arrival()), mine[1]])
        assert [(await next_event(response))[1] for _ in mine] == mine


async def test_a_client_that_reconnects_gets_what_it_missed_and_nothing_twice(
    client: Client, rows: UsageDatabase
) -> None:
    ends = [end(arrival()) for _ in range(5)]
    async with following(client) as response:
        rows.write(ends[:3])
        last_event_id, first = await next_event(response)
    rows.write(ends[3:])
    async with following(client, last_event_id) as response:
        assert [first, *[(await next_event(response))[1] for _ in ends[1:]]] == ends


async def test_more_than_one_batch_is_sent_in_order(client: Client, rows: UsageDatabase) -> None:
    async with following(client) as response:
        ends = [end(arrival()) for _ in range(1200)]
        rows.write(ends)
        assert [(await next_event(response))[1] for _ in ends] == ends


async def test_comments_show_that_the_stream_of_a_quiet_log_works(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_feed, "PING_S", 0.02)
    async with following(client) as response, asyncio.timeout(PATIENCE_S):
        assert await response.content.readuntil(b"\n\n") == b": ping\n\n"


async def test_an_event_id_that_never_was_is_refused(client: Client) -> None:
    async with client.get("/api/v1/usage/live", headers={"Last-Event-ID": "4711"}) as response:
        assert (response.status, (await response.json())["error"]["param"]) == (400, "Last-Event-ID")
