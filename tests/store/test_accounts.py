"""Accounts are created once, changed field by field, and stay closed once closed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.base.errors import StoreAway, StoreError
from gateway.domain.facts import NO_BUDGETS, AccountLimits, Budgets
from gateway.store.accounts import Account, AccountError, Accounts, AccountStatus
from gateway.store.client.client import Client
from gateway.store.money.wallet import Wallet


@pytest.fixture
def accounts(client: Client) -> Accounts:
    return Accounts(client)


async def test_a_new_account_is_active_with_a_balance_of_zero(accounts: Accounts) -> None:
    created = await accounts.create("alice", group="trial", credit_line=5)
    assert created == Account("alice", AccountStatus.ACTIVE, "trial", 5, (), AccountLimits(), NO_BUDGETS, 0, 0, 0)
    assert await accounts.get("alice") == created


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


async def test_an_unknown_account_is_none(accounts: Accounts) -> None:
    assert await accounts.get("nobody") is None


async def test_a_change_sets_what_is_given_and_leaves_the_rest(accounts: Accounts) -> None:
    await accounts.create("alice", group="trial", credit_line=7)
    assert (await accounts.change("alice", models=["a", "b-*"])).models == ("a", "b-*")
    limits = AccountLimits(requests_per_minute=5)
    changed = await accounts.change("alice", group="default", limits=limits)
    assert changed == Account("alice", AccountStatus.ACTIVE, "default", 7, ("a", "b-*"), limits, NO_BUDGETS, 0, 0, 0)
    assert (await accounts.change("alice", models=[])).models == ()
    assert (await accounts.change("alice", credit_line=0)).credit_line_micros == 0


async def test_budgets_are_kept_until_they_are_taken_away(accounts: Accounts) -> None:
    assert (await accounts.create("alice", budgets=Budgets(day=1))).budgets == Budgets(day=1)
    every = Budgets(1, 10**15, 3, 4, 5)
    assert (await accounts.change("alice", budgets=every)).budgets == every
    assert (await accounts.change("alice", group="trial")).budgets == every
    assert (await accounts.change("alice", budgets=NO_BUDGETS)).budgets == NO_BUDGETS
    assert (await accounts.create("bobby")).budgets == NO_BUDGETS


async def test_an_account_of_before_budgets_has_none(accounts: Accounts, client: Client) -> None:
    await accounts.create("alice")
    assert await client.call("HEXISTS", "gw:{alice}:account", "budgets") == 0
    account = await accounts.get("alice")
    assert account is not None
    assert account.budgets == NO_BUDGETS
    assert (await accounts.change("alice", budgets=Budgets(total=7))).budgets == Budgets(total=7)


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


async def test_a_suspended_account_is_resumed_and_a_closed_one_is_not(accounts: Accounts) -> None:
    await accounts.create("alice")
    assert (await accounts.set_status("alice", AccountStatus.SUSPENDED)).status is AccountStatus.SUSPENDED
    assert (await accounts.set_status("alice", AccountStatus.ACTIVE)).status is AccountStatus.ACTIVE
    assert (await accounts.set_status("alice", AccountStatus.CLOSED)).status is AccountStatus.CLOSED
    for attempt in (accounts.set_status("alice", AccountStatus.ACTIVE), accounts.change("alice", group="trial")):
        with pytest.raises(AccountError, match="closed for good"):
            await attempt
    with pytest.raises(AccountError, match="exists"):
        await accounts.create("alice")


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
