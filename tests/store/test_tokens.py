"""A token's text is returned once, only its digest is stored, and it is refused once disabled, expired or deleted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from gateway.domain.facts import NO_BUDGETS, AccountLimits, Budgets
from gateway.store.accounts import Accounts, AccountStatus, Profile
from gateway.store.client.client import Client
from gateway.store.client.steps import STOPPED, run_steps
from gateway.store.money.wallet import Wallet
from gateway.store.token_format import TokenCodec
from gateway.store.tokens import HOUR_S, Authenticated, TokenError, TokenRefused, Tokens, TokenStatus
from tests.patience import wait_until

PEPPER = b"a pepper of some length"


@pytest.fixture
async def accounts(client: Client) -> Accounts:
    accounts = Accounts(client)
    await accounts.create("alice")
    await accounts.create("bob")
    return accounts


@pytest.fixture
def tokens(client: Client, accounts: Accounts) -> Tokens:
    return Tokens(client, lambda: PEPPER)


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


async def test_the_account_is_returned_with_any_status(tokens: Tokens, accounts: Accounts) -> None:
    created = await tokens.create("alice")
    await accounts.set_status("alice", AccountStatus.CLOSED)
    assert (await tokens.authenticate(created.token)).account.status is AccountStatus.CLOSED


async def test_it_costs_two_reads_and_nothing_else(tokens: Tokens, client: Client) -> None:
    created = await tokens.create("alice")
    before = await calls(client)
    await tokens.authenticate(created.token)
    assert await calls(client) - before == 2 + 1


async def test_a_text_that_is_no_token_is_refused_without_the_store(tokens: Tokens, tmp_path: Path) -> None:
    created = await tokens.create("alice")
    away = Client.connect(f"unix://{tmp_path}/nothing")
    without_store = Tokens(away, lambda: PEPPER)
    _, of_another_gateway = TokenCodec(b"another pepper of some length").make("alice")
    for text in ("sk-alice-", created.token[:-1], created.token + "a", created.token.upper(), of_another_gateway):
        assert await code_of(without_store, text) == "token_invalid"
    await away.close()


async def touch(tokens: Tokens, client: Client, known: Authenticated) -> None:
    step = tokens.touch_step(known)
    if step is not None:
        ((_, swapped),) = await run_steps(client, [step])
        assert step.read is not None
        await step.read(swapped)


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
    found: list[Authenticated | TokenRefused] = []

    async def then(now: Authenticated | TokenRefused) -> bool:
        found.append(now)
        return True

    step = tokens.guard_step(known, then)
    ((status, value),) = await run_steps(client, [step])
    assert step.read is not None
    assert await step.read(value) is (status == STOPPED) is bool(found)
    return found[0] if found else None


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
    "suspended": lambda _, accounts, token_id: accounts.set_status("alice", AccountStatus.SUSPENDED),
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


async def test_use_that_is_recorded_is_known(tokens: Tokens, client: Client) -> None:
    created = await tokens.create("alice")
    await touch(tokens, client, await tokens.authenticate(created.token))
    assert await guard(tokens, client, created.token) is None
    known = tokens.known(created.token)
    assert known is not None
    assert tokens.touch_step(known) is None


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
    await accounts.set_status("bob", AccountStatus.CLOSED)
    for account in ("bob", "nobody"):
        with pytest.raises(TokenError, match="no open account"):
            await tokens.create(account)
        assert await tokens.all_of(account) == []


async def test_an_invalid_address_is_refused(tokens: Tokens) -> None:
    with pytest.raises(TokenError, match=r"`10\.0\.0\.0/33` is no address"):
        await tokens.create("alice", addresses=["10.0.0.0/33"])


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
