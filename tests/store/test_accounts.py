"""Accounts: created once, changed field by field, found by external id, and stopped by their own failures."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest
from structlog.testing import capture_logs

from gateway.base.errors import Refused, StoreError
from gateway.operations.kept import KeptId
from gateway.store import accounts as directory
from gateway.store import kept_ids
from gateway.store.accounts import CHANGED, Account, AccountError, Accounts, AccountStatus, Directory, account_key
from gateway.store.circuit_breaker import AccountBreaker
from gateway.store.client.client import Client
from gateway.store.external_ids import PREFIX, UNCONFIRMED_S, ExternalIds
from gateway.store.kept_ids import KeptIds
from gateway.store.money.wallet import Wallet
from tests.patience import PATIENCE_S
from tests.store.test_channels import A, C, commands, until, worker


# Accounts are created once, changed field by field, and stay closed once closed.
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
    assert (await accounts.change("alice", status=AccountStatus.SUSPENDED)).balance_micros == 500
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
        accounts.change("nobody", status=AccountStatus.SUSPENDED),
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


# The directory of a process has every account that another process writes, at once; and what left no word of it, before long.
async def seen(found: Directory, after: str = "") -> list[tuple[str, str]]:
    return [(entry.id, entry.status) for entry in await found.entries(after)]


async def test_changes_are_seen_at_once_whatever_was_asked_before(client: Client) -> None:
    accounts, ids, entries = Accounts(client), Directory(client), Directory(client)
    assert (list(await ids.ids()), await seen(entries)) == ([], [])
    for name in ("bob", "dora", "alice"):
        await accounts.create(name)
    assert list(await ids.ids()) == ["alice", "bob", "dora"]
    assert list(await ids.ids("alice")) == list(await ids.ids("b")) == ["bob", "dora"]
    await accounts.change("bob", status=AccountStatus.SUSPENDED)
    await accounts.create("carol")
    expected = [("alice", "active"), ("bob", "suspended"), ("carol", "active"), ("dora", "active")]
    assert await seen(entries) == await seen(ids) == expected
    assert await seen(entries, "bob") == expected[2:]


async def test_after_more_changes_than_it_takes_up_it_is_read_again(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "MOST_CHANGES", 3)
    accounts, found = Accounts(client), Directory(client)
    await accounts.create("alice")
    assert len(await found.ids()) == 1
    for number in range(9):
        await accounts.create(f"more{number}")
    assert len(await found.ids()) == 10
    assert await client.call("XLEN", CHANGED) == 10


async def test_accounts_of_an_earlier_version_are_found_before_long(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    accounts, found = Accounts(client), Directory(client)
    await accounts.create("alice")
    await found.entries()
    await client.call("COPY", account_key("alice"), account_key("robert"))  # no word of it in the stream
    assert list(await found.ids()) == ["alice"]
    monkeypatch.setattr(directory, "RELOAD_S", 0.0)
    await accounts.create("carol")
    later = Directory(client)
    assert list(await later.ids()) == ["alice", "carol", "robert"]
    await client.call("COPY", account_key("alice"), account_key("dave1"))
    async with asyncio.timeout(PATIENCE_S):
        while "dave1" not in await later.ids():
            await asyncio.sleep(0.01)
    assert [name for name, _ in await seen(later)] == ["alice", "carol", "dave1", "robert"]


# External ids: only one account has one, and what a kill between two writes leaves behind does not last.
USER = "user-17"


@pytest.fixture
async def two(client: Client) -> Accounts:
    """Two accounts without external ids."""
    two = Accounts(client)
    await two.create("alice")
    await two.create("robert")
    return two


@pytest.fixture
def ids(client: Client) -> ExternalIds:
    return ExternalIds(client)


async def give(ids: ExternalIds, two: Accounts, account_id: str, external_id: str) -> None:
    async with ids.claimed(account_id, external_id):
        await two.change(account_id, external_id=external_id)


async def test_an_external_id_finds_its_account_until_it_is_taken_away(ids: ExternalIds, two: Accounts) -> None:
    await give(ids, two, "alice", USER)
    await give(ids, two, "alice", USER)
    assert await ids.find(USER) == "alice"
    assert [each.external_id async for each in two.all()].count(USER) == 1
    await give(ids, two, "alice", "ä@example.com")
    assert (await ids.find(USER), await ids.find("ä@example.com")) == (None, "alice")
    await give(ids, two, "robert", USER)
    await give(ids, two, "alice", "")
    assert (await ids.find(USER), await ids.find("ä@example.com"), await ids.find("")) == ("robert", None, None)


async def test_of_many_that_want_it_at_once_one_gets_it(ids: ExternalIds, two: Accounts) -> None:
    names = ["alice", "robert"] * 10
    outcomes = await asyncio.gather(*(give(ids, two, name, USER) for name in names), return_exceptions=True)
    owner = await ids.find(USER)
    assert [each.id async for each in two.all() if each.external_id == USER] == [owner]
    for name, outcome in zip(names, outcomes, strict=True):
        assert isinstance(outcome, AccountError if name != owner else None | AccountError), outcome


async def test_another_account_is_refused_and_nothing_of_it_is_left(ids: ExternalIds, two: Accounts) -> None:
    await give(ids, two, "alice", USER)
    with pytest.raises(AccountError, match="belongs to the account `alice`") as refused:
        await give(ids, two, "robert", USER)
    assert refused.value.kind == "exists"
    async with ids.claimed("carol", "c"):
        await two.create("carol", external_id="c")
    with pytest.raises(AccountError, match="exists already"):
        async with ids.claimed("carol", "d"):
            await two.create("carol", external_id="d")
    await give(ids, two, "robert", "d")
    assert await ids.find("c") == "carol"


async def test_a_closed_account_has_it_until_another_one_takes_it(ids: ExternalIds, two: Accounts) -> None:
    await give(ids, two, "alice", USER)
    closed = await two.change("alice", status=AccountStatus.CLOSED)
    assert await ids.find(USER) == "alice"
    await give(ids, two, "robert", USER)
    assert await ids.find(USER) == "robert"
    assert await ids.check(closed) == ""


async def test_a_claim_whose_command_was_killed_can_be_repeated_at_once_and_taken_later(
    client: Client, ids: ExternalIds, two: Accounts
) -> None:
    await client.call("SET", PREFIX + USER, f"alice {round(time.time() * 1000)}")
    assert await ids.find(USER) is None
    with pytest.raises(AccountError, match="is being given to the account `alice`: try again in a minute"):
        await give(ids, two, "robert", USER)
    assert await ids.sweep() == 0
    await give(ids, two, "alice", USER)
    assert await ids.find(USER) == "alice"
    before = round((time.time() - UNCONFIRMED_S - 1) * 1000)
    await client.call("SET", f"{PREFIX}b", f"alice {before}")
    await give(ids, two, "robert", "b")
    await client.call("SET", f"{PREFIX}c", f"nobody {before}")
    assert await ids.sweep() == 1
    assert sorted([key async for key in client.keys(f"{PREFIX}*")]) == [f"{PREFIX}b", f"{PREFIX}{USER}"]


async def test_a_command_that_was_halted_until_another_account_took_it_leaves_nothing(
    client: Client, ids: ExternalIds, two: Accounts
) -> None:
    with pytest.raises(AccountError, match="changed by others meanwhile"):
        async with ids.claimed("alice", USER):
            await client.call("SET", PREFIX + USER, "alice 1")
            await give(ids, two, "robert", USER)
            await two.change("alice", external_id=USER)
    assert await ids.find(USER) == "robert"
    assert [each.id async for each in two.all() if each.external_id] == ["robert"]


async def test_a_claim_that_the_store_lost_is_restored(client: Client, ids: ExternalIds, two: Accounts) -> None:
    await give(ids, two, "alice", USER)
    await client.call("DEL", PREFIX + USER)
    alice, robert = (
        await two.get("alice"),
        await two.change("robert", external_id=USER),
    )
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


# The circuit breaker for one account: its own failures refuse it, and not others; what it was told is kept.
async def fail(breaker: AccountBreaker, times: int = 1, cool_s: float | None = None) -> float:
    """Let calls of channel `a` fail. Return the wait that is then announced."""
    for _ in range(times):
        assert await breaker.admit([A], "r") is A
        breaker.failed(A, "r", "upstream_error", cool_s)
        breaker.left(A, "r")
    return await breaker.wait_s([A], 0)


async def admitted(breaker: AccountBreaker) -> bool:
    try:
        return await breaker.admit([A], "s") is A
    except Refused:
        return False


async def test_an_account_whose_calls_fail_is_refused_and_no_other(client: Client) -> None:
    async with worker(client) as health, worker(client) as another:
        one, two = AccountBreaker(health, "one"), AccountBreaker(health, "two")
        assert await fail(one, 3, cool_s=100) > 99
        assert not await admitted(one)
        assert await one.admit([A, C], "t") is C
        before = await commands(client)
        assert [await admitted(two) for _ in range(20)] == [True] * 20
        assert await commands(client) - before <= 2 + 20, "only the background task sends commands"
        assert "this account" in await one.why_not(A)
        assert "this account" in await one.why_not_alone(A)
        assert await two.why_not(A) == await two.why_not_alone(A) == ""

        async def known() -> bool:
            return not await admitted(AccountBreaker(another, "one"))

        await until(known)
        assert await admitted(AccountBreaker(another, "two"))
        assert b"one" not in b"".join(await client.call("HKEYS", "gw:{channels}:a:accounts"))


async def test_a_single_failure_refuses_nothing_where_no_other_channel_serves(client: Client) -> None:
    async with worker(client) as health:
        one = AccountBreaker(health, "one")
        assert await fail(one, 1, cool_s=60) == 0
        assert await one.wait_s([A], 7) == 7, "the upstream's own wait is announced"
        assert await admitted(one)
        assert await one.admit([A, C], "t") is C, "another channel is preferred"
        assert "this account" in await one.why_not(A)
        assert await one.why_not_alone(A) == ""


async def test_successes_between_failures_keep_an_account_served(client: Client) -> None:
    async with worker(client) as health:
        one = AccountBreaker(health, "one")
        for _ in range(5):
            await fail(one, 2)
            assert await one.admit([A], "r") is A
            one.answered(A, "r", 0.1)
            one.left(A, "r")
            await health.sync()
        assert await fail(one, 2) == 0


async def test_a_stream_that_breaks_off_is_no_success(client: Client) -> None:
    async with worker(client) as health:
        one = AccountBreaker(health, "one")
        for _ in range(3):
            assert await one.admit([A], "r") is A
            one.answered(A, "r", 0.1)
            one.failed(A, "r", "upstream_truncated", None)
            one.left(A, "r")
        assert await one.wait_s([A], 0) > 0.05


async def test_the_wait_ends_when_the_worker_stops(client: Client) -> None:
    async with worker(client) as health:
        pass
    assert await AccountBreaker(health, "one").wait_s([A], 0) == 0


# Ids of what upstreams keep, in a real store: whose they are, how many, and for how long.
KEPT = KeptId("up", "f" * 12, "words", "resp_1", 30, True)


def named(*names: str) -> dict[str, KeptId]:
    """Return answers with these ids."""
    return {name: msgspec.structs.replace(KEPT, answer=name) for name in names}


async def test_an_id_is_known_to_its_account_alone(client: Client) -> None:
    ids = KeptIds(client)
    await ids.remember("alice", {"resp_1": KEPT, "msg_1": KEPT})
    assert await ids.find("alice", ["resp_1", "resp_2", "msg_1"]) == {"resp_1": KEPT, "msg_1": KEPT}
    for other in ("bob", "alic", "alice}", ""):
        assert await ids.find(other, ["resp_1"]) == {}
    await ids.forget("alice", "resp_1")
    assert await ids.find("alice", ["resp_1", "msg_1"]) == await ids.find("alice", ["msg_1"]) == {}


async def test_the_oldest_are_forgotten_first(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_ids, "MOST", 5)
    ids = KeptIds(client)
    for number in range(9):  # within a millisecond they are in the order of their names
        await ids.remember("alice", named(f"resp_{number}"))
    names = [f"resp_{number}" for number in range(9)]
    assert list(await ids.find("alice", names)) == names[4:]
    assert [await client.call(call, key) for call, key in _counts()] == [5, 5]


async def test_none_is_known_for_longer_than_it_is_kept(client: Client) -> None:
    ids, order = KeptIds(client), "gw:{alice}:kept:order"
    await ids.remember("alice", named("resp_1", "resp_2"))
    seconds, _ = await client.call("TIME")
    for name, ago_s in (("resp_1", kept_ids.KEPT_S + 60), ("resp_2", kept_ids.KEPT_S - 60)):
        await client.call("ZADD", order, (int(seconds) - ago_s) * 1000, name)
    await ids.remember("alice", named("resp_3"))
    assert list(await ids.find("alice", ["resp_1", "resp_2", "resp_3"])) == ["resp_2", "resp_3"]
    for key in ("gw:{alice}:kept", order):
        assert kept_ids.KEPT_S - 60 < await client.call("TTL", key) <= kept_ids.KEPT_S


def _counts() -> list[tuple[str, str]]:
    return [("HLEN", "gw:{alice}:kept"), ("ZCARD", "gw:{alice}:kept:order")]
