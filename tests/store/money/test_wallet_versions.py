"""Gateways of layout 1 that still run while an account is converted cannot charge it, and what they held is charged once."""

from __future__ import annotations

import pytest

from gateway.base.errors import StoreError
from gateway.store import layout
from gateway.store.accounts import Accounts
from gateway.store.client.client import Client, Script
from gateway.store.money.scripts import Settlement
from gateway.store.money.wallet import Hold, Settle, Wallet
from tests.store.conftest import ACCOUNT, KEY, balance_and_held, new_request_id, numbers, overdue, take
from tests.store.money.test_wallet_layouts import EARLIER_KEYS, earlier_text

FINGERPRINT = "f00d"


class Earlier:
    """The wallet of a version of layout 1: its scripts and keys."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def open(self, balance: int) -> None:
        fields = ("status", "active", "group", "default", "models", "", "limits", "{}", "credit_line", 0)
        await self._client.call("HSET", KEY + "account", *fields, "balance", 0, "held", 0, "holds", 0)
        await self.run("credit", "opening", "credit", balance, "")

    async def run(self, name: str, *arguments: str | int) -> list[object]:
        keys = [KEY + part for part in EARLIER_KEYS]
        reply: list[object] = await self._client.run(Script(name, earlier_text(name)), keys, arguments)
        return reply

    async def hold(self, request_id: str, amount: int) -> object:
        window = (86_400_000, 300_000)
        return (await self.run("hold", request_id, amount, 0, 60_000, FINGERPRINT, 100, *window))[1]

    async def settle(self, request_id: str, cost: int) -> object:
        return (await self.run("settle", request_id, "settle", cost, 86_400_000, 300_000))[1]


@pytest.fixture
async def earlier(client: Client) -> Earlier:
    account = Earlier(client)
    await account.open(1000)
    return account


async def convert(client: Client) -> list[str]:
    reports: list[str] = []
    await layout.prepare(client, reports.append, listen_s=0)
    return reports


async def test_a_conversion_keeps_holds_ends_and_balance(client: Client, earlier: Earlier) -> None:
    open_one, dead, ended = (new_request_id() for _ in range(3))
    for request_id in (open_one, dead, ended):
        assert await earlier.hold(request_id, 10) == b"HELD"
    assert await earlier.settle(ended, 4) == b"OK"
    assert (await convert(client))[-1] == "the store's data is converted: 1 accounts"
    wallet = Wallet(client)
    assert (await numbers(client))[:3] == [996, 20, 2]
    assert (await take(wallet, ended)).outcome is Hold.DONE
    assert (await wallet.settle(ACCOUNT, ended, 4)).outcome is Settle.DONE
    assert (await take(wallet, open_one)).outcome is Hold.HELD
    assert (await wallet.settle(ACCOUNT, open_one, 7)).outcome is Settle.OK
    await overdue(client, dead)
    assert (await take(wallet, new_request_id(), 1)).expired == ((dead, 0),)
    assert (await wallet.settle(ACCOUNT, dead, 9)).outcome is Settle.LATE
    assert await balance_and_held(client) == (1000 - 4 - 7 - 9, 1)
    assert await wallet.verify(ACCOUNT) == []


async def test_what_a_gateway_of_layout_1_holds_is_not_charged_by_it_but_from_its_journal(
    client: Client, earlier: Earlier
) -> None:
    request_id = new_request_id()
    assert await earlier.hold(request_id, 10) == b"HELD"
    await convert(client)
    before = await contents(client)
    for call in (
        earlier.settle(request_id, 7),
        earlier.hold(new_request_id(), 1),
        earlier.run("credit", "more", "credit", 5, ""),
        earlier.run("sweep", ACCOUNT, 100, 86_400_000, 300_000),
    ):
        with pytest.raises(StoreError, match="the balance is not an integer"):  # so it goes to the journal
            await call
    assert await contents(client) == before
    assert (await Wallet(client).deliver(Settlement(ACCOUNT, request_id, 7))).outcome is Settle.OK
    assert await balance_and_held(client) == (993, 0)
    assert await Wallet(client).verify(ACCOUNT) == []


async def test_a_gateway_of_layout_1_cannot_charge_an_account_that_it_does_not_know(client: Client) -> None:
    await Accounts(client).create(ACCOUNT)
    before = await contents(client)
    with pytest.raises(StoreError, match="the balance is not an integer"):
        await Earlier(client).settle(new_request_id(), 7)
    assert await contents(client) == before


async def test_an_account_that_is_not_converted_is_not_charged(client: Client, earlier: Earlier) -> None:
    request_id = new_request_id()
    assert await earlier.hold(request_id, 10) == b"HELD"
    before = await contents(client)
    for call in (Wallet(client).settle(ACCOUNT, request_id, 7), take(Wallet(client), new_request_id())):
        with pytest.raises(StoreError, match="its data is of another version"):
            await call
    with pytest.raises(StoreError, match="delete the key gw:layout"):
        await Accounts(client).get(ACCOUNT)
    assert await contents(client) == before


async def contents(client: Client) -> dict[bytes, bytes]:
    """Return all keys with their values."""
    return {key: await client.call("DUMP", key) for key in sorted(await client.call("KEYS", "*"))}
