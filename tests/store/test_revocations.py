"""A revoked token is announced by what revokes it, and is found by reading; what only touches it announces nothing."""

from __future__ import annotations

import time

import pytest

from gateway.domain.facts import AccountLimits
from gateway.store.accounts import Accounts, AccountStatus
from gateway.store.client.client import Client
from gateway.store.client.steps import run_steps
from gateway.store.revocations import DELETED, DISABLED, EXPIRED, INACTIVE, Revocations
from gateway.store.tokens import Tokens, TokenStatus

PEPPER = b"a pepper of some length"


@pytest.fixture
async def accounts(client: Client) -> Accounts:
    accounts = Accounts(client)
    for name in ("alice", "bob"):
        await accounts.create(name)
    return accounts


@pytest.fixture
def tokens(client: Client, accounts: Accounts) -> Tokens:
    return Tokens(client, lambda: PEPPER)


async def test_what_revokes_a_token_is_announced(client: Client, accounts: Accounts, tokens: Tokens) -> None:
    revocations = Revocations(client)
    seen, _ = await revocations.announced("")

    async def announced() -> list[str]:
        nonlocal seen
        seen, found = await revocations.announced(seen)
        return found

    token = await tokens.create("alice")
    touch = tokens.touch_step(await tokens.authenticate(token.token))
    assert touch is not None
    await run_steps(client, [touch])
    assert (await tokens.get(token.id)).last_used is not None
    await accounts.change("alice", group="trial", limits=AccountLimits(concurrent=3))
    assert await announced() == []
    await tokens.set_status(token.id, TokenStatus.DISABLED)
    assert await announced() == ["alice"]
    await tokens.set_status(token.id, TokenStatus.ACTIVE)
    assert await announced() == []
    await tokens.rotate(token.id, 0)
    assert await announced() == ["alice"]
    await tokens.delete(token.id)
    assert await announced() == ["alice"]
    await accounts.set_status("bob", AccountStatus.SUSPENDED)
    await accounts.set_status("alice", AccountStatus.CLOSED)
    assert await announced() == ["bob", "alice"]
    await accounts.set_status("bob", AccountStatus.ACTIVE)
    assert await announced() == []
    assert await revocations.announced("") == (seen, [])


async def test_revoked_tokens_are_found(client: Client, accounts: Accounts, tokens: Tokens) -> None:
    await accounts.create("carol")
    good, deleted, disabled = [await tokens.create("alice") for _ in range(3)]
    expired = await tokens.create("alice", expires_at=int(time.time()))
    later = await tokens.create("bob", expires_at=int(time.time()) + 1000)
    inactive = [await tokens.create("carol") for _ in range(2)]
    await tokens.delete(deleted.id)
    await tokens.set_status(disabled.id, TokenStatus.DISABLED)
    await accounts.set_status("carol", AccountStatus.SUSPENDED)
    asked = {
        "alice": {good.id, deleted.id, disabled.id, expired.id},
        "bob": {later.id},
        "carol": {token.id for token in inactive},
    }
    revocations = Revocations(client)
    found = {deleted.id: DELETED, disabled.id: DISABLED, expired.id: EXPIRED}
    assert await revocations.find(asked) == found | {token.id: INACTIVE for token in inactive}
    assert await revocations.find({}) == {}


async def test_a_store_that_has_lost_its_data_revokes_nothing(client: Client, tokens: Tokens) -> None:
    token = await tokens.create("alice")
    await client.call("FLUSHALL")
    assert await Revocations(client).find({"alice": {token.id}}) == {}
