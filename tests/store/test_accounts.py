"""Accounts are created once, changed field by field, and stay closed once closed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.base.errors import StoreAway, StoreError
from gateway.store.accounts import Account, AccountError, Accounts, AccountStatus
from gateway.store.client.client import Client
from gateway.store.money.wallet import Wallet


@pytest.fixture
def accounts(client: Client) -> Accounts:
    return Accounts(client)


async def test_an_id_is_created_once_by_concurrent_calls(accounts: Accounts) -> None:
    results = await asyncio.gather(*(accounts.create("alice", f"group{n}") for n in range(20)), return_exceptions=True)
    made = [result for result in results if isinstance(result, Account)]
    assert len(made) == 1
    assert all(isinstance(result, AccountError) for result in results if result not in made)
    assert await accounts.get("alice") == made[0]


@pytest.mark.parametrize("bad", ["", "ab", "a" * 33, "Alice", "al ice", "al{ce}", "al:ce", "alicé", "alice\n", "*"])
async def test_a_bad_id_is_refused(accounts: Accounts, bad: str) -> None:
    with pytest.raises(AccountError, match="3 to 32"):
        await accounts.create(bad)
    assert [account async for account in accounts.all()] == []


async def test_a_change_leaves_the_balance_alone(accounts: Accounts, client: Client) -> None:
    await accounts.create("alice")
    await Wallet(client).credit("alice", "t1", 500)
    await accounts.change("alice", group="trial", credit_line=9)
    assert (await accounts.set_status("alice", AccountStatus.SUSPENDED)).balance_micros == 500
    assert await Wallet(client).verify("alice") == []


@pytest.mark.parametrize("credit_line", [-1, 2**53])
async def test_a_credit_line_that_cannot_be_stored_exactly_is_refused(accounts: Accounts, credit_line: int) -> None:
    await accounts.create("alice")
    with pytest.raises(AccountError, match="credit line"):
        await accounts.change("alice", credit_line=credit_line)


async def test_no_operation_on_an_unknown_account_creates_it(accounts: Accounts) -> None:
    for attempt in (
        accounts.change("nobody", group="trial"),
        accounts.change("nobody"),
        accounts.set_status("nobody", AccountStatus.SUSPENDED),
    ):
        with pytest.raises(AccountError, match="no account `nobody`"):
            await attempt
    assert await accounts.get("nobody") is None


async def test_all_accounts_are_listed_once_each_and_nothing_else(accounts: Accounts, client: Client) -> None:
    names = [f"account{n}" for n in range(603)]
    for start in range(0, len(names), 100):
        await asyncio.gather(*map(accounts.create, names[start : start + 100]))
    await client.call("HSET", "gw:{alice}:tokens", "a", "b")
    listed = [account.id async for account in accounts.all()]
    assert sorted(listed) == sorted(names)


async def test_an_account_that_cannot_be_read_is_left_out_and_named(accounts: Accounts, client: Client) -> None:
    for name in ("alice", "bobby", "carol"):
        await accounts.create(name)
    await client.call("DEL", "gw:{bobby}:wallet")
    with capture_logs() as logs:
        assert [each.id for each in await accounts.several(["alice", "bobby", "carol"])] == ["alice", "carol"]
        assert sorted([each.id async for each in accounts.all()]) == ["alice", "carol"]
    assert [(each["event"], each["account"]) for each in logs] == [("account_unreadable", "bobby")] * 2
    with pytest.raises(StoreError, match="the account `bobby` has no balance in the store"):
        await accounts.get("bobby")


async def test_a_store_that_is_away_raises_store_away(tmp_path: Path) -> None:
    away = Client.connect(f"unix://{tmp_path}/nothing")
    with pytest.raises(StoreAway):
        [account async for account in Accounts(away).all()]
    with pytest.raises(StoreAway):
        await Accounts(away).get("alice")
    await away.close()
