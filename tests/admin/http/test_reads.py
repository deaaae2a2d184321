"""What the API sends that is no JSON: CSV of any length, and requests as they end, to no more than some at once."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from gateway.admin.actions.local import LocalClient
from gateway.admin.http import api as csv_file
from gateway.admin.http import usage_feed
from gateway.domain.exchange import Outcome
from gateway.usage.record import decode
from tests.admin.http.conftest import TOKEN, Client, call
from tests.patience import PATIENCE_S
from tests.records import arrival, end, usage_database

HEADERS = {"Authorization": f"Bearer {TOKEN}"}


async def test_requests_are_listed_read_and_told(api: Client, local_client: LocalClient) -> None:
    rows = usage_database(local_client.store.usage.folder)
    record = end(arrival(), account="alice")
    rows.write([record, end(arrival())])
    rows.close()
    status, listed = await call(api, "GET", "/requests?account=alice&since=1h")
    assert (status, [line["id"] for line in listed["data"]]) == (200, [record.id])
    assert (await call(api, "GET", f"/requests/{record.id}"))[1]["unasked"] == []
    assert (await call(api, "GET", f"/requests/{record.id}/trace"))[1]["verdict"].startswith("sent to channel openai")
    status, sums = await call(api, "GET", "/usage/summary?by=account&sort=charge_micros")
    assert (status, sums["lines"], sums["total"]["requests"]) == (200, 2, 2)
    assert (await call(api, "GET", "/requests?planet=x"))[0] == 400


async def test_an_export_is_csv(api: Client, local_client: LocalClient) -> None:
    rows = usage_database(local_client.store.usage.folder)
    rows.write([end(arrival()) for _ in range(2500)])
    rows.close()
    async with api.get("/api/v1/usage/export.csv", headers=HEADERS) as response:
        assert (response.status, response.content_type) == (200, "text/csv")
        assert response.headers["Content-Disposition"] == 'attachment; filename="requests.csv"'
        assert len((await response.text()).splitlines()) == 2501
    async with api.get("/api/v1/usage/export.csv?since=never", headers=HEADERS) as response:
        assert (response.status, response.content_type) == (400, "application/json")


async def test_no_more_than_some_follow_at_once_also_where_all_begin_at_once(
    api: Client, local_client: LocalClient
) -> None:
    async with AsyncExitStack() as stack:
        asked = (
            stack.enter_async_context(api.get("/api/v1/usage/live", headers=HEADERS))
            for _ in range(usage_feed.MAX_STREAMS + 8)
        )
        async with asyncio.timeout(PATIENCE_S):
            statuses = sorted(response.status for response in await asyncio.gather(*asked))
        assert statuses == [200] * usage_feed.MAX_STREAMS + [503] * 8


async def test_requests_are_followed_by_model_and_outcome(api: Client, local_client: LocalClient) -> None:
    rows = usage_database(local_client.store.usage.folder)
    async with api.get("/api/v1/usage/live?model=large&outcome=completed", headers=HEADERS) as response:
        assert await response.content.readuntil(b"\n\n") == b": from here on\n\n"
        mine = end(arrival(), model="large")
        rows.write([end(arrival()), end(arrival(), model="large", outcome=Outcome.REFUSED), mine])
        async with asyncio.timeout(PATIENCE_S):
            event = (await response.content.readuntil(b"\n\n")).decode()
        assert decode(event.splitlines()[1].removeprefix("data: ")) == mine
    rows.close()


async def test_a_reader_that_takes_nothing_of_a_file_is_let_go(
    api: Client, local_client: LocalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = usage_database(local_client.store.usage.folder)
    rows.write([end(arrival()) for _ in range(30_000)])
    rows.close()
    monkeypatch.setattr(csv_file, "SEND_S", 0.2)
    _, writer = await asyncio.open_connection(api.host, api.port, limit=1024)
    head = f"GET /api/v1/usage/export.csv HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    writer.write(head.encode())
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    runner = api.server.runner
    assert runner is not None and runner.server is not None
    seen = False
    async with asyncio.timeout(PATIENCE_S):
        while runner.server.connections or not seen:
            seen = seen or bool(runner.server.connections)
            await asyncio.sleep(0.02)
    writer.close()
