"""What is done for the money while nobody asks: delivered, repeated, swept; and one fault holds up nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog

from gateway.runtime.maintenance import SWEEP_TURN, Maintenance
from gateway.services import Store
from gateway.store.client.client import Client
from gateway.store.money.results import Settlement
from gateway.testing import services
from tests.patience import PATIENCE_S
from tests.store.conftest import ACCOUNT, balance_and_held, new_request_id, overdue, take


@pytest.fixture
async def store(store_url: str, client: Client, tmp_path: Path) -> AsyncIterator[Store]:
    async with services(tmp_path, store_url) as given:
        await given.store.accounts.create(ACCOUNT)
        await given.store.wallet.credit(ACCOUNT, "opening", 100)
        yield given.store


async def dead(store: Store, client: Client, count: int = 1) -> list[str]:
    """Holds past their lease."""
    request_ids = [new_request_id() for _ in range(count)]
    for request_id in request_ids:
        await take(store.wallet, request_id)
    for request_id in request_ids:
        await overdue(client, request_id)
    return request_ids


async def test_dead_holds_are_ended_and_told(store: Store, client: Client) -> None:
    request_ids = await dead(store, client, 3)
    with structlog.testing.capture_logs() as logs:
        await Maintenance(store).round()
    assert await balance_and_held(client) == (100, 0)
    (told,) = [entry for entry in logs if entry["event"] == "holds_expired"]
    assert (told["account"], sorted(told["requests"])) == (ACCOUNT, sorted(request_ids))


async def test_of_all_workers_one_sweeps_in_a_while(store: Store, client: Client) -> None:
    await Maintenance(store).round()
    await dead(store, client)
    await Maintenance(store).round()
    assert await balance_and_held(client) == (100, 10)
    await client.call("DEL", SWEEP_TURN)
    await Maintenance(store).round()
    assert await balance_and_held(client) == (100, 0)


async def test_the_journal_is_delivered(store: Store, client: Client) -> None:
    store.journal.append(Settlement(ACCOUNT, new_request_id(), 7))
    await Maintenance(store).round()
    assert await balance_and_held(client) == (93, 0)


async def test_what_the_store_refuses_holds_up_nothing_else(store: Store, client: Client) -> None:
    store.journal.append(Settlement(ACCOUNT, "not-a-uuid", 7))
    store.journal.append(Settlement(ACCOUNT, new_request_id(), 7))
    await dead(store, client)
    with structlog.testing.capture_logs() as logs:
        await Maintenance(store).round()
    assert await balance_and_held(client) == (93, 0)
    (told,) = [entry for entry in logs if entry["event"] == "care_waits"]
    assert (told["work"], "not a UUIDv7" in told["reason"]) == ("deliver", True)


async def test_it_goes_on_by_itself_until_it_is_left(store: Store, client: Client) -> None:
    store.journal.append(Settlement(ACCOUNT, new_request_id(), 7))
    async with Maintenance(store), asyncio.timeout(PATIENCE_S):
        while await balance_and_held(client) != (93, 0):
            await asyncio.sleep(0.01)
    assert {task.get_name() for task in asyncio.all_tasks()} == {asyncio.current_task().get_name()}  # type: ignore[union-attr]
