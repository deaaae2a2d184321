"""The wallet: holds, extensions and settlements are done once, and sent as steps."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from gateway.base.errors import StoreAway, StoreError
from gateway.store.client.client import Client, Script
from gateway.store.client.durability import Masters
from gateway.store.client.steps import RAN, STOPPED, Step, run_steps
from gateway.store.money.wallet import Credit, Hold, HoldReply, Settle, Settled, Settlement, Wallet
from tests.patience import PATIENCE_S, timed
from tests.store.conftest import (
    ACCOUNT,
    KEY,
    StartStore,
    balance_and_held,
    new_request_id,
    numbers,
    open_account,
    overdue,
    take,
    wallet_of_then,
)
from tests.store_proxy import Fault, StoreProxy

DAY_S = 24 * 3600


class TestHold:
    async def test_reserves_the_amount_of_the_available_balance(self, wallet: Wallet) -> None:
        reply = await take(wallet, new_request_id(), 30)
        assert (reply.outcome, reply.balance, reply.held) == (Hold.HELD, 100, 30)

    async def test_repeated_takes_nothing_more(self, wallet: Wallet) -> None:
        request_id = new_request_id()
        await take(wallet, request_id, 30)
        reply = await take(wallet, request_id, 30)
        assert (reply.outcome, reply.held) == (Hold.HELD, 30)

    async def test_all_that_is_available_can_be_held_and_not_a_micro_more(self, wallet: Wallet) -> None:
        assert (await take(wallet, new_request_id(), 101)).outcome is Hold.FUNDS
        assert (await take(wallet, new_request_id(), 100)).outcome is Hold.HELD
        assert (await take(wallet, new_request_id(), 1)).outcome is Hold.FUNDS

    async def test_a_credit_line_adds_to_what_is_available(self, client: Client, wallet: Wallet) -> None:
        await client.call("HSET", KEY + "account", "credit_line", 50)
        assert (await take(wallet, new_request_id(), 150)).outcome is Hold.HELD

    async def test_no_more_holds_than_allowed(self, wallet: Wallet) -> None:
        await take(wallet, new_request_id(), max_holds=1)
        assert (await take(wallet, new_request_id(), max_holds=1)).outcome is Hold.BUSY

    async def test_the_same_id_for_another_request_is_a_conflict(self, wallet: Wallet) -> None:
        request_id = new_request_id()
        await take(wallet, request_id)
        assert (await take(wallet, request_id, fingerprint="beef")).outcome is Hold.CONFLICT

    async def test_a_resolved_request_is_done(self, wallet: Wallet) -> None:
        request_id = new_request_id()
        await take(wallet, request_id)
        await wallet.settle(ACCOUNT, request_id, 5)
        assert (await take(wallet, request_id)).outcome is Hold.DONE

    async def test_a_request_released_before_its_hold_arrives_is_done(self, wallet: Wallet) -> None:
        request_id = new_request_id()
        await wallet.release(ACCOUNT, request_id)
        assert (await take(wallet, request_id)).outcome is Hold.DONE

    @pytest.mark.parametrize("status", ["suspended", "closed"])
    async def test_an_account_that_is_not_active_is_refused(self, client: Client, wallet: Wallet, status: str) -> None:
        await client.call("HSET", KEY + "account", "status", status)
        assert (await take(wallet, new_request_id())).outcome is Hold.INACTIVE

    async def test_an_unknown_account_is_refused_and_not_created(self, client: Client) -> None:
        assert (await take(Wallet(client), new_request_id())).outcome is Hold.NO_ACCOUNT
        assert await client.call("DBSIZE") == 0

    @pytest.mark.parametrize("age_s", [301, -301])
    async def test_an_id_too_far_from_the_stores_time_is_refused(self, wallet: Wallet, age_s: int) -> None:
        assert (await take(wallet, new_request_id(age_s))).outcome is Hold.SKEW

    async def test_ends_overdue_holds_first(self, client: Client, wallet: Wallet) -> None:
        dead = new_request_id()
        await take(wallet, dead, 100)
        await overdue(client, dead)
        assert (await take(wallet, new_request_id(), 100)).outcome is Hold.HELD
        assert (await take(wallet, dead, 100)).outcome is Hold.DONE

    async def test_ends_its_own_overdue_hold_behind_many_others(self, client: Client, wallet: Wallet) -> None:
        request_ids = [new_request_id() for _ in range(40)]
        for request_id in request_ids:
            await take(wallet, request_id, 1)
        for request_id in request_ids:
            await overdue(client, request_id)
        reply = await take(wallet, max(request_ids), 1)
        assert (reply.outcome, reply.held, len(reply.expired)) == (Hold.DONE, 40 - 17, 17)
        assert await balance_and_held(client) == (100, 40 - 17)

    async def test_one_that_cannot_be_read_among_overdue_holds_changes_nothing(
        self, client: Client, wallet: Wallet
    ) -> None:
        request_ids = [new_request_id() for _ in range(2)]
        for request_id in request_ids:
            await take(wallet, request_id, floor=3)
        for request_id in request_ids:
            await overdue(client, request_id)
        terms = await client.call("HGET", KEY + "wallet", max(request_ids))
        await client.call("HSET", KEY + "wallet", max(request_ids), "unreadable")
        with pytest.raises(StoreError, match="a hold is not readable"):
            await take(wallet, new_request_id())
        await client.call("HSET", KEY + "wallet", max(request_ids), terms)
        assert await balance_and_held(client) == (100, 20)
        assert len(await wallet.sweep(ACCOUNT)) == 2
        assert await wallet.verify(ACCOUNT) == []

    async def test_returns_the_holds_that_it_ended(self, client: Client, wallet: Wallet) -> None:
        dead, own = new_request_id(), new_request_id()
        await take(wallet, dead, floor=3)
        await take(wallet, own)
        await overdue(client, dead)
        await overdue(client, own)
        reply = await take(wallet, own)
        assert (reply.outcome, set(reply.expired)) == (Hold.DONE, {(dead, 3), (own, 0)})
        assert (await take(wallet, new_request_id())).expired == ()

    async def test_the_only_one_tells_when_a_lease_ends_first(self, client: Client, wallet: Wallet) -> None:
        for lease_ms in (60_000, 120_000):
            request_id = new_request_id()
            await take(wallet, request_id, lease_ms=lease_ms)
            assert (await numbers(client))[3] == await client.call("ZSCORE", KEY + "leases", request_id)
            await wallet.release(ACCOUNT, request_id)

    async def test_amounts_near_the_largest_stay_exact(self, client: Client, wallet: Wallet) -> None:
        largest = 2**53 - 1
        await wallet.credit(ACCOUNT, "large", largest - 100)
        request_id = new_request_id()
        reply = await take(wallet, request_id, largest)
        assert (reply.outcome, reply.held) == (Hold.HELD, largest)
        await wallet.settle(ACCOUNT, request_id, largest - 1)
        assert await balance_and_held(client) == (1, 0)
        assert await wallet.verify(ACCOUNT) == []


class TestSettle:
    async def test_charges_the_cost_and_gives_the_hold_back(self, client: Client, wallet: Wallet) -> None:
        request_id = new_request_id()
        await take(wallet, request_id, 30)
        assert await wallet.settle(ACCOUNT, request_id, 12) == Settled(Settle.OK, 12)
        assert await balance_and_held(client) == (88, 0)

    async def test_repeated_charges_nothing_more(self, client: Client, wallet: Wallet) -> None:
        request_id = new_request_id()
        await take(wallet, request_id, 30)
        await wallet.settle(ACCOUNT, request_id, 12)
        assert await wallet.settle(ACCOUNT, request_id, 12) == Settled(Settle.DONE, 12)
        assert await balance_and_held(client) == (88, 0)

    async def test_a_release_charges_nothing(self, client: Client, wallet: Wallet) -> None:
        request_id = new_request_id()
        await take(wallet, request_id, 30)
        assert await wallet.release(ACCOUNT, request_id) == Settled(Settle.OK, 0)
        assert await balance_and_held(client) == (100, 0)

    @pytest.mark.parametrize(("floor", "cost"), [(0, 12), (5, 12), (20, 12), (5, 0)])
    async def test_after_the_lease_it_is_late_and_the_charge_is_its_cost_in_all(
        self, client: Client, wallet: Wallet, floor: int, cost: int
    ) -> None:
        request_id = new_request_id()
        await take(wallet, request_id, 30, floor=floor)
        await overdue(client, request_id)
        assert await wallet.sweep(ACCOUNT) == [(request_id, floor)]
        assert await balance_and_held(client) == (100 - floor, 0)
        assert await wallet.settle(ACCOUNT, request_id, cost) == Settled(Settle.LATE, cost)
        assert await wallet.settle(ACCOUNT, request_id, cost) == Settled(Settle.DONE, cost)
        assert await balance_and_held(client) == (100 - cost, 0)

    async def test_a_request_whose_hold_was_lost_is_charged_once(self, client: Client, wallet: Wallet) -> None:
        request_id = new_request_id()
        assert await wallet.settle(ACCOUNT, request_id, 12) == Settled(Settle.ORPHAN, 12)
        assert await wallet.settle(ACCOUNT, request_id, 12) == Settled(Settle.DONE, 12)
        assert await balance_and_held(client) == (88, 0)

    @pytest.mark.parametrize("age_s", [DAY_S + 1, -301])
    async def test_a_request_too_old_to_know_is_not_charged_but_found_again(
        self, client: Client, wallet: Wallet, age_s: int
    ) -> None:
        request_id = new_request_id(age_s)
        assert await wallet.settle(ACCOUNT, request_id, 12) == Settled(Settle.STALE, 0)
        assert await balance_and_held(client) == (100, 0)
        assert await wallet.dead_letters(ACCOUNT) == {request_id: 12}

    async def test_an_unknown_account_is_not_created(self, client: Client) -> None:
        assert (await Wallet(client).settle(ACCOUNT, new_request_id(), 1)).outcome is Settle.NO_ACCOUNT
        assert await client.call("DBSIZE") == 0

    async def test_the_memory_of_ended_requests_is_trimmed(self, client: Client) -> None:
        await open_account(client)
        old, request_ids = new_request_id(), [new_request_id() for _ in range(8)]
        await wallet_of_then(client, DAY_S + 601).settle(ACCOUNT, old, 1)
        assert await client.call("HEXISTS", KEY + "wallet", old) == 1
        for request_id in request_ids:
            await Wallet(client).settle(ACCOUNT, request_id, 1)
        known = await client.call("HMGET", KEY + "wallet", old, *request_ids)
        assert known == [None] + [b"1 orphan 1"] * 8

    async def test_an_end_is_remembered_while_any_clock_may_think_the_id_fresh(self, client: Client) -> None:
        await open_account(client)
        still_fresh = new_request_id(DAY_S - 5)
        await wallet_of_then(client, DAY_S + 595).settle(ACCOUNT, still_fresh, 1)
        wallet = Wallet(client)
        assert await wallet.settle(ACCOUNT, still_fresh, 1) == Settled(Settle.DONE, 1)
        for _ in range(8):
            await wallet.settle(ACCOUNT, new_request_id(), 1)
        assert await wallet.settle(ACCOUNT, still_fresh, 1) == Settled(Settle.DONE, 1)

    async def test_every_movement_has_its_line(self, client: Client, wallet: Wallet) -> None:
        held, released, dead = new_request_id(), new_request_id(), new_request_id()
        for request_id in (held, released, dead):
            await take(wallet, request_id, 20, floor=3)
        await wallet.settle(ACCOUNT, held, 7)
        await wallet.release(ACCOUNT, released)
        await overdue(client, dead)
        await wallet.sweep(ACCOUNT)
        await wallet.settle(ACCOUNT, dead, 9)
        await wallet.settle(ACCOUNT, new_request_id(), 4)
        await wallet.adjust(ACCOUNT, "ticket-1", -5, "goodwill, reversed")
        lines = await client.call("XRANGE", KEY + "ledger", "-", "+")
        assert [(line[b"kind"], int(line[b"amount"])) for _, line in lines] == [
            (b"credit", 100),
            (b"settle", -7),
            (b"release", 0),
            (b"expire", -3),
            (b"late", -6),
            (b"orphan", -4),
            (b"adjust", -5),
        ]
        assert lines[-1][1][b"reason"] == b"goodwill, reversed"
        assert await wallet.verify(ACCOUNT) == []


class TestCredit:
    async def test_adds_once_for_each_transaction(self, wallet: Wallet) -> None:
        first = await wallet.credit(ACCOUNT, "t1", 50)
        again = await wallet.credit(ACCOUNT, "t1", 50)
        other = await wallet.credit(ACCOUNT, "t1", 51)
        assert [first.outcome, again.outcome, other.outcome] == [Credit.OK, Credit.DONE, Credit.CONFLICT]
        assert {first.balance, again.balance, other.balance} == {150}

    async def test_an_adjustment_may_take_away(self, wallet: Wallet) -> None:
        assert (await wallet.adjust(ACCOUNT, "t1", -130, "charged twice by hand")).balance == -30

    async def test_an_unknown_account_is_not_created(self, client: Client) -> None:
        assert (await Wallet(client).credit(ACCOUNT, "t1", 1)).outcome is Credit.NO_ACCOUNT
        assert await client.call("DBSIZE") == 0


GOOD = {"amount": 10, "floor": 0, "lease_ms": 1000, "fingerprint": "f00d", "max_holds": 1}


@pytest.mark.parametrize(
    "bad",
    [
        *({"amount": amount} for amount in (-1, 2**53, 10**300, "1e3", "ten")),
        *({"floor": -1}, {"lease_ms": 0}, {"lease_ms": (DAY_S + 1) * 1000}, {"max_holds": 0}),
        *({"fingerprint": text} for text in ("", "two words")),
        *({"rid": text} for text in ("not-a-uuid", "0197a5d0-0000-4000-8000-000000000001")),
    ],
    ids=str,
)
async def test_a_bad_argument_of_a_hold_changes_nothing(client: Client, wallet: Wallet, bad: dict[str, object]) -> None:
    terms = {"rid": new_request_id(), **GOOD, **bad}
    request_id = terms.pop("rid")
    if isinstance(terms["amount"], str):
        terms["floor"] = terms["amount"]
    with pytest.raises(StoreError):
        await wallet.hold(ACCOUNT, request_id, **terms)  # type: ignore[arg-type]
    assert await balance_and_held(client) == (100, 0)
    assert await wallet.verify(ACCOUNT) == []


@pytest.mark.parametrize("cost", [-1, 2**53, "1.5", ""])
async def test_a_bad_cost_changes_nothing(client: Client, wallet: Wallet, cost: int) -> None:
    request_id = new_request_id()
    await take(wallet, request_id)
    with pytest.raises(StoreError):
        await wallet.settle(ACCOUNT, request_id, cost)
    assert await balance_and_held(client) == (100, 10)


@pytest.mark.parametrize(("transaction", "amount"), [("", 1), ("a b", 1), ("t", 0), ("t", -1), ("t", 2**53 - 100)])
async def test_a_bad_credit_changes_nothing(client: Client, wallet: Wallet, transaction: str, amount: int) -> None:
    with pytest.raises(StoreError):
        await wallet.credit(ACCOUNT, transaction, amount)
    assert await balance_and_held(client) == (100, 0)


async def test_a_connection_closed_by_the_store_is_no_error(client: Client, wallet: Wallet, store_url: str) -> None:
    cutter = Client.connect(store_url, timeout_s=PATIENCE_S)
    await cutter.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    request_id = new_request_id()
    assert (await take(wallet, request_id)).outcome is Hold.HELD
    await cutter.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    assert (await wallet.settle(ACCOUNT, request_id, 1)).outcome is Settle.OK
    await cutter.close()


async def test_a_reply_to_another_request_counts_as_no_reply(store_url: str) -> None:
    client = Client.connect(store_url, timeout_s=0.5)
    wallet = Wallet(client, retry_for_s=0.1)
    wallet.scripts["hold"] = Script("hold", 'return {"another", "HELD", 1, 1, 1}')
    wallet.scripts["settle"] = Script("settle", 'return {"another", "OK", 1}')
    with pytest.raises(StoreAway):
        await take(wallet, new_request_id())
    with pytest.raises(StoreAway):
        await wallet.settle(ACCOUNT, new_request_id(), 1)
    await client.close()


@pytest.mark.parametrize("amount", [5, 1])
async def test_a_balance_for_20_requests_admits_20_of_200_at_once(client: Client, amount: int) -> None:
    await open_account(client, 20 * amount)
    wallet = Wallet(client)
    request_ids = [new_request_id() for _ in range(200)]
    replies = await asyncio.gather(*(take(wallet, request_id, amount, max_holds=200) for request_id in request_ids))
    assert Counter(reply.outcome for reply in replies) == {Hold.HELD: 20, Hold.FUNDS: 180}
    held = [request_id for request_id, reply in zip(request_ids, replies, strict=True) if reply.outcome is Hold.HELD]
    await asyncio.gather(*(wallet.settle(ACCOUNT, request_id, amount) for request_id in held for _ in range(3)))
    assert await balance_and_held(client) == (0, 0)
    assert await wallet.verify(ACCOUNT) == []


async def test_cancelled_calls_leave_no_reply_for_others(client: Client, wallet: Wallet) -> None:
    await wallet.credit(ACCOUNT, "more", 10_000)
    request_ids = [new_request_id() for _ in range(300)]
    tasks = []
    for index, request_id in enumerate(request_ids):
        tasks.append(asyncio.create_task(take(wallet, request_id, 1, max_holds=1000)))
        if index % 3 == 2:
            for _ in range(index % 7):
                await asyncio.sleep(0)
            tasks[index - 1].cancel()
    replies = await asyncio.gather(*tasks, return_exceptions=True)
    given_up = [reply for reply in replies if isinstance(reply, asyncio.CancelledError)]
    answered = [reply.outcome for reply in replies if not isinstance(reply, BaseException)]
    assert given_up
    assert answered == [Hold.HELD] * (len(request_ids) - len(given_up))
    settled = await asyncio.gather(*(wallet.settle(ACCOUNT, request_id, 1) for request_id in request_ids))
    assert {item.outcome for item in settled} <= {Settle.OK, Settle.ORPHAN}
    assert await balance_and_held(client) == (10_100 - len(request_ids), 0)


class TestOwnStore:
    async def test_a_frozen_store_is_away_within_600_ms(self, own_store: StartStore) -> None:
        store = own_store()
        client = Client.connect(store.url)
        await open_account(client, 100)
        wallet = Wallet(client, retry_for_s=0.3)
        request_id = new_request_id()
        await take(wallet, new_request_id())
        os.kill(store.pid, signal.SIGSTOP)
        try:
            for call in (take(wallet, request_id), wallet.settle(ACCOUNT, request_id, 1)):
                (error,), seconds = await timed(asyncio.gather(call, return_exceptions=True))
                assert (type(error), seconds < 0.6) == (StoreAway, True)
        finally:
            os.kill(store.pid, signal.SIGCONT)
        assert (await wallet.release(ACCOUNT, request_id)).outcome in (Settle.OK, Settle.ORPHAN, Settle.DONE)
        await client.close()

    async def test_a_settlement_survives_a_restart(self, own_store: StartStore) -> None:
        store = own_store()
        client = Client.connect(store.url)
        await open_account(client, 100)
        wallet = Wallet(client, retry_for_s=PATIENCE_S)
        request_id = new_request_id()
        await take(wallet, request_id)
        store.stop()
        settling = asyncio.create_task(wallet.settle(ACCOUNT, request_id, 4))
        await asyncio.sleep(0.1)
        own_store()
        assert await settling == Settled(Settle.OK, 4)
        await client.close()

    async def test_settlements_that_a_restart_lost_are_repeated(self, own_store: StartStore, tmp_path: Path) -> None:
        store = own_store()
        client = Client.connect(store.url, timeout_s=PATIENCE_S)
        await client.call("CONFIG", "SET", "appendfsync", "always")  # acknowledged writes are in the file
        await open_account(client, 100)
        wallet = Wallet(client)
        masters = Masters(client)
        lost, kept = new_request_id(), new_request_id()
        await take(wallet, kept)
        await take(wallet, lost)
        assert await masters.replay_after_failover(wallet.repeat) == [0]
        await wallet.settle(ACCOUNT, kept, 3)
        (log,) = (tmp_path / "appendonlydir").glob("*.incr.aof")
        size = log.stat().st_size
        await wallet.settle(ACCOUNT, lost, 4)
        os.kill(store.pid, signal.SIGKILL)
        store.stop()
        os.truncate(log, size)
        own_store()
        while True:
            try:
                assert await balance_and_held(client) == (97, 10)
                break
            except StoreAway:
                continue
        assert await masters.replay_after_failover(wallet.repeat) == [2]
        assert await balance_and_held(client) == (93, 0)
        assert await masters.replay_after_failover(wallet.repeat) == [0]
        assert await wallet.verify(ACCOUNT) == []
        await client.close()


class TestVerify:
    async def test_finds_nothing_wrong_with_an_account_in_use(self, client: Client, wallet: Wallet) -> None:
        await take(wallet, new_request_id())
        request_id = new_request_id()
        await take(wallet, request_id)
        await overdue(client, request_id)
        assert await wallet.verify(ACCOUNT) == []

    @pytest.mark.parametrize(
        ("damage", "words"),
        [
            (("HSET", "wallet", "numbers", "101 10 1 0"), "the balance is 0.000101, the ledger adds up to 0.0001"),
            (
                ("HSET", "wallet", "numbers", "100 11 1 0"),
                "the account says it holds 0.000011 in 1 holds, there are 0.00001 in 1",
            ),
            (
                ("HSET", "wallet", "numbers", "100 10 2 0"),
                "the account says it holds 0.00001 in 2 holds, there are 0.00001 in 1",
            ),
            (("DEL", "leases"), "the account says it holds 0.00001 in 1 holds, there are 0.00 in 0"),
            (("HDEL", "wallet", "RID"), "the leases are not those of the holds"),
            (("HSET", "credits", "t9", 5), "credits and ledger differ in transactions t9"),
            (("HSET", "wallet", "RID", "1 settle 5"), "request RID is held although it was resolved"),
            (("XADD", "ledger", "*", "kind", "settle", "id", "RID", "amount", 0), ""),
            (("XADD", "ledger", "*", "kind", "late", "id", "RID", "amount", 0), "request RID was resolved twice"),
            (("XADD", "ledger", "*", "kind", "settle", "id", "RID", "amount", 5), "request RID was given 0.000005"),
        ],
        ids=str,
    )
    async def test_names_what_is_wrong(
        self, client: Client, wallet: Wallet, damage: tuple[str | int, ...], words: str
    ) -> None:
        request_id = new_request_id()
        await take(wallet, request_id, 10)
        command, key, *rest = damage
        await client.call(command, f"{KEY}{key}", *(request_id if part == "RID" else part for part in rest))
        wrong = await wallet.verify(ACCOUNT)
        assert words.replace("RID", request_id) in "\n".join(wrong)
        assert bool(wrong) == bool(words)

    async def test_names_a_request_that_was_charged_twice(self, client: Client, wallet: Wallet) -> None:
        request_id = new_request_id()
        await wallet.settle(ACCOUNT, request_id, 5)
        await client.call("HDEL", KEY + "wallet", request_id)
        await wallet.settle(ACCOUNT, request_id, 5)
        assert await wallet.verify(ACCOUNT) == [f"request {request_id} was resolved twice: orphan after orphan"]

    async def test_audit_returns_the_charge_of_each_request(self, client: Client, wallet: Wallet) -> None:
        charged, dead, late = new_request_id(), new_request_id(), new_request_id(DAY_S + 1)
        await wallet.settle(ACCOUNT, charged, 5)
        await take(wallet, dead, floor=3)
        await overdue(client, dead)
        await wallet.settle(ACCOUNT, late, 7)
        audit = await wallet.audit(ACCOUNT)
        assert {request_id: resolved.charged for request_id, resolved in audit.requests.items()} == {
            charged: 5,
            dead: 3,
        }
        assert (audit.lines, audit.expired, audit.stale, audit.wrong) == (3, [(dead, 3)], {late: 7}, [])

    async def test_reads_a_ledger_of_many_pages(self, client: Client, wallet: Wallet) -> None:
        await asyncio.gather(*(wallet.settle(ACCOUNT, new_request_id(), 1) for _ in range(2500)))
        assert await balance_and_held(client) == (-2400, 0)
        assert await wallet.verify(ACCOUNT) == []


async def test_settlements_are_repeated_after_a_check_of_the_masters_failed(own_store: StartStore) -> None:
    store = own_store()
    client = Client.connect(store.url, timeout_s=1)
    await open_account(client, 100)
    wallet = Wallet(client)
    masters = Masters(client)
    assert await masters.replay_after_failover(wallet.repeat) == [0]
    request_id = new_request_id()
    await wallet.settle(ACCOUNT, request_id, 7)
    assert await masters.replay_after_failover(wallet.repeat) == [0]
    os.kill(store.pid, signal.SIGSTOP)
    with pytest.raises(StoreAway):
        await masters.replay_after_failover(wallet.repeat)
    os.kill(store.pid, signal.SIGCONT)
    async with asyncio.timeout(PATIENCE_S):
        while (
            repeated := (await asyncio.gather(masters.replay_after_failover(wallet.repeat), return_exceptions=True))[0]
        ) != [1]:
            assert isinstance(repeated, StoreAway), "a master may have changed twice meanwhile"
    assert await masters.replay_after_failover(wallet.repeat) == [0]
    assert await wallet.verify(ACCOUNT) == []
    await client.close()


async def test_settlements_are_repeated_to_a_master_that_was_a_replica_meanwhile(own_store: StartStore) -> None:
    client = Client.connect(own_store().url, timeout_s=PATIENCE_S)
    await open_account(client, 100)
    wallet = Wallet(client)
    masters = Masters(client)
    assert await masters.replay_after_failover(wallet.repeat) == [0]
    request_id = new_request_id()
    await wallet.settle(ACCOUNT, request_id, 7)
    for master in (("127.0.0.1", 1), ("NO", "ONE")):
        await client.call("REPLICAOF", *master)
    assert await masters.replay_after_failover(wallet.repeat) == [1], "as a replica it may have lost its latest writes"
    assert await masters.replay_after_failover(wallet.repeat) == [0]
    assert await wallet.verify(ACCOUNT) == []
    await client.close()


# An extension raises a hold to a total: whatever is repeated or lost on the way, it is raised once, and settled as a whole.
MOST = 2**53 - 1


async def extend(wallet: Wallet, request_id: str, amount: int = 50, floor: int = 0) -> HoldReply:
    return await wallet.extend(ACCOUNT, request_id, amount=amount, floor=floor)


@pytest.fixture
async def held(wallet: Wallet) -> str:
    """Return a request that holds 30 of 100."""
    request_id = new_request_id()
    await take(wallet, request_id, 30)
    return request_id


async def test_raises_the_hold_to_the_total(wallet: Wallet, held: str) -> None:
    reply = await extend(wallet, held, 50)
    assert (reply.outcome, reply.balance, reply.held) == (Hold.HELD, 100, 50)


async def test_repeated_takes_nothing_more_and_a_late_one_lowers_nothing(wallet: Wallet, held: str) -> None:
    for total in (50, 50, 70, 50):
        reply = await extend(wallet, held, total)
    assert (reply.outcome, reply.held) == (Hold.HELD, 70)


async def test_needs_the_difference_and_not_a_micro_more(wallet: Wallet, held: str) -> None:
    other = new_request_id()
    await take(wallet, other, 20)
    refused = await extend(wallet, held, 81)
    assert (refused.outcome, refused.held) == (Hold.FUNDS, 50)
    assert (await extend(wallet, held, 80)).outcome is Hold.HELD
    assert await wallet.settle(ACCOUNT, held, 80) == Settled(Settle.OK, 80)


async def test_a_credit_line_adds_to_what_is_available(client: Client, wallet: Wallet, held: str) -> None:
    await client.call("HSET", KEY + "account", "credit_line", 50)
    assert (await extend(wallet, held, 151)).outcome is Hold.FUNDS
    assert (await extend(wallet, held, 150)).outcome is Hold.HELD


async def test_a_settlement_ends_the_whole_hold(client: Client, wallet: Wallet, held: str) -> None:
    await extend(wallet, held, 90)
    assert await wallet.settle(ACCOUNT, held, 45) == Settled(Settle.OK, 45)
    assert await balance_and_held(client) == (55, 0)
    assert await wallet.verify(ACCOUNT) == []


async def test_a_repeated_hold_keeps_what_was_added(client: Client, wallet: Wallet, held: str) -> None:
    await extend(wallet, held, 90)
    assert (await take(wallet, held, 30)).outcome is Hold.HELD
    assert (await take(wallet, held, 30, fingerprint="beef")).outcome is Hold.CONFLICT
    assert await balance_and_held(client) == (100, 90)


async def test_the_lease_stays_and_the_larger_floor_is_charged_at_its_end(client: Client, wallet: Wallet) -> None:
    request_id, lower = new_request_id(), new_request_id()
    for each in (request_id, lower):
        await take(wallet, each, 20, floor=4)
    before = await client.call("ZRANGE", KEY + "leases", 0, -1, "WITHSCORES")
    await extend(wallet, request_id, 40, floor=9)
    await extend(wallet, lower, 40, floor=3)
    assert await client.call("ZRANGE", KEY + "leases", 0, -1, "WITHSCORES") == before
    for each in (request_id, lower):
        await overdue(client, each)
    assert sorted(await wallet.sweep(ACCOUNT)) == [(request_id, 9), (lower, 4)]


async def test_the_floor_is_at_most_the_amount(client: Client, wallet: Wallet, held: str) -> None:
    await extend(wallet, held, 40, floor=60)
    await overdue(client, held)
    assert await wallet.sweep(ACCOUNT) == [(held, 40)]


async def test_a_hold_past_its_lease_is_not_extended(client: Client, wallet: Wallet, held: str) -> None:
    await overdue(client, held)
    for _ in range(2):
        assert (await extend(wallet, held)).outcome is Hold.DONE
        await wallet.sweep(ACCOUNT)
    assert await balance_and_held(client) == (100, 0)


@pytest.mark.parametrize("cost", [0, 12])
async def test_a_resolved_request_is_not_extended(client: Client, wallet: Wallet, held: str, cost: int) -> None:
    await wallet.settle(ACCOUNT, held, cost)
    assert (await extend(wallet, held)).outcome is Hold.DONE
    assert await balance_and_held(client) == (100 - cost, 0)


async def test_a_hold_that_the_store_lost_is_not_taken_again(client: Client, wallet: Wallet) -> None:
    assert (await extend(wallet, new_request_id())).outcome is Hold.LOST
    assert await balance_and_held(client) == (100, 0)


@pytest.mark.parametrize("status", ["suspended", "closed"])
async def test_an_account_that_is_not_active_is_refused(client: Client, wallet: Wallet, held: str, status: str) -> None:
    await client.call("HSET", KEY + "account", "status", status)
    assert (await extend(wallet, held)).outcome is Hold.INACTIVE
    assert await balance_and_held(client) == (100, 30)


async def test_an_unknown_account_is_refused_and_not_created(client: Client) -> None:
    assert (await extend(Wallet(client), new_request_id())).outcome is Hold.NO_ACCOUNT
    assert await client.call("DBSIZE") == 0


@pytest.mark.parametrize("amount", [-1, MOST + 1])
async def test_an_amount_out_of_range_changes_nothing(client: Client, wallet: Wallet, held: str, amount: int) -> None:
    with pytest.raises(StoreError, match="the amount"):
        await extend(wallet, held, amount)
    assert await balance_and_held(client) == (100, 30)


async def test_a_sum_of_holds_beyond_its_range_changes_nothing(client: Client) -> None:
    await open_account(client, MOST, credit_line=MOST)
    wallet, held = Wallet(client), new_request_id()
    await take(wallet, held, 30)
    await take(wallet, new_request_id(), 1)
    with pytest.raises(StoreError, match="the new sum of holds"):
        await extend(wallet, held, MOST)
    assert (await extend(wallet, held, MOST - 1)).outcome is Hold.HELD
    assert await balance_and_held(client) == (MOST, MOST)


@pytest.mark.parametrize("fault", Fault, ids=[fault.name.lower() for fault in Fault])
async def test_with_a_network_fault_it_is_raised_once_or_the_whole_can_be_released(
    client: Client, wallet: Wallet, held: str, store_url: str, fault: Fault
) -> None:
    async with StoreProxy(store_url, delay_s=0.75) as proxy:
        impatient = Client.connect(proxy.url, timeout_s=0.5)
        behind = Wallet(impatient)
        await behind.sweep(ACCOUNT)
        proxy.once(fault)
        (reply,) = await asyncio.gather(extend(behind, held, 50), return_exceptions=True)
        assert isinstance(reply, StoreAway) or reply.outcome is Hold.HELD  # type: ignore[union-attr]
        amounts = (30, 50) if isinstance(reply, StoreAway) else (50,)
        assert (await balance_and_held(client))[1] in amounts
        await impatient.close()
    await wallet.release(ACCOUNT, held)
    assert await balance_and_held(client) == (100, 0)
    assert await wallet.verify(ACCOUNT) == []


# A settlement that is sent as a step stops those after it exactly where another amount than its cost was charged.
TOO_OLD_S = 24 * 3600 + 1
MARK = Script("mark", "redis.call('SET', KEYS[1], ARGV[1]) return 'marked'")
Prepare = Callable[[Client, Wallet, str], Awaitable[object]]


async def wallet_steps_held(_: Client, wallet: Wallet, request_id: str) -> None:
    await take(wallet, request_id, 30, floor=3)


async def settled(_: Client, wallet: Wallet, request_id: str) -> None:
    await take(wallet, request_id, 30)
    await wallet.settle(ACCOUNT, request_id, 12)


async def released(_: Client, wallet: Wallet, request_id: str) -> None:
    await take(wallet, request_id, 30)
    await wallet.release(ACCOUNT, request_id)


async def expired(client: Client, wallet: Wallet, request_id: str) -> None:
    await wallet_steps_held(client, wallet, request_id)
    await overdue(client, request_id)
    await wallet.sweep(ACCOUNT)


async def charged_late(client: Client, wallet: Wallet, request_id: str) -> None:
    await expired(client, wallet, request_id)
    await wallet.settle(ACCOUNT, request_id, 12)


async def unknown(_: Client, wallet: Wallet, request_id: str) -> None:
    pass


async def closed(client: Client, wallet: Wallet, request_id: str) -> None:
    await client.call("DEL", KEY + "account", KEY + "wallet", KEY + "ledger", KEY + "credits")


@pytest.mark.parametrize(
    ("prepare", "age_s", "cost", "result", "status"),
    [
        (wallet_steps_held, 0, 12, Settled(Settle.OK, 12), RAN),
        (wallet_steps_held, 0, 0, Settled(Settle.OK, 0), RAN),
        (settled, 0, 12, Settled(Settle.DONE, 12), RAN),
        (settled, 0, 13, Settled(Settle.DONE, 12), STOPPED),
        (settled, 0, 0, Settled(Settle.DONE, 12), STOPPED),
        (released, 0, 0, Settled(Settle.DONE, 0), RAN),
        (released, 0, 12, Settled(Settle.DONE, 0), STOPPED),
        (expired, 0, 12, Settled(Settle.LATE, 12), RAN),
        (expired, 0, 3, Settled(Settle.LATE, 3), RAN),
        (expired, 0, 0, Settled(Settle.LATE, 0), RAN),
        (charged_late, 0, 12, Settled(Settle.DONE, 12), RAN),
        (charged_late, 0, 3, Settled(Settle.DONE, 12), STOPPED),
        (unknown, 0, 12, Settled(Settle.ORPHAN, 12), RAN),
        (unknown, TOO_OLD_S, 12, Settled(Settle.STALE, 0), STOPPED),
        (unknown, TOO_OLD_S, 0, Settled(Settle.STALE, 0), RAN),
        (closed, 0, 12, Settled(Settle.NO_ACCOUNT, 0), STOPPED),
        (closed, 0, 0, Settled(Settle.NO_ACCOUNT, 0), RAN),
    ],
)
async def test_steps_after_a_settlement_run_only_where_its_cost_was_charged(
    client: Client, wallet: Wallet, prepare: Prepare, age_s: int, cost: int, result: Settled, status: int
) -> None:
    request_id = new_request_id(age_s)
    await prepare(client, wallet, request_id)
    settlement = Settlement(ACCOUNT, request_id, cost, "settle" if cost else "release")
    step = wallet.settling(ACCOUNT).step(request_id, wallet.to_settle(settlement))
    after = Step(MARK, [KEY + "mark"], ["reached"])
    (first, reply), *rest = await run_steps(client, [step, after])
    assert (wallet.settled(settlement, reply), first) == (result, status)
    reached = status == RAN
    assert rest == ([[RAN, b"marked"]] if reached else [])
    assert after.may_have_run is reached
    assert await client.call("GET", KEY + "mark") == (b"reached" if reached else None)


async def test_a_settlement_that_is_refused_changes_nothing_and_stops_those_after_it(client: Client) -> None:
    await open_account(client, 100)
    wallet = Wallet(client)

    steps = [
        wallet.settling(ACCOUNT).step("no-uuid", wallet.to_settle(Settlement(ACCOUNT, "no-uuid", 12))),
        Step(MARK, [KEY + "mark"], ["reached"]),
    ]
    before = await client.call("DUMP", KEY + "wallet")
    assert len(await run_steps(client, steps)) == 1
    assert await client.call("EXISTS", KEY + "mark") == 0
    assert await client.call("DUMP", KEY + "wallet") == before
