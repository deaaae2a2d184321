"""During a rolling upgrade, the scripts of the previous version and of this one work on the same accounts.

`earlier/` holds the scripts of the previous release. Each version must be able to read the data that the other writes.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from gateway.store.client.client import Client, Script
from gateway.store.money.wallet import Hold, Settle, Wallet
from tests.store.conftest import ACCOUNT, balance_and_held, new_request_id, open_account, overdue, take

EARLIER = Path(__file__).parent / "earlier"


def earlier(client: Client) -> Wallet:
    """Return a wallet with the scripts of the previous release."""
    wallet = Wallet(client)
    for name in ("hold", "settle", "credit"):
        text = "\n".join((EARLIER / f"{part}.lua").read_text() for part in ("wallet", name))
        wallet.scripts[name] = Script(name, text)
    return wallet


async def test_one_version_settles_what_the_other_held(client: Client) -> None:
    await open_account(client, 1000)
    versions = (Wallet(client), earlier(client))
    assert versions[0].scripts["hold"].digest != versions[1].scripts["hold"].digest
    for one, other in (versions, reversed(versions)):
        request_id, dead = new_request_id(), new_request_id()
        assert (await take(one, request_id)).outcome is Hold.HELD
        assert (await take(other, request_id)).outcome is Hold.HELD
        assert (await other.settle(ACCOUNT, request_id, 4)).outcome is Settle.OK
        assert (await one.settle(ACCOUNT, request_id, 4)).outcome is Settle.DONE
        assert (await take(one, request_id)).outcome is Hold.DONE
        await take(one, dead, floor=3)
        await overdue(client, dead)
        await take(other, new_request_id(), 1)
        assert (await one.settle(ACCOUNT, dead, 9)).outcome is Settle.LATE
    assert (await balance_and_held(client))[0] == 1000 - 2 * (4 + 9)
    assert await versions[0].verify(ACCOUNT) == []


async def test_both_versions_at_once_charge_each_request_once(client: Client) -> None:
    await open_account(client, 1000)
    versions, chance = (Wallet(client), earlier(client)), random.Random(3)
    request_ids = [new_request_id() for _ in range(100)]

    async def request(request_id: str) -> None:
        await take(chance.choice(versions), request_id, 5, max_holds=1000)
        await asyncio.gather(*(chance.choice(versions).settle(ACCOUNT, request_id, 5) for _ in range(3)))

    await asyncio.gather(*map(request, request_ids))
    assert await balance_and_held(client) == (500, 0)
    assert await versions[0].verify(ACCOUNT) == []
