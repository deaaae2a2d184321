"""What the API sends that is no JSON: CSV of any length, and requests as they end."""

from __future__ import annotations

import asyncio

from gateway.admin.actions.local import LocalClient
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
