"""One search finds requests, accounts and tokens by whatever one has of them."""

from __future__ import annotations

import pytest

from gateway.admin.actions import accounts, requests, tokens
from gateway.admin.actions.accounts import NewAccount
from gateway.admin.actions.local import LocalClient
from gateway.admin.actions.requests import Found, SearchQuery
from gateway.admin.actions.tokens import NewToken
from gateway.store.pepper import VARIABLE
from gateway.usage.database import UsageDatabase
from gateway.usage.record import hashed_reference
from tests.records import arrival, end


async def found(local_client: LocalClient, text: str) -> tuple[list[str], list[str], list[str]]:
    """Return the ids of the requests, accounts and tokens that a text finds."""
    result: Found = await requests.search(local_client, query=SearchQuery(text))
    return (
        [each.id for each in result.requests],
        [each.id for each in result.accounts],
        [each.id for each in result.tokens],
    )


async def test_a_request_is_found_by_any_of_its_ids(local_client: LocalClient, rows: UsageDatabase) -> None:
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
    local_client: LocalClient, rows: UsageDatabase, monkeypatch: pytest.MonkeyPatch
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
async def test_anything_may_be_looked_for(local_client: LocalClient, rows: UsageDatabase, text: str) -> None:
    assert await found(local_client, text) == ([], [], [])
