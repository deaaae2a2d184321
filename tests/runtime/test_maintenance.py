"""Journals are delivered, recent writes repeated, holds swept; a failure of one job does not stop the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog

from gateway.chain.services import Store
from gateway.runtime.maintenance import SWEEP_LOCK, Maintenance
from gateway.store.client.client import Client
from gateway.store.money.scripts import Settlement
from gateway.testing import services
from tests.patience import PATIENCE_S
from tests.store.conftest import ACCOUNT, balance_and_held, new_request_id, overdue, take


@pytest.fixture
async def store(store_url: str, client: Client, tmp_path: Path) -> AsyncIterator[Store]:
    async with services(tmp_path, store_url) as opened:
        await opened.store.accounts.create(ACCOUNT)
        await opened.store.wallet.credit(ACCOUNT, "opening", 100)
        yield opened.store


async def expired_holds(store: Store, client: Client, count: int = 1) -> list[str]:
    """Take holds, let their leases expire, and return their request ids."""
    request_ids = [new_request_id() for _ in range(count)]
    for request_id in request_ids:
        await take(store.wallet, request_id)
    for request_id in request_ids:
        await overdue(client, request_id)
    return request_ids


async def test_expired_holds_are_ended_and_logged(store: Store, client: Client) -> None:
    request_ids = await expired_holds(store, client, 3)
    with structlog.testing.capture_logs() as logs:
        await Maintenance(store).run_once()
    assert await balance_and_held(client) == (100, 0)
    (line,) = [entry for entry in logs if entry["event"] == "holds_expired"]
    assert (line["account"], sorted(line["requests"])) == (ACCOUNT, sorted(request_ids))


async def test_an_account_that_cannot_be_read_stops_no_other(store: Store, client: Client) -> None:
    await expired_holds(store, client)
    for name, numbers in (("aaa", "0 9 1 1"), ("zzz", "0 9 1 1"), ("bbb", "odd")):
        await store.accounts.create(name)
        await client.call("HSET", f"gw:{{{name}}}:wallet", "numbers", numbers)
        await client.call("ZADD", f"gw:{{{name}}}:leases", 1, new_request_id())
    with structlog.testing.capture_logs() as logs:
        await Maintenance(store).run_once()
    assert await balance_and_held(client) == (100, 0)
    named = [(each["event"], each["account"]) for each in logs if each["log_level"] == "error"]
    assert sorted(named) == [
        ("account_not_swept", "aaa"),
        ("account_not_swept", "zzz"),
        ("account_unreadable", "bbb"),
    ]


async def test_of_all_workers_one_sweeps_within_the_interval(store: Store, client: Client) -> None:
    await Maintenance(store).run_once()
    await expired_holds(store, client)
    await Maintenance(store).run_once()
    assert await balance_and_held(client) == (100, 10)
    await client.call("DEL", SWEEP_LOCK)
    await Maintenance(store).run_once()
    assert await balance_and_held(client) == (100, 0)


async def test_the_journal_is_delivered(store: Store, client: Client) -> None:
    store.journal.append(Settlement(ACCOUNT, new_request_id(), 7))
    await Maintenance(store).run_once()
    assert await balance_and_held(client) == (93, 0)


async def test_a_settlement_that_the_store_refuses_does_not_stop_the_others(store: Store, client: Client) -> None:
    store.journal.append(Settlement(ACCOUNT, "not-a-uuid", 7))
    store.journal.append(Settlement(ACCOUNT, new_request_id(), 7))
    await expired_holds(store, client)
    with structlog.testing.capture_logs() as logs:
        await Maintenance(store).run_once()
    assert await balance_and_held(client) == (93, 0)
    (line,) = [entry for entry in logs if entry["event"] == "care_waits"]
    assert (line["work"], "not a UUIDv7" in line["reason"]) == ("deliver", True)


async def test_it_repeats_until_its_exit(store: Store, client: Client) -> None:
    store.journal.append(Settlement(ACCOUNT, new_request_id(), 7))
    async with Maintenance(store), asyncio.timeout(PATIENCE_S):
        while await balance_and_held(client) != (93, 0):
            await asyncio.sleep(0.01)
    of_connections = {task for task in asyncio.all_tasks() if "Connection._run" in repr(task.get_coro())}
    assert asyncio.all_tasks() - of_connections == {asyncio.current_task()}
