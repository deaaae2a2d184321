"""A settlement that is sent as a step stops those after it exactly where another amount than its cost was charged."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from gateway.store.client.client import Client, Script
from gateway.store.client.steps import RAN, STOPPED, Step, run_steps
from gateway.store.money.wallet import Settle, Settled, Wallet
from tests.store.conftest import ACCOUNT, KEY, new_request_id, open_account, overdue, take

TOO_OLD_S = 24 * 3600 + 1
MARK = Script("mark", "redis.call('SET', KEYS[1], ARGV[1]) return 'marked'")

Prepare = Callable[[Client, Wallet, str], Awaitable[object]]


async def held(_: Client, wallet: Wallet, request_id: str) -> None:
    await take(wallet, request_id, 30, floor=3)


async def settled(_: Client, wallet: Wallet, request_id: str) -> None:
    await take(wallet, request_id, 30)
    await wallet.settle(ACCOUNT, request_id, 12)


async def released(_: Client, wallet: Wallet, request_id: str) -> None:
    await take(wallet, request_id, 30)
    await wallet.release(ACCOUNT, request_id)


async def expired(client: Client, wallet: Wallet, request_id: str) -> None:
    await held(client, wallet, request_id)
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
        (held, 0, 12, Settled(Settle.OK, 12), RAN),
        (held, 0, 0, Settled(Settle.OK, 0), RAN),
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
    read: list[Settled] = []

    async def then(outcome: Settled) -> bool:
        read.append(outcome)
        return False

    step = wallet.settle_step(ACCOUNT, request_id, cost, then=then)
    after = Step(MARK, [KEY + "mark"], ["reached"])
    (first, reply), *rest = await run_steps(client, [step, after])
    assert step.read is not None
    await step.read(reply)
    assert (read, first) == ([result], status)
    reached = status == RAN
    assert rest == ([[RAN, b"marked"]] if reached else [])
    assert after.may_have_run is reached
    assert await client.call("GET", KEY + "mark") == (b"reached" if reached else None)


async def test_a_settlement_that_is_refused_changes_nothing_and_stops_those_after_it(client: Client) -> None:
    await open_account(client, 100)
    wallet = Wallet(client)

    async def then(_: Settled) -> bool:
        return False

    steps = [
        wallet.settle_step(ACCOUNT, "no-uuid", 12, then=then),
        Step(MARK, [KEY + "mark"], ["reached"]),
    ]
    before = await client.call("DUMP", KEY + "wallet")
    assert len(await run_steps(client, steps)) == 1
    assert await client.call("EXISTS", KEY + "mark") == 0
    assert await client.call("DUMP", KEY + "wallet") == before
