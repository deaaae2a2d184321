"""What the API sends that is no JSON: CSV of any length, and requests as they end."""

from __future__ import annotations

import asyncio

from gateway.admin.actions.local import LocalClient
from gateway.domain.exchange import Outcome
from gateway.usage.record import decode
from tests.admin.http.conftest import TOKEN, Client
from tests.patience import PATIENCE_S
from tests.records import arrival, end, usage_database

HEADERS = {"Authorization": f"Bearer {TOKEN}"}


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
