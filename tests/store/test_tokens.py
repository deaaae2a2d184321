"""Tokens and peppers: a text is returned once, only its digest is stored, and a revoked token is refused."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from string import ascii_letters, digits
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.base.errors import StoreAway
from gateway.domain.facts import NO_BUDGETS, NO_LIMITS, AccountLimits, Budgets
from gateway.store import tokens as token_rotation
from gateway.store.accounts import Accounts, AccountStatus, Profile
from gateway.store.client.client import Client
from gateway.store.client.steps import STOPPED, run_steps
from gateway.store.money.wallet import Wallet
from gateway.store.revocations import DELETED, DISABLED, EXPIRED, INACTIVE, Revocations
from gateway.store.token_format import TokenCodec
from gateway.store.tokens import (
    HOUR_S,
    Authenticated,
    Token,
    TokenError,
    TokenRecord,
    TokenRefused,
    Tokens,
    TokenStatus,
    decode,
    encode,
    token_of,
)
from tests.patience import wait_until
from tests.store.conftest import Pepper

# A token's text is returned once, only its digest is stored, and it is refused once disabled, expired or deleted.
PEPPER = b"a pepper of some length"


@pytest.fixture
async def accounts(client: Client) -> Accounts:
    accounts = Accounts(client)
    await accounts.create("alice")
    await accounts.create("bob")
    return accounts


@pytest.fixture
def tokens(client: Client, accounts: Accounts) -> Tokens:
    return Tokens(client, Pepper(PEPPER))


async def code_of(tokens: Tokens, text: str) -> str:
    with pytest.raises(TokenRefused) as refused:
        await tokens.authenticate(text)
    assert refused.value.status == 401
    assert text not in refused.value.message
    return refused.value.code


async def calls(client: Client) -> int:
    """Return the number of commands that the store has processed."""
    return int((await client.call("INFO", "stats"))["total_commands_processed"])


async def test_a_token_authenticates_its_account_with_its_restrictions(tokens: Tokens, accounts: Accounts) -> None:
    later = int(time.time()) + 60
    created = await tokens.create(
        "alice", name="laptop", expires_at=later, models=["a", "b-*"], addresses=["10.1.2.3/8", "::1"]
    )
    known = await tokens.authenticate(created.token)
    account = await accounts.get("alice")
    assert account is not None
    assert (known.account.id, known.account.group, known.account.limits) == ("alice", account.group, account.limits)
    assert known.token == (await tokens.all_of("alice"))[0] == await tokens.get(created.id)
    assert (known.token.id, known.token.name, known.token.expires_at) == (created.id, "laptop", later)
    assert (known.token.models, known.token.addresses) == (("a", "b-*"), ("10.0.0.0/8", "::1/128"))
    assert created.token.startswith(f"sk-{created.id}-")
    assert later - 60 <= known.token.created_at <= time.time() + 1


async def test_it_costs_two_reads_and_nothing_else(tokens: Tokens, client: Client) -> None:
    created = await tokens.create("alice")
    before = await calls(client)
    await tokens.authenticate(created.token)
    assert await calls(client) - before == 2 + 1


async def test_a_text_that_is_no_token_is_refused_without_the_store(tokens: Tokens, tmp_path: Path) -> None:
    created = await tokens.create("alice")
    away = Client.connect(f"unix://{tmp_path}/nothing")
    without_store = Tokens(away, Pepper(PEPPER))
    _, of_another_gateway = TokenCodec(b"another pepper of some length").make("alice")
    for text in ("sk-alice-", created.token[:-1], created.token + "a", created.token.upper(), of_another_gateway):
        assert await code_of(without_store, text) == "token_invalid"
    await away.close()


async def touch(tokens: Tokens, client: Client, known: Authenticated) -> None:
    step = tokens.touch_step(known)
    if step is not None:
        ((_, swapped),) = await run_steps(client, [step])
        assert step.read is not None
        reading = step.read(swapped)
        assert reading is not None
        await reading


async def test_a_change_that_races_with_a_deletion_never_brings_a_token_back(tokens: Tokens, client: Client) -> None:
    for _ in range(50):
        created = await tokens.create("bob")
        known = await tokens.authenticate(created.token)
        results = await asyncio.gather(
            tokens.set_status(created.id, TokenStatus.DISABLED),
            touch(tokens, client, known),
            tokens.delete(created.id),
            tokens.set_status(created.id, TokenStatus.ACTIVE),
            return_exceptions=True,
        )
        assert not isinstance(results[2], BaseException)
        assert await tokens.all_of("bob") == []


async def test_use_is_recorded_once_an_hour(tokens: Tokens, client: Client) -> None:
    created, began = await tokens.create("alice"), int(time.time())
    known = await tokens.authenticate(created.token)
    assert known.token.last_used is None
    await touch(tokens, client, known)
    used = (await tokens.authenticate(created.token)).token.last_used
    assert used is not None
    assert used % HOUR_S == 0
    assert began - began % HOUR_S <= used <= time.time()
    before = await calls(client)
    await touch(tokens, client, await tokens.authenticate(created.token))
    assert await calls(client) - before == 2 + 1
    assert await guard(tokens, client, created.token) is None, "it is known of the token that is remembered"


async def test_recording_use_does_not_undo_an_earlier_change(tokens: Tokens, client: Client) -> None:
    created = await tokens.create("alice")
    known = await tokens.authenticate(created.token)
    await tokens.set_status(created.id, TokenStatus.DISABLED)
    await touch(tokens, client, known)
    assert (await tokens.get(created.id)).status is TokenStatus.DISABLED


async def guard(tokens: Tokens, client: Client, text: str) -> Authenticated | TokenRefused | None:
    """Return what a guard says of a token that is known; None where nothing has changed."""
    known = tokens.known(text)
    assert known is not None
    ((status, value),) = await run_steps(client, [tokens.guard(known).step("")])
    assert (value != 1) is (status == STOPPED)
    return None if value == 1 else tokens.now(known, value)


async def test_a_known_token_is_confirmed_by_one_call(tokens: Tokens, client: Client) -> None:
    created = await tokens.create("alice")
    assert tokens.known(created.token) is None
    read = await tokens.authenticate(created.token)
    assert tokens.known(created.token) is read
    assert await guard(tokens, client, created.token) is None
    assert tokens.known(created.token) is read


CHANGES: dict[str, Callable[[Tokens, Accounts, str], Awaitable[object]]] = {
    "disabled": lambda tokens, _, token_id: tokens.set_status(token_id, TokenStatus.DISABLED),
    "deleted": lambda tokens, _, token_id: tokens.delete(token_id),
    "suspended": lambda _, accounts, token_id: accounts.change("alice", status=AccountStatus.SUSPENDED),
    "moved": lambda _, accounts, token_id: accounts.change("alice", group="vip"),
    "restricted": lambda _, accounts, token_id: accounts.change("alice", models=["small"]),
    "limited": lambda _, accounts, token_id: accounts.change("alice", limits=AccountLimits(concurrent=1)),
    "budgeted": lambda _, accounts, token_id: accounts.change("alice", budgets=Budgets(day=1)),
    "budgeted itself": lambda tokens, _, token_id: tokens.change(token_id, budgets={"day": 1}),
    "limited itself": lambda tokens, _, token_id: tokens.change(token_id, limits={"concurrent": 1}),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_every_change_of_a_known_token_or_its_account_is_found(
    tokens: Tokens, client: Client, change: str
) -> None:
    created, accounts = await tokens.create("alice"), Accounts(client)
    await tokens.authenticate(created.token)
    await CHANGES[change](tokens, accounts, created.id)
    now = await guard(tokens, client, created.token)
    if change in ("disabled", "deleted"):
        assert isinstance(now, TokenRefused)
        assert tokens.known(created.token) is None
    else:
        assert isinstance(now, Authenticated)
        changed = await accounts.get("alice")
        assert changed is not None
        assert now.account == Profile(*(getattr(changed, field) for field in Profile.__struct_fields__))
        assert await guard(tokens, client, created.token) is None


async def test_budgets_that_are_taken_away_are_found(tokens: Tokens, client: Client) -> None:
    created, accounts = await tokens.create("alice"), Accounts(client)
    await accounts.change("alice", budgets=Budgets(day=1))
    await tokens.authenticate(created.token)
    await accounts.change("alice", budgets=NO_BUDGETS)
    now = await guard(tokens, client, created.token)
    assert isinstance(now, Authenticated)
    assert now.account.budgets == NO_BUDGETS
    await client.call("HDEL", "gw:{alice}:account", "budgets")
    assert await guard(tokens, client, created.token) is None


async def test_an_allowance_is_changed_field_by_field_and_survives_other_changes(
    tokens: Tokens, client: Client
) -> None:
    created = await tokens.create("alice", budgets=Budgets(day=1, total=5), limits=AccountLimits(concurrent=2))
    await tokens.change(created.id, budgets={"day": None, "month": 7}, limits={"requests_per_minute": 3})
    await tokens.set_status(created.id, TokenStatus.DISABLED)
    await tokens.set_status(created.id, TokenStatus.ACTIVE)
    await touch(tokens, client, await tokens.authenticate(created.token))
    known = (await tokens.authenticate(created.token)).token
    assert (known.budgets, known.limits) == (Budgets(month=7, total=5), AccountLimits(3, None, 2))
    assert known == await tokens.get(created.id)
    with pytest.raises(ValueError, match="the budget day must be from 1"):
        await tokens.change(created.id, budgets={"day": -1})


async def test_a_change_of_the_balance_or_of_another_token_is_none(tokens: Tokens, client: Client) -> None:
    created, other = await tokens.create("alice"), await tokens.create("alice")
    await tokens.authenticate(created.token)
    await Wallet(client).credit("alice", "top-up", 5)
    await tokens.delete(other.id)
    assert await guard(tokens, client, created.token) is None


async def test_a_known_token_expires(tokens: Tokens) -> None:
    created = await tokens.create("alice", expires_at=int(time.time()) + 1)
    await tokens.authenticate(created.token)
    await wait_until(lambda: tokens.known(created.token) is None)


async def test_the_secret_is_stored_and_shown_nowhere(tokens: Tokens, client: Client) -> None:
    created = await tokens.create("alice")
    known = await tokens.authenticate(created.token)
    secret = created.token.rpartition("-")[2]
    kept = repr(await client.call("HGETALL", "gw:{alice}:tokens"))
    for text in (kept, repr(created), repr(known), str(created), repr(known.token)):
        assert all(secret[start : start + 8] not in text for start in range(len(secret) - 7))


async def test_a_whole_token_given_for_its_id_is_not_repeated(tokens: Tokens) -> None:
    created = await tokens.create("alice")
    for attempt in (tokens.get, tokens.delete, lambda text: tokens.set_status(text, TokenStatus.DISABLED)):
        with pytest.raises(TokenError) as refused:
            await attempt(created.token)
        assert created.token[-28:] not in str(refused.value)


async def test_a_token_needs_an_open_account(tokens: Tokens, accounts: Accounts) -> None:
    await accounts.change("bob", status=AccountStatus.CLOSED)
    for account in ("bob", "nobody"):
        with pytest.raises(TokenError, match="no open account"):
            await tokens.create(account)
        assert await tokens.all_of(account) == []


async def test_a_cancelled_call_leaves_no_reply_to_the_next(tokens: Tokens) -> None:
    alice, bob = await tokens.create("alice"), await tokens.create("bob")

    async def left(text: str, steps: int) -> None:
        task = asyncio.create_task(tokens.authenticate(text))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    await asyncio.gather(*(left(alice.token, steps) for steps in range(20)))
    known = await asyncio.gather(*(tokens.authenticate(each.token) for each in (alice, bob) * 20))
    assert [each.account.id for each in known] == ["alice", "bob"] * 20


# A token is replaced by one script: both change or neither, and what they may spend is one budget.
DAY_S = 86_400


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
    await Accounts(client).change("alice", status=AccountStatus.CLOSED)
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


# The text of a token contains its ids, and only the pepper's owner can create one.
CODEC = TokenCodec(b"a pepper of some length")
ALPHABET = digits + ascii_letters + "-"


def test_a_created_text_is_read() -> None:
    short_id, text = CODEC.make("alice")
    assert re.fullmatch(r"sk-alice-[a-z0-9]{8}-[A-Za-z0-9]{28}", text)
    assert CODEC.read(text) == ("alice", short_id)


def test_no_two_texts_are_equal() -> None:
    texts = [CODEC.make("alice")[1] for _ in range(1000)]
    assert len(set(texts)) == len({text[:-28] for text in texts}) == len({text[-28:] for text in texts}) == 1000


def test_one_wrong_character_anywhere_is_detected() -> None:
    _, text = CODEC.make("alice")
    for place in range(len(text)):
        for character in ALPHABET:
            if character != text[place]:
                assert CODEC.read(text[:place] + character + text[place + 1 :]) is None


def test_a_shorter_or_longer_text_is_detected() -> None:
    _, text = CODEC.make("alice")
    assert all(CODEC.read(text[:length]) is None for length in range(len(text)))
    assert all(CODEC.read(grown) is None for grown in (text + "a", " " + text, text + "\n", text * 2))


@given(st.text())
def test_any_other_text_is_none(text: str) -> None:
    assert CODEC.read(text) is None
    assert CODEC.read(f"sk-alice-{text}") is None


# Records of tokens are read as they were written, and those of tokens without budgets and limits are as short as ever.
"""A record without the fields `budgets` and `limits`."""


@pytest.mark.parametrize("budgets", [NO_BUDGETS, Budgets(day=1), Budgets(1, 2, 3, 4, 5)])
@pytest.mark.parametrize("limits", [NO_LIMITS, AccountLimits(concurrent=1), AccountLimits(1, 2, 3)])
def test_what_was_written_is_read(budgets: Budgets, limits: AccountLimits) -> None:
    token = Token(id="alice-1a2b3c4d", created_at=1, budgets=budgets, limits=limits, addresses=("10.0.0.0/8",))
    record = TokenRecord(b"\x00\xff", token)
    assert decode(encode(record)) == record
    assert token_of(encode(record)) == token
    changed = record.replaced(status=TokenStatus.DISABLED).token
    assert (changed.status, changed.budgets, changed.limits) == (TokenStatus.DISABLED, budgets, limits)


# A revoked token is announced by what revokes it, and is found by reading; what only touches it announces nothing.
async def test_what_revokes_no_token_is_not_announced(client: Client, accounts: Accounts, tokens: Tokens) -> None:
    revocations = Revocations(client)
    seen, _ = await revocations.announced("")
    token = await tokens.create("alice")
    await touch(tokens, client, await tokens.authenticate(token.token))
    assert (await tokens.get(token.id)).last_used is not None
    await accounts.change("alice", group="trial", limits=AccountLimits(concurrent=3))
    assert (await revocations.announced(seen))[1] == []
    await tokens.delete(token.id)
    await accounts.change("bob", status=AccountStatus.SUSPENDED)
    seen, found = await revocations.announced(seen)
    assert found == ["alice", "bob"]
    await accounts.change("bob", status=AccountStatus.ACTIVE)
    assert await revocations.announced(seen) == (seen, []) == await revocations.announced("")


async def test_revoked_tokens_are_found(client: Client, accounts: Accounts, tokens: Tokens) -> None:
    await accounts.create("carol")
    good, deleted, disabled = [await tokens.create("alice") for _ in range(3)]
    expired = await tokens.create("alice", expires_at=int(time.time()))
    later = await tokens.create("bob", expires_at=int(time.time()) + 1000)
    inactive = [await tokens.create("carol") for _ in range(2)]
    await tokens.delete(deleted.id)
    await tokens.set_status(disabled.id, TokenStatus.DISABLED)
    await accounts.change("carol", status=AccountStatus.SUSPENDED)
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
