"""With any network fault, a call of the wallet takes effect once, and no reply is matched with another call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.store.client.client import Client
from gateway.store.money.journal import Journal
from gateway.store.money.wallet import Credit, Hold, Settle, Wallet
from tests.store.conftest import ACCOUNT, balance_and_held, new_request_id, open_account, take
from tests.store_proxy import Fault, StoreProxy

FAULTS = pytest.mark.parametrize("fault", Fault, ids=[fault.name.lower() for fault in Fault])


class WalletBehindProxy:
    """A wallet behind a proxy; `client` is connected to the store directly."""

    def __init__(self, proxy: StoreProxy, wallet: Wallet, journal: Journal, client: Client) -> None:
        self.proxy, self.wallet, self.journal, self.client = proxy, wallet, journal, client


@pytest.fixture
async def behind(client: Client, store_url: str, tmp_path: Path) -> AsyncIterator[WalletBehindProxy]:
    await open_account(client, 100)
    async with StoreProxy(store_url, delay_s=0.75) as proxy:
        impatient = Client.connect(proxy.url, timeout_s=0.5)
        journal = Journal(tmp_path)
        wallet = Wallet(impatient, journal=journal)
        await wallet.sweep(ACCOUNT)
        yield WalletBehindProxy(proxy, wallet, journal, client)
        await impatient.close()
    assert await Wallet(client).verify(ACCOUNT) == []


@FAULTS
async def test_a_settlement_charges_once(behind: WalletBehindProxy, fault: Fault) -> None:
    request_id, other = new_request_id(), new_request_id()
    await take(behind.wallet, request_id)
    await take(behind.wallet, other)
    behind.proxy.once(fault)
    settled = await behind.wallet.settle(ACCOUNT, request_id, 4)
    assert (settled.outcome in (Settle.OK, Settle.DONE), settled.charged) == (True, 4)
    assert behind.proxy.done[fault] == 1
    assert (await behind.wallet.settle(ACCOUNT, other, 7)).charged == 7
    assert await balance_and_held(behind.client) == (89, 0)


@FAULTS
async def test_a_hold_is_taken_once_or_can_be_released(behind: WalletBehindProxy, fault: Fault) -> None:
    request_id = new_request_id()
    behind.proxy.once(fault)
    reply = await asyncio.gather(take(behind.wallet, request_id, 30), return_exceptions=True)
    held = [item.outcome for item in reply if not isinstance(item, BaseException)]
    assert held in ([], [Hold.HELD])
    assert (await balance_and_held(behind.client))[1] in ((30,) if held else (0, 30))
    assert behind.proxy.done[fault] == 1
    assert (await behind.wallet.release(ACCOUNT, request_id)).charged == 0
    assert await balance_and_held(behind.client) == (100, 0)


@FAULTS
async def test_a_repeated_credit_adds_once(behind: WalletBehindProxy, fault: Fault) -> None:
    behind.proxy.once(fault)
    await asyncio.gather(behind.wallet.credit(ACCOUNT, "t1", 50), return_exceptions=True)
    assert behind.proxy.done[fault] == 1
    again = await behind.wallet.credit(ACCOUNT, "t1", 50)
    assert (again.outcome in (Credit.OK, Credit.DONE), again.balance) == (True, 150)


async def test_replies_never_cross(behind: WalletBehindProxy) -> None:
    """Each of many calls, on connections that fail in turn, gets its own reply."""
    faults = [None, None, *Fault] * 4
    behind.proxy.fault = lambda: faults.pop() if faults else None
    request_ids = [new_request_id() for _ in range(60)]

    async def settled(number: int) -> None:
        await asyncio.sleep(number * 0.03)
        assert (await behind.wallet.settle(ACCOUNT, request_ids[number], number)).charged == number

    await asyncio.gather(*map(settled, range(60)))
    await behind.journal.replay(Wallet(behind.client).deliver)
    assert not faults
    assert await balance_and_held(behind.client) == (100 - sum(range(60)), 0)
