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


async def test_an_external_id_names_its_account_in_paths_and_filters(api: Client) -> None:
    body = {"id": "alice", "external_id": "cus_Q1"}
    assert (await api.post("/api/v1/accounts", json=body, headers=HEADERS)).status == 201
    for path in ("accounts/ext:cus_Q1", "accounts/ext:cus_Q1/tokens", "requests?account=ext:cus_Q1"):
        assert (await api.get(f"/api/v1/{path}", headers=HEADERS)).status == 200, path
    token = await api.post("/api/v1/accounts/ext:cus_Q1/tokens", json={}, headers=HEADERS)
    assert (await token.json())["id"].startswith("alice-")
    for path in ("accounts/{}", "requests?account={}", "usage/summary?account={}"):
        for name, words in (("ext:cus_Q2", "the external id 'cus_Q2'"), ("nobody", "There is no account `nobody`")):
            answer = await api.get(f"/api/v1/{path.format(name)}", headers=HEADERS)
            assert answer.status == 404, path
            assert words in (text := await answer.text()), path
            assert "`gateway" not in text


async def test_a_list_may_be_given_in_parts(api: Client) -> None:
    one, other = [
        await (await api.get(f"/api/v1/usage/summary?{terms}", headers=HEADERS)).json()
        for terms in ("by=day,model", "by=day&by=model")
    ]
    assert one == other
    assert (await api.get("/api/v1/usage/summary?limit=1&limit=2", headers=HEADERS)).status == 400
