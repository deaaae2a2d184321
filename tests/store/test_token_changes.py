"""A token is replaced by one script: both change or neither, and what they may spend is one budget."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from gateway.base.errors import StoreAway
from gateway.domain.facts import AccountLimits, Budgets
from gateway.store import tokens as token_rotation
from gateway.store.accounts import Accounts, AccountStatus
from gateway.store.client.client import Client
from gateway.store.tokens import TokenError, TokenRefused, Tokens, TokenStatus

PEPPER = b"a pepper of some length"
DAY_S = 86_400


@pytest.fixture
async def tokens(client: Client) -> Tokens:
    await Accounts(client).create("alice")
    return Tokens(client, lambda: PEPPER)


async def test_the_new_token_has_the_settings_of_the_old_one_which_ends_with_the_overlap(tokens: Tokens) -> None:
    later = int(time.time()) + 30 * DAY_S
    old = await tokens.create(
        "alice",
        name="laptop",
        expires_at=later,
        models=["a"],
        addresses=["10.0.0.0/8"],
        budgets=Budgets(day=5),
        limits=AccountLimits(concurrent=2),
    )
    before = int(time.time())
    new = await tokens.rotate(old.id, DAY_S)
    assert (new.name, new.expires_at, new.models, new.addresses) == ("laptop", later, ("a",), ("10.0.0.0/8",))
    assert (new.budgets, new.limits, new.last_used) == (old.budgets, old.limits, None)
    assert (new.replaces, new.counts_as, new.replaced_by) == (old.id, old.id, "")
    kept = await tokens.get(old.id)
    assert kept.replaced_by == new.id
    assert before + DAY_S <= (kept.expires_at or 0) <= int(time.time()) + DAY_S
    assert (await tokens.authenticate(old.token)).token.id == old.id
    assert (await tokens.authenticate(new.token)).token.id == new.id
    third = await tokens.rotate(new.id, 0, before + 60)
    assert (third.replaces, third.counts_as, third.expires_at) == (new.id, old.id, before + 60)
    with pytest.raises(TokenRefused, match="It was replaced: use the new one") as refused:
        await tokens.authenticate(new.token)
    assert refused.value.code == "token_expired"


async def test_an_overlap_does_not_prolong_a_token(tokens: Tokens) -> None:
    soon = int(time.time()) + 60
    old = await tokens.create("alice", expires_at=soon)
    new = await tokens.rotate(old.id, DAY_S, soon + DAY_S)
    assert ((await tokens.get(old.id)).expires_at, new.expires_at) == (soon, soon + DAY_S)


async def test_what_cannot_be_replaced_says_what_to_do(client: Client, tokens: Tokens) -> None:
    old, disabled, expired, closed = [await tokens.create("alice") for _ in range(2)] + [
        await tokens.create("alice", expires_at=1),
        await tokens.create("alice"),
    ]
    new = await tokens.rotate(old.id, 60)
    await tokens.set_status(disabled.id, TokenStatus.DISABLED)
    refusals = [
        (old.id, f"was replaced by `{new.id}` already: rotate that one"),
        (disabled.id, f"`{disabled.id}` is disabled: enable it first"),
        (expired.id, "`--expires 30d`"),
        ("alice-00000000", "there is no token `alice-00000000`"),
        (old.token, "a token's id is like ACCOUNT-1a2b3c4d"),
    ]
    before = await tokens.all_of("alice")
    for token_id, message in refusals:
        with pytest.raises(TokenError, match=message.replace("(", r"\\(")):
            await tokens.rotate(token_id, 60)
    assert await tokens.all_of("alice") == before
    assert (await tokens.rotate(expired.id, 60, int(time.time()) + 60)).replaces == expired.id
    await Accounts(client).set_status("alice", AccountStatus.CLOSED)
    with pytest.raises(TokenError, match="there is no open account"):
        await tokens.rotate(closed.id, 60)


async def test_of_rotations_at_once_one_succeeds(tokens: Tokens) -> None:
    old = await tokens.create("alice")
    results = await asyncio.gather(*(tokens.rotate(old.id, 60) for _ in range(8)), return_exceptions=True)
    (made,) = [result for result in results if not isinstance(result, BaseException)]
    assert all("already: rotate that one" in str(result) for result in results if isinstance(result, TokenError))
    assert {token.id for token in await tokens.all_of("alice")} == {old.id, made.id}


@pytest.mark.parametrize("lost", ["the reply", "the call"])
async def test_a_rotation_is_made_once_where_a_reply_or_a_call_is_lost(
    client: Client, tokens: Tokens, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    old = await tokens.create("alice")
    run, calls = client.run, 0

    async def losing(script: Any, keys: Any, arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1 and lost == "the call":
            raise StoreAway("lost")
        result = await run(script, keys, arguments)
        if calls == 1:
            raise StoreAway("lost")
        return result

    monkeypatch.setattr(client, "run", losing)
    new = await tokens.rotate(old.id, 60)
    assert (await tokens.authenticate(new.token)).token.id == new.id
    assert {token.id for token in await tokens.all_of("alice")} == {old.id, new.id}
    assert calls == (1 if lost == "the reply" else 2)


async def test_a_store_that_stays_away_leaves_the_token_as_it_was(
    client: Client, tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = await tokens.create("alice")

    async def away(*_: Any) -> Any:
        raise StoreAway("away")

    monkeypatch.setattr(client, "run", away)
    with pytest.raises(StoreAway):
        await tokens.rotate(old.id, 60)
    (kept,) = await tokens.all_of("alice")
    assert (kept.replaced_by, kept.expires_at) == ("", None)
    assert token_rotation._TRIES == 3


async def test_the_sums_of_budgets_go_with_the_last_token_that_counts_in_them(client: Client, tokens: Tokens) -> None:
    old = await tokens.create("alice")
    other = await tokens.create("alice")
    field = f"D{old.id.rpartition('-')[2]}"
    await client.call("HSET", "gw:{alice}:wallet", field, "9999999999999 7")
    new = await tokens.rotate(old.id, 60)
    third = await tokens.rotate(new.id, 60)
    for gone, left in ((old, True), (new, True), (other, True), (third, False)):
        await tokens.delete(gone.id)
        assert bool(await client.call("HEXISTS", "gw:{alice}:wallet", field)) is left
