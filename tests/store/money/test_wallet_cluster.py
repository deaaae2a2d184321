"""The wallet on a cluster of three nodes: all keys of an account are in one slot, and failovers are detected.

`WALLET_CLUSTER_EXAMPLES=500 pytest tests/store/money/test_wallet_cluster.py --hypothesis-seed=N` runs longer histories.
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from gateway.base.errors import StoreAway
from gateway.store.accounts import Accounts
from gateway.store.client.client import Client
from gateway.store.client.durability import Masters, check_store, info_of_masters
from gateway.store.money.wallet import Credit, Hold, Settle, Wallet
from tests.patience import PATIENCE_S, timed
from tests.store.cluster import Cluster, client, masters
from tests.store.conftest import new_request_id
from tests.store.money.test_archiver import TestArchiver, archive, archiver, past  # noqa: F401 - on this file's `client`
from tests.store.money.test_wallet import (  # noqa: F401 - on this file's `client`; what each call does is in the histories
    test_a_balance_for_20_requests_admits_20_of_200_at_once,
    test_cancelled_calls_leave_no_reply_for_others,
)
from tests.store.money.wallet_machine import WalletMachine

__all__ = ["client", "masters"]


def test_random_histories_hold_on_a_cluster_too(masters: Cluster) -> None:
    class Machine(WalletMachine):
        url = masters.url

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=int(os.environ.get("WALLET_CLUSTER_EXAMPLES", "10")),
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


async def test_accounts_of_all_slots_are_served_and_verified(client: Client) -> None:
    accounts, wallet = Accounts(client), Wallet(client)
    names = [f"account{number}" for number in range(30)]
    for name in names:
        await accounts.create(name)
        assert (await wallet.credit(name, "opening", 100)).outcome is Credit.OK
        request_id = new_request_id()
        held = await wallet.hold(name, request_id, amount=10, floor=0, lease_ms=60_000, fingerprint="a", max_holds=9)
        assert held.outcome is Hold.HELD
        assert (await wallet.settle(name, request_id, 7)).outcome is Settle.OK
    assert sorted([account.id async for account in accounts.all()]) == sorted(names)
    assert [await wallet.verify(name) for name in names] == [[]] * 30
    sizes = [await client.redis.execute_command("DBSIZE", target_nodes=node) for node in client.redis.get_primaries()]  # type: ignore[union-attr]
    assert all(sizes), "every node has accounts"


async def test_every_master_is_checked(client: Client) -> None:
    assert len({info["run_id"] for info in await info_of_masters(client, "server")}) == 3
    assert await check_store(client, accept_loss=False) == []
    weak = client.redis.get_primaries()[1]  # type: ignore[union-attr]
    for policy, found in (("allkeys-lru", 1), ("noeviction", 0)):
        await client.redis.execute_command("CONFIG", "SET", "maxmemory-policy", policy, target_nodes=weak)
        assert len(await check_store(client, accept_loss=True)) == found


async def test_settlements_are_repeated_after_one_master_has_changed(client: Client) -> None:
    await Accounts(client).create("acme")
    wallet = Wallet(client)
    masters = Masters(client)
    assert await masters.replay_after_failover(wallet.repeat) == [0]
    request_id = new_request_id()
    await wallet.settle("acme", request_id, 7)
    assert await masters.replay_after_failover(wallet.repeat) == [0]
    masters._masters = frozenset(sorted(masters._masters or ())[:2])
    assert await masters.replay_after_failover(wallet.repeat) == [1]
    assert await wallet.verify("acme") == []


async def test_the_migration_of_one_accounts_slot_does_not_block_other_accounts(
    client: Client, masters: Cluster
) -> None:
    for name in ("moving", "staying"):
        await Accounts(client).create(name)
        await Wallet(client).credit(name, "opening", 1000)
    terms: dict[str, Any] = {"amount": 1, "floor": 0, "lease_ms": 60_000, "max_holds": 99, "fingerprint": "a"}
    impatient = Client.connect(masters.url, timeout_s=5)
    wallet = Wallet(impatient)
    try:
        with masters.half_moved("gw:{moving}:account"):
            refused = [asyncio.ensure_future(wallet.hold("moving", new_request_id(), **terms)) for _ in range(8)]
            served = [await wallet.hold("staying", new_request_id(), **terms) for _ in range(20)]
            assert [reply.outcome for reply in served] == [Hold.HELD] * 20
            assert {type(error) for error in await asyncio.gather(*refused, return_exceptions=True)} == {StoreAway}
        assert (await wallet.hold("moving", new_request_id(), **terms)).outcome is Hold.HELD
        assert await wallet.verify("moving") == []
    finally:
        await impatient.close()


async def test_a_call_that_finds_no_free_connection_fails_within_the_timeout(client: Client, masters: Cluster) -> None:
    await client.call("SET", "a", "here")
    frozen = masters.owner(masters.nodes[0].call("CLUSTER", "KEYSLOT", "a"))
    impatient = Client.connect(masters.url, timeout_s=0.3, connections=2)
    try:
        await until_here(impatient)
        frozen.process.send_signal(signal.SIGSTOP)
        calls = (impatient.call("GET", "a") for _ in range(50))
        refused, seconds = await timed(asyncio.gather(*calls, return_exceptions=True))
        assert {type(error) for error in refused} == {StoreAway}
        assert seconds < 0.6
        frozen.process.send_signal(signal.SIGCONT)
        await until_here(impatient)
    finally:
        frozen.process.send_signal(signal.SIGCONT)
        await impatient.close()


async def until_here(client: Client) -> None:
    """Wait until the cluster responds to this client, which first has to read its nodes."""
    async with asyncio.timeout(PATIENCE_S):
        while (await asyncio.gather(client.call("GET", "a"), return_exceptions=True))[0] != b"here":
            await asyncio.sleep(0.01)
