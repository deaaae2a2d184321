"""A cluster of three nodes serves external ids, the usage log, keys of requests, the audit log and management tokens."""

from __future__ import annotations

import asyncio

import pytest

from gateway.admin.actions.management_tokens import ManagementTokens
from gateway.domain.exchange import Outcome
from gateway.store.accounts import AccountError, Accounts
from gateway.store.client.client import Client
from gateway.store.external_ids import ExternalIds
from gateway.usage.gateways import forget, gateways_of
from gateway.usage.record import encode
from gateway.usage.stream import STREAMS
from tests.admin.actions import test_audit
from tests.admin.http import test_idempotency
from tests.records import arrival, end
from tests.store.cluster import client, masters
from tests.store.test_accounts import give
from tests.usage.test_shares import Machine, machines, opened

__all__ = ["client", "machines", "masters"]


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


async def test_records_spools_closings_and_forgetting_work_on_a_cluster(
    machines: list[Machine], client: Client
) -> None:
    one, two, three = machines
    ids = await one.served(60)
    lengths = [await client.call("XLEN", stream) for stream in one.usage.streams]
    assert (len(lengths), sum(lengths), max(lengths) < 60) == (STREAMS, 120, True)
    assert (await two.usage.ask(min(ids))).record is not None, "it is found in its stream"
    spooled = end(arrival())
    await two.usage.spool.append(encode(spooled))
    (lost,) = await opened(three)
    for each in machines:
        await each.drain()
        assert each.ids() >= ids
    assert (await one.usage.ask(spooled.id)).record == spooled
    assert await one.sink.close_lost(9_000_000_000_000) == 1
    await two.drain()
    found = (await one.usage.ask(lost.id)).record
    assert found is not None
    assert found.outcome is Outcome.GATEWAY_CRASHED
    assert await one.usage.length() == 0
    (gone,) = [each for each in await gateways_of(client) if each.installation == three.usage.installation]
    await forget(client, gone)
    assert [each.about.forgotten_ms > 0 for each in await gateways_of(client) if each.installation == gone.installation]


async def test_all_of_it_works_on_a_cluster(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    await test_idempotency.check(client)
    await test_audit.check_log(client, monkeypatch)
    tokens = ManagementTokens(client)
    made, text = await tokens.create("shop", ["read"], None, "test")
    assert await tokens.authenticate(text) == made
    assert await tokens.all() == [made]
    await tokens.revoke(made.id)
    assert await tokens.authenticate(text) is None
