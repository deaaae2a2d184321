"""An extension raises a hold to a total: whatever is repeated or lost on the way, it is raised once, and settled as a whole."""

from __future__ import annotations

import asyncio

import pytest

from gateway.base.errors import StoreAway, StoreError
from gateway.store.client.client import Client
from gateway.store.money.wallet import Hold, HoldReply, Settle, Settled, Wallet
from tests.store.conftest import ACCOUNT, KEY, balance_and_held, new_request_id, open_account, overdue, take
from tests.store_proxy import Fault, StoreProxy

MOST = 2**53 - 1


async def extend(wallet: Wallet, request_id: str, amount: int = 50, floor: int = 0) -> HoldReply:
    return await wallet.extend(ACCOUNT, request_id, amount=amount, floor=floor)


@pytest.fixture
async def held(wallet: Wallet) -> str:
    """Return a request that holds 30 of 100."""
    request_id = new_request_id()
    await take(wallet, request_id, 30)
    return request_id


async def test_raises_the_hold_to_the_total(wallet: Wallet, held: str) -> None:
    reply = await extend(wallet, held, 50)
    assert (reply.outcome, reply.balance, reply.held) == (Hold.HELD, 100, 50)


async def test_repeated_takes_nothing_more_and_a_late_one_lowers_nothing(wallet: Wallet, held: str) -> None:
    for total in (50, 50, 70, 50):
        reply = await extend(wallet, held, total)
    assert (reply.outcome, reply.held) == (Hold.HELD, 70)


async def test_needs_the_difference_and_not_a_micro_more(wallet: Wallet, held: str) -> None:
    other = new_request_id()
    await take(wallet, other, 20)
    refused = await extend(wallet, held, 81)
    assert (refused.outcome, refused.held) == (Hold.FUNDS, 50)
    assert (await extend(wallet, held, 80)).outcome is Hold.HELD
    assert await wallet.settle(ACCOUNT, held, 80) == Settled(Settle.OK, 80)


async def test_a_credit_line_adds_to_what_is_available(client: Client, wallet: Wallet, held: str) -> None:
    await client.call("HSET", KEY + "account", "credit_line", 50)
    assert (await extend(wallet, held, 151)).outcome is Hold.FUNDS
    assert (await extend(wallet, held, 150)).outcome is Hold.HELD


async def test_a_settlement_ends_the_whole_hold(client: Client, wallet: Wallet, held: str) -> None:
    await extend(wallet, held, 90)
    assert await wallet.settle(ACCOUNT, held, 45) == Settled(Settle.OK, 45)
    assert await balance_and_held(client) == (55, 0)
    assert await wallet.verify(ACCOUNT) == []


async def test_a_repeated_hold_keeps_what_was_added(client: Client, wallet: Wallet, held: str) -> None:
    await extend(wallet, held, 90)
    assert (await take(wallet, held, 30)).outcome is Hold.HELD
    assert (await take(wallet, held, 30, fingerprint="beef")).outcome is Hold.CONFLICT
    assert await balance_and_held(client) == (100, 90)


async def test_the_lease_stays_and_the_larger_floor_is_charged_at_its_end(client: Client, wallet: Wallet) -> None:
    request_id, lower = new_request_id(), new_request_id()
    for each in (request_id, lower):
        await take(wallet, each, 20, floor=4)
    before = await client.call("ZRANGE", KEY + "leases", 0, -1, "WITHSCORES")
    await extend(wallet, request_id, 40, floor=9)
    await extend(wallet, lower, 40, floor=3)
    assert await client.call("ZRANGE", KEY + "leases", 0, -1, "WITHSCORES") == before
    for each in (request_id, lower):
        await overdue(client, each)
    assert sorted(await wallet.sweep(ACCOUNT)) == [(request_id, 9), (lower, 4)]


async def test_the_floor_is_at_most_the_amount(client: Client, wallet: Wallet, held: str) -> None:
    await extend(wallet, held, 40, floor=60)
    await overdue(client, held)
    assert await wallet.sweep(ACCOUNT) == [(held, 40)]


async def test_a_hold_past_its_lease_is_not_extended(client: Client, wallet: Wallet, held: str) -> None:
    await overdue(client, held)
    for _ in range(2):
        assert (await extend(wallet, held)).outcome is Hold.DONE
        await wallet.sweep(ACCOUNT)
    assert await balance_and_held(client) == (100, 0)


@pytest.mark.parametrize("cost", [0, 12])
async def test_a_resolved_request_is_not_extended(client: Client, wallet: Wallet, held: str, cost: int) -> None:
    await wallet.settle(ACCOUNT, held, cost)
    assert (await extend(wallet, held)).outcome is Hold.DONE
    assert await balance_and_held(client) == (100 - cost, 0)


async def test_a_hold_that_the_store_lost_is_not_taken_again(client: Client, wallet: Wallet) -> None:
    assert (await extend(wallet, new_request_id())).outcome is Hold.LOST
    assert await balance_and_held(client) == (100, 0)


@pytest.mark.parametrize("status", ["suspended", "closed"])
async def test_an_account_that_is_not_active_is_refused(client: Client, wallet: Wallet, held: str, status: str) -> None:
    await client.call("HSET", KEY + "account", "status", status)
    assert (await extend(wallet, held)).outcome is Hold.INACTIVE
    assert await balance_and_held(client) == (100, 30)


async def test_an_unknown_account_is_refused_and_not_created(client: Client) -> None:
    assert (await extend(Wallet(client), new_request_id())).outcome is Hold.NO_ACCOUNT
    assert await client.call("DBSIZE") == 0


@pytest.mark.parametrize("amount", [-1, MOST + 1])
async def test_an_amount_out_of_range_changes_nothing(client: Client, wallet: Wallet, held: str, amount: int) -> None:
    with pytest.raises(StoreError, match="the amount"):
        await extend(wallet, held, amount)
    assert await balance_and_held(client) == (100, 30)


async def test_a_sum_of_holds_beyond_its_range_changes_nothing(client: Client) -> None:
    await open_account(client, MOST, credit_line=MOST)
    wallet, held = Wallet(client), new_request_id()
    await take(wallet, held, 30)
    await take(wallet, new_request_id(), 1)
    with pytest.raises(StoreError, match="the new sum of holds"):
        await extend(wallet, held, MOST)
    assert (await extend(wallet, held, MOST - 1)).outcome is Hold.HELD
    assert await balance_and_held(client) == (MOST, MOST)


@pytest.mark.parametrize("fault", Fault, ids=[fault.name.lower() for fault in Fault])
async def test_with_a_network_fault_it_is_raised_once_or_the_whole_can_be_released(
    client: Client, wallet: Wallet, held: str, store_url: str, fault: Fault
) -> None:
    async with StoreProxy(store_url, delay_s=0.75) as proxy:
        impatient = Client.connect(proxy.url, timeout_s=0.5)
        behind = Wallet(impatient)
        await behind.sweep(ACCOUNT)
        proxy.once(fault)
        (reply,) = await asyncio.gather(extend(behind, held, 50), return_exceptions=True)
        assert isinstance(reply, StoreAway) or reply.outcome is Hold.HELD  # type: ignore[union-attr]
        amounts = (30, 50) if isinstance(reply, StoreAway) else (50,)
        assert (await balance_and_held(client))[1] in amounts
        await impatient.close()
    await wallet.release(ACCOUNT, held)
    assert await balance_and_held(client) == (100, 0)
    assert await wallet.verify(ACCOUNT) == []
