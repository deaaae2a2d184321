"""Budgets of sessions: each counts by itself, is forgotten an hour after its last request; an account has a thousand at most."""

from __future__ import annotations

import asyncio
import time

from gateway.base.ids import Clock
from gateway.config.schema import SESSION_HEADERS, time_zone
from gateway.domain.budgets import Budget, Calendar
from gateway.domain.facts import Budgets, Caller
from gateway.store.client.client import Client
from gateway.store.money.scripts import Hold, Settle
from gateway.store.money.wallet import Wallet
from tests.store.conftest import ACCOUNT, KEY, new_request_id, overdue, take

SESSIONS = KEY + "sessions"
OF_ACCOUNT = Budgets(session=50, session_requests=2)
OF_TOKEN = Budgets(session=40)


def budgets(session: str, account: Budgets = OF_ACCOUNT, token: Budgets = OF_TOKEN) -> tuple[Budget, ...]:
    calendar = Calendar(time_zone("UTC"), Clock(), SESSION_HEADERS)
    caller = Caller(ACCOUNT, f"{ACCOUNT}-1a2b3c4d", "", budgets=account, token_budgets=token)
    return calendar.budgets(caller, {"x-claude-code-session-id": session} if session else {})


async def use(wallet: Wallet, session: str) -> list[int]:
    return [each.used for each in await wallet.budgets(ACCOUNT, budgets(session))]


async def spend(wallet: Wallet, session: str, amount: int, cost: int) -> Hold:
    request_id = new_request_id()
    reply = await take(wallet, request_id, amount, budgets=budgets(session))
    if reply.outcome is Hold.HELD:
        await wallet.settle(ACCOUNT, request_id, cost, reply.marks)
    return reply.outcome


async def age(client: Client, hours: float) -> None:
    """Let the last request of each session be so many hours ago."""
    for session in await client.call("ZRANGE", SESSIONS, 0, -1):
        await client.call("ZADD", SESSIONS, int((time.time() - 3600 * hours) * 1000), session)


async def counted(client: Client) -> tuple[int, int]:
    """Return how many sessions are known, and how many budgets of sessions are counted."""
    fields = await client.call("HKEYS", KEY + "wallet")
    return await client.call("ZCARD", SESSIONS), sum(field[:1] in (b"S", b"Q") for field in fields)


async def test_each_session_counts_by_itself_for_account_and_token(client: Client, wallet: Wallet) -> None:
    assert await spend(wallet, "a", 30, 20) is Hold.HELD
    assert await use(wallet, "a") == [20, 1, 20]
    assert await use(wallet, "b") == [0, 0, 0]
    assert await spend(wallet, "a", 21, 0) is Hold.BUDGET, "the token's 40"
    assert await spend(wallet, "a", 20, 20) is Hold.HELD
    assert await spend(wallet, "a", 0, 0) is Hold.BUDGET, "two requests"
    assert await spend(wallet, "b", 40, 40) is Hold.HELD
    assert await spend(wallet, "", 20, 0) is Hold.HELD, "a request without a session"
    assert await counted(client) == (4, 6)
    assert await wallet.verify(ACCOUNT) == []


async def test_a_session_is_forgotten_an_hour_after_its_last_request(client: Client, wallet: Wallet) -> None:
    assert await spend(wallet, "a", 40, 40) is Hold.HELD
    await age(client, 0.9)
    assert await spend(wallet, "a", 1, 0) is Hold.BUDGET, "which is a request, too"
    assert await use(wallet, "a") == [40, 1, 40]
    await age(client, 1.1)
    assert await use(wallet, "a") == [0, 0, 0]
    assert await spend(wallet, "b", 1, 1) is Hold.HELD
    assert await counted(client) == (2, 3), "those of the other one are gone"
    assert await spend(wallet, "a", 40, 5) is Hold.HELD
    assert await use(wallet, "a") == [5, 1, 5]
    assert await wallet.verify(ACCOUNT) == []
    await age(client, 2)
    assert await wallet.verify(ACCOUNT) == []
    assert await counted(client) == (0, 0)


async def test_a_request_that_outlives_its_session_is_charged_and_counts_in_no_other(
    client: Client, wallet: Wallet
) -> None:
    long, other = new_request_id(), new_request_id()
    marks = (await take(wallet, long, 40, budgets=budgets("a"))).marks
    await age(client, 1.1)
    await asyncio.sleep(0.002)  # so that the next one begins in another millisecond
    assert await spend(wallet, "a", 40, 7) is Hold.HELD
    assert (await wallet.settle(ACCOUNT, long, 33, marks)).outcome is Settle.OK
    assert await use(wallet, "a") == [7, 1, 7]
    assert await wallet.verify(ACCOUNT) == []
    await take(wallet, other, 30, budgets=budgets("b"))
    await overdue(client, other)
    await age(client, 1.1)
    assert await wallet.verify(ACCOUNT) == []
    assert await counted(client) == (0, 0)


async def test_an_extension_counts_in_its_session(wallet: Wallet) -> None:
    request_id = new_request_id()
    await take(wallet, request_id, 30, budgets=budgets("a"))
    extended = [
        (await wallet.extend(ACCOUNT, request_id, amount=amount, floor=0, budgets=budgets("a"))).outcome
        for amount in (40, 41)
    ]
    assert extended == [Hold.HELD, Hold.BUDGET]
    assert await use(wallet, "a") == [40, 1, 40]
    assert await wallet.verify(ACCOUNT) == []


async def test_a_charge_whose_hold_was_lost_counts_in_its_session(client: Client, wallet: Wallet) -> None:
    request_id = new_request_id()
    marks = (await take(wallet, request_id, 30, budgets=budgets("a"))).marks
    await client.call("DEL", SESSIONS, KEY + "leases")
    fields = [each.field for each in budgets("a")]
    await client.call("HDEL", KEY + "wallet", request_id, *fields)
    await client.call("HSET", KEY + "wallet", "numbers", "1000 0 0 0")
    assert (await wallet.settle(ACCOUNT, request_id, 12, marks)).outcome is Settle.ORPHAN
    assert await use(wallet, "a") == [12, 1, 12]
    await age(client, 2)
    await wallet.sweep(ACCOUNT)
    assert await counted(client) == (0, 0)


async def test_an_account_has_a_thousand_sessions_at_most(client: Client, wallet: Wallet) -> None:
    only = Budgets(session=50)
    for number in range(1003):
        await take(wallet, new_request_id(), 0, budgets=budgets(f"s{number}", only, Budgets()), max_holds=2000)
    assert await counted(client) == (1000, 1000)
    assert await wallet.verify(ACCOUNT) == []
