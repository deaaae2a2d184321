"""External ids on a cluster of three nodes: a claim is in another slot than its account, and still only one account gets it."""

from __future__ import annotations

import asyncio

from gateway.store.accounts import AccountError, Accounts
from gateway.store.client.client import Client
from gateway.store.external_ids import ExternalIds
from tests.store.cluster import client, masters
from tests.store.test_accounts import give

__all__ = ["client", "masters"]


async def test_many_accounts_that_want_the_same_ones_at_once_have_one_each_at_most(client: Client) -> None:
    accounts, ids = Accounts(client), ExternalIds(client)
    names = [f"account{number}" for number in range(6)]
    wanted = ["user-17", "a{b}c@example.com", "d}e{f"]
    for name in names:
        await accounts.create(name)
    given = [give(ids, accounts, name, external_id) for external_id in wanted for name in names]
    failed = [error for error in await asyncio.gather(*given, return_exceptions=True) if error is not None]
    assert all(isinstance(error, AccountError) for error in failed), failed
    owners = {each.external_id: each.id async for each in accounts.all() if each.external_id}
    assert len(set(owners.values())) == len(owners)
    for external_id, owner in owners.items():
        assert await ids.find(external_id) == owner
    await client.call("SET", "gw:external:interrupted", "nobody 1")
    assert await ids.sweep() >= 1
    assert await ids.find("interrupted") is None
