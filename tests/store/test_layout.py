"""A store is converted once, whatever kills the conversion, and a store of a later layout is refused.

`LAYOUT_LINES=1000000 pytest tests/store/test_layout.py -k large -s` measures a large account.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

import pytest

from gateway.base.crash_points import EXIT_CODE
from gateway.base.errors import Misconfigured, StoreError
from gateway.domain.facts import AccountLimits
from gateway.store import layout
from gateway.store.accounts import Accounts
from gateway.store.client.client import Client
from gateway.store.limits import Limited, RateLimiter
from gateway.store.money.wallet import Wallet
from gateway.store.pepper import PepperSource, checked
from tests.patience import PATIENCE_S
from tests.store.conftest import request_id_at

PROGRAM = """
import asyncio, sys
from gateway.store import layout
from gateway.store.client.client import Client
async def main():
    client = Client.connect(sys.argv[1], timeout_s=50)
    await layout.prepare(client, print, listen_s=0)
asyncio.run(main())
"""
ACCOUNTS = 120
LINES = int(os.environ.get("LAYOUT_LINES", "3000"))
HOLDS = 10_000


async def fill(client: Client, name: str, ends: int = 3, holds: int = 2) -> None:
    """Write an account in layout 1: each request cost 1, each hold is 5."""
    key, now = f"gw:{{{name}}}:", int(time.time() * 1000)
    fields: dict[str, Any] = {"status": "active", "group": "default", "models": "", "limits": "{}", "credit_line": 0}
    numbers = {"balance": 1_000_000 - ends, "held": 5 * holds, "holds": holds}
    flat = [item for pair in (fields | numbers).items() for item in pair]
    calls = [client.submit("HSET", key + "account", *flat)]
    line = ("kind", "credit", "id", "opening", "amount", 1_000_000)
    calls.append(client.submit("XADD", key + "ledger", f"{now - 10_000_000}-0", *line))
    calls.append(client.submit("HSET", key + "credits", "opening", 1_000_000))
    for number in range(ends):
        at = now - ends + number
        request_id = request_id_at(at, number)
        calls.append(client.submit("HSET", key + "ended", request_id, "1 settle 1"))
        calls.append(client.submit("ZADD", key + "ended_at", at, request_id))
        line = ("kind", "settle", "id", request_id, "amount", -1)
        calls.append(client.submit("XADD", key + "ledger", f"{at}-0", *line))
        if len(calls) > 3000:
            await asyncio.gather(*calls)
            calls.clear()
    for number in range(holds):
        request_id = request_id_at(now, ends + number)
        calls.append(client.submit("HSET", key + "holds", request_id, f"1 5 {now + 3_600_000} 0 a"))
        calls.append(client.submit("ZADD", key + "leases", now + 3_600_000, request_id))
    await asyncio.gather(*calls)


async def convert(client: Client) -> list[str]:
    reports: list[str] = []
    await layout.prepare(client, reports.append, listen_s=0)
    return reports


async def assert_converted(client: Client, ends: int = 3, holds: int = 2) -> None:
    assert await client.call("GET", layout.KEY) == str(layout.LAYOUT).encode()
    accounts = [account async for account in Accounts(client).all()]
    for account in accounts:
        numbers = (account.balance_micros, account.held_micros, account.holds)
        assert numbers == (1_000_000 - ends, 5 * holds, holds)
        assert await Wallet(client).verify(account.id) == []
        assert await client.call("HLEN", f"gw:{{{account.id}}}:wallet") == ends + holds + 3
        assert await client.call("HGETALL", f"gw:{{{account.id}}}:account") == {
            b"status": b"active",
            b"group": b"default",
            b"models": b"",
            b"limits": b"{}",
            b"credit_line": b"0",
            b"balance": layout.UNREADABLE.encode(),
        }


@pytest.mark.parametrize(
    "label", ["layout.begun", "layout.page:1", "layout.page:2", "layout.accounts", "layout.limits"]
)
async def test_a_conversion_that_was_killed_is_completed_by_the_next(
    client: Client, store_url: str, label: str
) -> None:
    for number in range(ACCOUNTS):
        await fill(client, f"account{number}")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, store_url), env=os.environ | {"GATEWAY_CRASH_AT": label}
    )
    assert await asyncio.wait_for(process.wait(), PATIENCE_S) == EXIT_CODE
    assert await client.call("GET", layout.KEY) is None
    await convert(client)
    await assert_converted(client)
    keys = sorted(await client.call("KEYS", "*"))
    assert await convert(client) == []
    assert sorted(await client.call("KEYS", "*")) == keys


async def test_two_gateways_may_convert_at_once(client: Client) -> None:
    for number in range(ACCOUNTS):
        await fill(client, f"account{number}")
    await asyncio.gather(convert(client), convert(client), convert(client))
    await assert_converted(client)


async def test_a_store_of_a_later_layout_is_refused(client: Client) -> None:
    await client.call("SET", layout.KEY, layout.LAYOUT + 1)
    for refused in (layout.prepare(client, print, 0), layout.check(client)):
        with pytest.raises(Misconfigured, match=f"in layout {layout.LAYOUT + 1}, this version knows"):
            await refused


async def test_commands_refuse_a_store_that_gateways_of_layout_1_may_use(client: Client) -> None:
    await fill(client, "acme")
    with pytest.raises(Misconfigured, match="stop the gateways of that version"):
        await layout.check(client)
    await convert(client)
    await layout.check(client)
    await client.call("DEL", layout.KEY)
    await layout.check(client)


async def test_a_store_that_a_gateway_of_layout_1_uses_is_not_converted(client: Client) -> None:
    async def sweep() -> None:
        while True:
            await client.call("SET", "gw:sweep", "1", "NX", "EX", 30)
            await asyncio.sleep(0.02)

    await fill(client, "acme")
    running = asyncio.create_task(sweep())
    with pytest.raises(Misconfigured, match="stop all of them"):
        await layout.prepare(client, print, listen_s=2)
    running.cancel()
    await asyncio.wait([running])
    assert await client.call("HGET", "gw:{acme}:account", "holds") == b"2"
    assert await client.call("TYPE", layout.FINGERPRINT) == b"none"
    assert await client.call("EXISTS", "gw:sweep") == 1
    await convert(client)  # the lock is still there, but is not taken again
    await assert_converted(client)


async def test_a_gateway_that_converted_the_store_meanwhile_is_no_gateway_of_layout_1(client: Client) -> None:
    await fill(client, "acme")
    waiting = asyncio.create_task(layout.prepare(client, print, listen_s=1))
    await asyncio.sleep(0.5)
    await convert(client)
    await client.call("SET", layout.SWEEP_LOCK, "1")
    await waiting
    await assert_converted(client)


async def test_an_account_that_cannot_be_read_stays_as_it_is(client: Client) -> None:
    await fill(client, "acme")
    await client.call("HSET", "gw:{acme}:account", "held", "many")
    before = {key: await client.call("DUMP", key) for key in await client.call("KEYS", "gw:{acme}*")}
    with pytest.raises(StoreError, match="not readable"):
        await convert(client)
    assert {key: await client.call("DUMP", key) for key in await client.call("KEYS", "gw:{acme}*")} == before
    assert await client.call("GET", layout.KEY) is None


async def test_the_pepper_is_still_checked_and_not_readable_for_layout_1(client: Client) -> None:
    await checked(client, PepperSource(lambda: b"one pepper of 16 bytes"))
    fingerprint = await client.call("HGET", layout.FINGERPRINT, "fingerprint")
    await client.call("DEL", layout.FINGERPRINT)
    await client.call("SET", layout.FINGERPRINT, fingerprint)
    await client.call("HSET", "gw:{acme}:tokens", "a", "b")
    await convert(client)
    with pytest.raises(StoreError, match="WRONGTYPE"):
        await client.call("GET", layout.FINGERPRINT)
    await checked(client, PepperSource(lambda: b"one pepper of 16 bytes"))
    with pytest.raises(Misconfigured, match="the pepper is not the one"):
        await checked(client, PepperSource(lambda: b"another pepper of 16 bytes"))


async def test_rates_that_are_used_up_stay_so(client: Client) -> None:
    prefix, far_us = "gw:{acme}:limits:rate-limit:", 4_933_526_400_000_000
    await client.call("SET", prefix + "requests", f"{5 * 60_000_000} {far_us}", "PX", 60_000)
    await client.call("SET", prefix + "tokens", f"{7 * 60_000_000} {far_us}", "PX", 90_000)
    assert await convert(client) == ["the store's data is converted: 1 rate limits"]
    assert await client.call("KEYS", prefix + "*") == [f"{prefix}rates".encode()]
    assert 60_000 < await client.call("PTTL", prefix + "rates") <= 90_000
    for rules, kind in (
        (AccountLimits(requests_per_minute=5), "requests"),
        (AccountLimits(tokens_per_minute=7), "tokens"),
    ):
        refused = await RateLimiter(client).take("acme", "r", scope="rate-limit", rules=rules, tokens=1, lease_ms=1000)
        assert isinstance(refused, Limited)
        assert refused.kind == kind


async def test_a_large_account_is_converted_without_blocking_the_store(client: Client) -> None:
    await fill(client, "acme", ends=LINES, holds=HOLDS)
    began = time.monotonic()
    await convert(client)
    print(f"{LINES} ends and {HOLDS} holds: converted in {time.monotonic() - began:.3f} s")
    slowest = await client.call("INFO", "commandstats")
    print(slowest.get("cmdstat_evalsha"), slowest.get("cmdstat_eval"))
    await assert_converted(client, ends=LINES, holds=HOLDS)
