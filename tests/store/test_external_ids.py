"""External ids: only one account has one, and what a kill between two writes leaves behind does not last."""

from __future__ import annotations

import asyncio
import time

import pytest

from gateway.store.accounts import AccountError, Accounts, AccountStatus
from gateway.store.client.client import Client
from gateway.store.external_ids import PREFIX, UNCONFIRMED_S, ExternalIds

USER = "user-17"


@pytest.fixture
async def accounts(client: Client) -> Accounts:
    """Two accounts without external ids."""
    accounts = Accounts(client)
    await accounts.create("alice")
    await accounts.create("robert")
    return accounts


@pytest.fixture
def ids(client: Client) -> ExternalIds:
    return ExternalIds(client)


async def give(ids: ExternalIds, accounts: Accounts, account_id: str, external_id: str) -> None:
    async with ids.claimed(account_id, external_id):
        await accounts.change(account_id, external_id=external_id)


async def test_an_external_id_finds_its_account_until_it_is_taken_away(ids: ExternalIds, accounts: Accounts) -> None:
    await give(ids, accounts, "alice", USER)
    await give(ids, accounts, "alice", USER)
    assert await ids.find(USER) == "alice"
    assert [each.external_id async for each in accounts.all()].count(USER) == 1
    await give(ids, accounts, "alice", "ä@example.com")
    assert (await ids.find(USER), await ids.find("ä@example.com")) == (None, "alice")
    await give(ids, accounts, "robert", USER)
    await give(ids, accounts, "alice", "")
    assert (await ids.find(USER), await ids.find("ä@example.com"), await ids.find("")) == ("robert", None, None)


async def test_of_many_that_want_it_at_once_one_gets_it(ids: ExternalIds, accounts: Accounts) -> None:
    names = ["alice", "robert"] * 10
    outcomes = await asyncio.gather(*(give(ids, accounts, name, USER) for name in names), return_exceptions=True)
    owner = await ids.find(USER)
    assert [each.id async for each in accounts.all() if each.external_id == USER] == [owner]
    for name, outcome in zip(names, outcomes, strict=True):
        assert isinstance(outcome, AccountError if name != owner else None | AccountError), outcome


async def test_another_account_is_refused_and_nothing_of_it_is_left(ids: ExternalIds, accounts: Accounts) -> None:
    await give(ids, accounts, "alice", USER)
    with pytest.raises(AccountError, match="belongs to the account `alice`") as refused:
        await give(ids, accounts, "robert", USER)
    assert refused.value.kind == "exists"
    async with ids.claimed("carol", "c"):
        await accounts.create("carol", external_id="c")
    with pytest.raises(AccountError, match="exists already"):
        async with ids.claimed("carol", "d"):
            await accounts.create("carol", external_id="d")
    await give(ids, accounts, "robert", "d")
    assert await ids.find("c") == "carol"


async def test_a_closed_account_has_it_until_another_one_takes_it(ids: ExternalIds, accounts: Accounts) -> None:
    await give(ids, accounts, "alice", USER)
    closed = await accounts.set_status("alice", AccountStatus.CLOSED)
    assert await ids.find(USER) == "alice"
    await give(ids, accounts, "robert", USER)
    assert await ids.find(USER) == "robert"
    assert await ids.check(closed) == ""


async def test_a_claim_whose_command_was_killed_can_be_repeated_at_once_and_taken_later(
    client: Client, ids: ExternalIds, accounts: Accounts
) -> None:
    await client.call("SET", PREFIX + USER, f"alice {round(time.time() * 1000)}")
    assert await ids.find(USER) is None
    with pytest.raises(AccountError, match="is being given to the account `alice`: try again in a minute"):
        await give(ids, accounts, "robert", USER)
    assert await ids.sweep() == 0
    await give(ids, accounts, "alice", USER)
    assert await ids.find(USER) == "alice"
    before = round((time.time() - UNCONFIRMED_S - 1) * 1000)
    await client.call("SET", f"{PREFIX}b", f"alice {before}")
    await give(ids, accounts, "robert", "b")
    await client.call("SET", f"{PREFIX}c", f"nobody {before}")
    assert await ids.sweep() == 1
    assert sorted([key async for key in client.keys(f"{PREFIX}*")]) == [f"{PREFIX}b", f"{PREFIX}{USER}"]


async def test_a_command_that_was_halted_until_another_account_took_it_leaves_nothing(
    client: Client, ids: ExternalIds, accounts: Accounts
) -> None:
    with pytest.raises(AccountError, match="changed by others meanwhile"):
        async with ids.claimed("alice", USER):
            await client.call("SET", PREFIX + USER, "alice 1")
            await give(ids, accounts, "robert", USER)
            await accounts.change("alice", external_id=USER)
    assert await ids.find(USER) == "robert"
    assert [each.id async for each in accounts.all() if each.external_id] == ["robert"]


async def test_a_claim_that_the_store_lost_is_restored(client: Client, ids: ExternalIds, accounts: Accounts) -> None:
    await give(ids, accounts, "alice", USER)
    await client.call("DEL", PREFIX + USER)
    alice, robert = await accounts.get("alice"), await accounts.change("robert", external_id=USER)
    assert alice is not None
    assert await ids.check(alice) == ""
    assert await ids.find(USER) == "alice"
    assert (await ids.check(robert)).startswith("its external id 'user-17' belongs to the account `alice`; give it")


@pytest.mark.parametrize(
    ("external_id", "why"),
    [
        ("x" * 201, "has 1 to 200 bytes; this one has 201"),
        ("ä" * 101, "this one has 202"),
        ("a\nb", "no control characters"),
        ("a\x1b[31m", "no control characters"),
        ("a\u2028b", "no control characters and no line breaks"),
        (" a", "does not begin or end with a space"),
        ("\udcff", "is text in UTF-8"),
    ],
)
async def test_what_cannot_be_one_is_refused(ids: ExternalIds, external_id: str, why: str) -> None:
    with pytest.raises(AccountError, match=why):
        async with ids.claimed("alice", external_id):
            pytest.fail("nothing may be written")
