"""Callers with a valid token are accepted; the others learn what is wrong, at little cost to the store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest
from multidict import CIMultiDict

from gateway import AccountLimits, Budgets, Caller, Exchange, Refused, Services
from gateway.base.errors import StoreAway
from gateway.config.schema import Config, Group, GroupBudgets, GroupLimits
from gateway.store.accounts import AccountStatus
from gateway.store.client.client import Client
from gateway.store.pepper import PepperSource
from gateway.store.token_format import TokenCodec
from gateway.store.tokens import TokenStatus
from gateway.testing import PATIENT, FixedClock, exchange, run_end, run_request, services, started
from plugins import pacing
from plugins.auth import Auth
from plugins.pacing import REFUSALS_PER_S, PacedRefusals
from tests.patience import PATIENCE_S, wait_until
from tests.place import Place

SETTINGS = Config(groups={"default": Group(), "shut": Group(enabled=False)}, store=PATIENT)


@pytest.fixture
async def given(store_url: str, tmp_path: Path) -> AsyncIterator[Services]:
    async with services(tmp_path, store_url, SETTINGS) as given:
        await given.store.accounts.create("alice")
        yield given


@pytest.fixture
async def auth(given: Services) -> Auth:
    return await started(Auth(), given)


def with_token(token: str, scheme: str = "Bearer", peer: str = "192.0.2.7") -> Exchange:
    return exchange(headers={"Authorization": f"{scheme} {token}"}, peer=peer)


async def refusal(auth: Auth, asked: Exchange) -> Refused:
    with pytest.raises(Refused) as refused:
        await auth.request_step(asked)
    assert Caller not in asked
    return refused.value


async def code(auth: Auth, asked: Exchange) -> tuple[int, str]:
    refused = await refusal(auth, asked)
    return refused.status, refused.code


async def test_a_valid_token_identifies_the_caller(given: Services, auth: Auth) -> None:
    created = await given.store.tokens.create("alice", models=["a"], addresses=["192.0.2.0/24", "2001:db8::/32"])
    await given.store.accounts.change("alice", models=["a", "b"], limits=AccountLimits(concurrent=3))
    for peer in ("192.0.2.7", "::ffff:192.0.2.7", "2001:db8::1"):
        asked = with_token(created.token, peer=peer)
        await run_request(auth, asked, given)
        assert asked[Caller] == Caller(
            account="alice",
            token_id=created.id,
            group="default",
            account_models=("a", "b"),
            token_models=("a",),
            limits=AccountLimits(concurrent=3),
        )
        assert (asked.account, asked.token_id, asked.group) == ("alice", created.id, "default")


async def test_budgets_and_limits_are_the_accounts_own_field_by_field_and_else_its_groups(place: Place) -> None:
    trial = Group(
        budgets=GroupBudgets(day=Decimal("0.5"), month=Decimal(5), requests=100),
        limits=GroupLimits(requests_per_minute=10, concurrent=2),
    )
    settings = Config(groups={"default": Group(), "trial": trial}, store=PATIENT)
    async with services(*place, settings) as given:
        auth = await started(Auth(), given)
        store = given.store
        await store.accounts.create("alice", "trial")
        token = await store.tokens.create("alice", budgets=Budgets(total=7), limits=AccountLimits(tokens_per_minute=9))

        async def caller() -> Caller:
            await run_request(auth, asked := with_token(token.token), given)
            return asked[Caller]

        known = await caller()
        assert known.budgets == Budgets(day=500_000, month=5_000_000, requests=100)
        assert known.limits == AccountLimits(10, None, 2)
        assert (known.token_budgets, known.token_limits) == (Budgets(total=7), AccountLimits(None, 9, None))
        await store.accounts.change("alice", budgets=Budgets(day=3, week=4), limits=AccountLimits(concurrent=5))
        known = await caller()
        assert known.budgets == Budgets(day=3, week=4, month=5_000_000, requests=100)
        assert known.limits == AccountLimits(10, None, 5)
        await store.accounts.change("alice", group="default")
        known = await caller()
        assert (known.budgets, known.limits) == (Budgets(day=3, week=4), AccountLimits(concurrent=5))
        await store.tokens.change(token.id, budgets={"total": None}, limits={"tokens_per_minute": None})
        known = await caller()
        assert (known.token_budgets, known.token_limits) == (Budgets(), AccountLimits())


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "Bearer "])
async def test_the_scheme_is_read_in_any_case(given: Services, auth: Auth, scheme: str) -> None:
    asked = with_token((await given.store.tokens.create("alice")).token, scheme)
    await run_request(auth, asked, given)
    assert asked[Caller].account == "alice"


async def test_headers_may_be_a_plain_mapping(given: Services, auth: Auth) -> None:
    asked = exchange()
    token = (await given.store.tokens.create("alice")).token
    asked.request = msgspec.structs.replace(asked.request, headers={"Authorization": f"Bearer {token}"})
    await run_request(auth, asked, given)
    assert asked[Caller].account == "alice"


@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": ""}, {"Authorization": "Bearer"}, {"Authorization": "bearer  "}]
)
async def test_a_request_without_a_token_learns_how_to_send_one(auth: Auth, headers: dict[str, str]) -> None:
    refused = await refusal(auth, exchange(headers=headers))
    assert (refused.status, refused.code) == (401, "token_missing")
    assert "Authorization: Bearer" in refused.message


async def test_unknown_wrong_and_malformed_tokens_get_one_answer(given: Services, auth: Auth, tmp_path: Path) -> None:
    token = (await given.store.tokens.create("alice")).token
    asked = [
        with_token(token + "\xff"),
        with_token("\udcff" + token),
        with_token(token + "x" * 600),
        with_token(token[:-1]),
        with_token(f"{token} {token}"),
        with_token(TokenCodec(PepperSource(tmp_path)()).make("alice")[1]),
        with_token(TokenCodec(PepperSource(tmp_path)()).make("nobody")[1]),
    ]
    answers = [await refusal(auth, each) for each in asked]
    assert {(each.status, each.code, each.message) for each in answers} == {(401, "token_invalid", answers[0].message)}
    assert all(each.account == each.token_id == "" for each in asked)


async def test_a_header_that_is_not_bearer_and_a_token_is_told_so(given: Services, auth: Auth) -> None:
    token = (await given.store.tokens.create("alice")).token
    twice = exchange()
    twice.request = msgspec.structs.replace(
        twice.request, headers=CIMultiDict([("authorization", f"Bearer {token}"), ("Authorization", f"Bearer {token}")])
    )
    cases = {
        "does not begin with `Bearer `": [
            exchange(headers={"Authorization": token}),
            exchange(headers={"Authorization": "sk-no-token-at-all"}),
            with_token(token, "Basic"),
            with_token(token, "Token"),
            with_token(token, "Bearer:"),
        ],
        "has `Bearer` twice": [with_token(f"Bearer {token}"), with_token(f" bearer {token}")],
        "was sent more than once": [twice],
    }
    for fault, asked in cases.items():
        for each in asked:
            refused = await refusal(auth, each)
            assert (refused.status, refused.code) == (401, "token_invalid")
            assert f"`Authorization` {fault}. " in refused.message
            assert "`Authorization: Bearer YOUR_TOKEN`" in refused.message
            assert token not in refused.message
            assert "sk-no" not in refused.message
            assert each.account == each.token_id == "", "whatever the token is"


async def test_expired_disabled_and_deleted_tokens_have_their_own_errors_and_are_recorded(
    given: Services, auth: Auth
) -> None:
    tokens = given.store.tokens
    created = await tokens.create("alice")
    expired = await tokens.create("alice", expires_at=int(time.time()))
    await tokens.set_status(created.id, TokenStatus.DISABLED)
    for each, what in ((created, "token_disabled"), (expired, "token_expired")):
        asked = with_token(each.token)
        assert await code(auth, asked) == (401, what)
        assert (asked.account, asked.token_id) == ("alice", each.id)
        await tokens.delete(each.id)
        assert await code(auth, with_token(each.token)) == (401, "token_invalid")


@pytest.mark.parametrize("status", [AccountStatus.SUSPENDED, AccountStatus.CLOSED])
async def test_an_account_that_is_not_active_is_refused(given: Services, auth: Auth, status: AccountStatus) -> None:
    created = await given.store.tokens.create("alice")
    await given.store.accounts.change("alice", status=status)
    refused = await refusal(auth, with_token(created.token))
    assert (refused.status, refused.code) == (403, "account_inactive")
    assert status in refused.message


@pytest.mark.parametrize("group", ["shut", "unknown"])
async def test_a_group_that_is_disabled_or_unknown_is_refused(given: Services, auth: Auth, group: str) -> None:
    created = await given.store.tokens.create("alice")
    await given.store.accounts.change("alice", group=group)
    assert await code(auth, with_token(created.token)) == (403, "group_forbidden")


@pytest.mark.parametrize("peer", ["192.0.3.7", "2001:db9::1", "", "not an address", "::ffff:192.0.3.7"])
async def test_a_token_is_refused_outside_its_addresses(given: Services, auth: Auth, peer: str) -> None:
    created = await given.store.tokens.create("alice", addresses=["192.0.2.0/24", "2001:db8::/32"])
    assert await code(auth, with_token(created.token, peer=peer)) == (403, "token_restricted")


async def test_the_body_is_not_read(given: Services, auth: Auth) -> None:
    created = await given.store.tokens.create("alice")
    asked = exchange(b"no json at all", headers={"Authorization": f"Bearer {created.token}"})
    await run_request(auth, asked, given)
    assert asked[Caller].account == "alice"
    assert asked.model == ""


async def test_an_unreachable_store_is_not_a_refusal_of_the_token(tmp_path: Path) -> None:
    async with services(tmp_path, f"unix://{tmp_path}/nothing", SETTINGS) as given:
        auth = await started(Auth(), given)
        with pytest.raises(StoreAway):
            await run_request(auth, with_token(TokenCodec(PepperSource(tmp_path)()).make("alice")[1]), given)
        assert await code(auth, with_token("made-up")) == (401, "token_invalid")


async def test_the_use_of_a_token_is_recorded_at_the_end(given: Services, auth: Auth) -> None:
    created = await given.store.tokens.create("alice")
    asked = with_token(created.token)
    await run_request(auth, asked, given)
    assert (await given.store.tokens.get(created.id)).last_used is None
    await run_end(auth, asked, given)
    assert (await given.store.tokens.get(created.id)).last_used is not None


async def test_the_end_of_a_refused_request_records_no_use(given: Services, auth: Auth) -> None:
    asked = with_token("wrong")
    await refusal(auth, asked)
    await run_end(auth, asked, given)


async def test_a_flood_of_made_up_tokens_costs_no_call_of_the_store(client: Client, auth: Auth) -> None:
    before = (await client.call("INFO", "stats"))["total_commands_processed"]
    await asyncio.gather(*(refusal(auth, with_token(f"sk-alice-abcdefgh-{number:028}")) for number in range(500)))
    assert (await client.call("INFO", "stats"))["total_commands_processed"] == before + 1


async def test_too_many_wrong_tokens_are_limited_and_a_valid_one_is_not(given: Services) -> None:
    auth = await started(Auth(wrong_tokens_per_minute=3), given)
    for _ in range(3):
        assert await code(auth, with_token("wrong")) == (401, "token_invalid")
    refused = await refusal(auth, with_token("wrong"))
    assert (refused.status, refused.code, refused.should_retry) == (429, "rate_limited", False)
    assert refused.retry_after_s == 20
    assert "limit" in refused.message
    assert await code(auth, with_token("wrong", peer="192.0.2.8")) == (401, "token_invalid")
    await run_request(auth, with_token((await given.store.tokens.create("alice")).token), given)
    assert isinstance(given.clock, FixedClock)
    given.clock.move(20)
    assert await code(auth, with_token("wrong")) == (401, "token_invalid")
    assert await code(auth, with_token("wrong")) == (429, "rate_limited")


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}])
async def test_an_address_that_goes_on_is_refused_later_and_a_valid_token_is_not_delayed(
    given: Services, auth: Auth, headers: dict[str, str]
) -> None:
    valid = with_token((await given.store.tokens.create("alice")).token)
    waiting = [asyncio.create_task(refusal(auth, exchange(headers=headers))) for _ in range(REFUSALS_PER_S + 30)]
    await wait_until(lambda: sum(task.done() for task in waiting) >= REFUSALS_PER_S)
    await run_request(auth, valid, given)
    elsewhere = exchange(headers=headers)
    elsewhere.request = msgspec.structs.replace(elsewhere.request, peer="192.0.2.200")
    await refusal(auth, elsewhere)
    assert any(not task.done() for task in waiting)
    assert {(await task).status for task in waiting} <= {401, 429}


async def test_an_account_that_may_not_be_used_is_refused_later(given: Services, auth: Auth) -> None:
    token = (await given.store.tokens.create("alice")).token
    await given.store.accounts.change("alice", status=AccountStatus.SUSPENDED)
    waiting = [asyncio.create_task(refusal(auth, with_token(token))) for _ in range(REFUSALS_PER_S + 30)]
    await wait_until(lambda: sum(task.done() for task in waiting) >= REFUSALS_PER_S)
    assert any(not task.done() for task in waiting)
    await refusal(auth, exchange())
    assert {(await task).code for task in waiting} == {"account_inactive"}


async def test_missing_tokens_are_not_counted_as_wrong(given: Services) -> None:
    auth = await started(Auth(wrong_tokens_per_minute=1), given)
    for _ in range(5):
        assert await code(auth, exchange()) == (401, "token_missing")


async def test_addresses_of_one_ipv6_network_count_as_one(given: Services) -> None:
    auth = await started(Auth(wrong_tokens_per_minute=1), given)
    statuses = [
        await code(auth, with_token("wrong", peer=peer)) for peer in ("2001:db8::1", "2001:db8::2:3", "2001:db8:0:1::1")
    ]
    assert [status for status, _ in statuses] == [401, 429, 401]


def test_a_setting_that_would_refuse_every_request_is_refused() -> None:
    with pytest.raises(ValueError, match="wrong_tokens_per_minute"):
        Auth(wrong_tokens_per_minute=0)


def is_delayed(refusals: PacedRefusals, caller: str) -> bool:
    """Return whether a refusal of the caller waits."""
    waiting = refusals.wait(caller)
    try:
        waiting.send(None)
    except StopIteration:
        return False
    waiting.close()
    return True


async def test_refusals_beyond_a_number_a_second_wait_and_those_of_others_do_not() -> None:
    refusals = PacedRefusals()
    delayed = [is_delayed(refusals, "alice") for _ in range(40)]
    assert delayed[: pacing.REFUSALS_PER_S] == [False] * pacing.REFUSALS_PER_S
    assert all(delayed[-10:])
    assert not is_delayed(refusals, "bob")


async def test_no_refusal_waits_for_long() -> None:
    refusals = PacedRefusals()
    for _ in range(10_000):
        is_delayed(refusals, "alice")
    async with asyncio.timeout(PATIENCE_S):
        await refusals.wait("alice")


async def test_only_so_many_refusals_wait_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing, "MAX_DELAYED", 2)
    refusals = PacedRefusals()
    waiting = [asyncio.create_task(refusals.wait("alice")) for _ in range(30)]
    await asyncio.sleep(0)
    assert sum(not task.done() for task in waiting) == 2
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    assert not is_delayed(refusals, "bob")
