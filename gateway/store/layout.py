"""The layout of the store's data: its number, and the conversion of the layout before.

1. **An account is converted whole or not at all**, by one script that does not depend on how many requests have ended. A
   conversion that was killed anywhere is repeated from its start.
2. **No two versions change one account.** A store that gateways of layout 1 use is not converted: each of their workers takes the
   lock `SWEEP_LOCK` where it is free, every two seconds. They cannot start on a converted store, since the fingerprint of the
   pepper has another type. One that was halted meanwhile gets an error for each account that is converted; it writes what it was
   about to charge to its journal, which is delivered by the next gateway with its data folder.
3. **A store of a later layout is refused.**
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

from gateway.base import crash_points
from gateway.base.errors import Misconfigured
from gateway.store.client.client import Client, Script

LAYOUT: Final = 2
KEY: Final = "gw:layout"
FINGERPRINT: Final = "gw:pepper"
"""The key that has the fingerprint of the pepper: a hash, in layout 1 a string."""
SWEEP_LOCK: Final = "gw:sweep"
"""A key that expires: of all workers on all machines, the one that sets it ends expired holds."""
UNREADABLE: Final = f"this account is in layout {LAYOUT} of the data, which needs a later version of the gateway"
"""The field `balance` of every account. A version of layout 1, which has the balance there, ends with an error that contains it."""
ABOUT: Final = "numbers: balance, held, holds, no lease ends before; then requests by id"
"""The field `about` of every wallet. A value of more than 64 bytes makes the server use a hash table from the start: in its list
for small hashes, each call would search all requests."""

LISTEN_S: Final = 5.0
REPORT_S: Final = 3.0
AT_ONCE: Final = 50
_ACCOUNT: Final = Script.load(Path(__file__).with_name("convert_account.lua"))
_LIMITS: Final = Script.load(Path(__file__).with_name("convert_limits.lua"))
_PEPPER: Final = Script.load(Path(__file__).with_name("convert_pepper.lua"))
_PARTS: Final = ("account", "wallet", "holds", "leases", "ended", "ended_at", "ledger")


async def known(client: Client) -> bool:
    """Return whether the store has a layout of its own; raise `Misconfigured` if it is a later one than this version's."""
    stored = await client.call("GET", KEY)
    if stored is not None and int(stored) > LAYOUT:
        raise Misconfigured(
            f"redis: the store's data is in layout {int(stored)}, this version knows layout {LAYOUT}: start the later version of "
            "the gateway that converted it, or restore a backup from before"
        )
    return stored is not None


async def check(client: Client) -> None:
    """Raise `Misconfigured` if the store is not of this version's layout. Only `prepare` converts it."""
    if not await known(client) and await _has_accounts_of_layout_1(client):
        raise Misconfigured(
            "redis: the store's data is that of an earlier version: stop the gateways of that version, then start one of this "
            "version with `gateway serve`, which converts it"
        )


async def prepare(client: Client, report: Callable[[str], None], listen_s: float = LISTEN_S) -> None:
    """Convert the store if it is in layout 1, and record its layout. Raises `Misconfigured`, `StoreAway` and `StoreError`.

    `report` gets the progress, every few seconds. `listen_s`: how long to look for gateways of layout 1 that use the store.
    """
    if await known(client):
        return
    if await _has_accounts_of_layout_1(client):
        report(
            f"the store's data is that of an earlier version: looking for {listen_s:g} s whether gateways of it still run"
        )
        await client.call("DEL", SWEEP_LOCK)
        await asyncio.sleep(listen_s)
        taken = await client.call("EXISTS", SWEEP_LOCK)
        if await known(client):  # another gateway has converted it meanwhile, and its workers take the lock
            return
        if taken:
            raise Misconfigured(
                "redis: gateways of an earlier version use the data: stop all of them, then start this one, which converts it"
            )
    await client.run(_PEPPER, [FINGERPRINT], [LAYOUT])
    crash_points.point("layout.begun")
    await _convert(client, _accounts(client), "accounts", report)
    crash_points.point("layout.accounts")
    await _convert(client, _rates(client), "rate limits", report)
    crash_points.point("layout.limits")
    await client.call("SET", KEY, LAYOUT)


async def _has_accounts_of_layout_1(client: Client) -> bool:
    page: list[asyncio.Future[bytes | None]] = []

    async def found() -> bool:
        balances = await asyncio.gather(*page)
        page.clear()
        return any(balance not in (None, UNREADABLE.encode()) for balance in balances)

    async for key in client.keys("gw:{*}:account"):
        page.append(client.submit("HGET", key, "balance"))
        if len(page) == AT_ONCE and await found():
            return True
    return await found()


Call = tuple[Script, list[str], tuple[str, ...]]


async def _accounts(client: Client) -> AsyncIterator[Call]:
    async for key in client.keys("gw:{*}:account"):
        prefix = key.removesuffix("account")
        yield _ACCOUNT, [prefix + part for part in _PARTS], (UNREADABLE, ABOUT)


async def _rates(client: Client) -> AsyncIterator[Call]:
    for kind in ("requests", "tokens"):
        async for key in client.keys(f"gw:{{*}}:limits:*:{kind}"):
            prefix = key.removesuffix(kind)
            yield _LIMITS, [prefix + part for part in ("requests", "tokens", "rates")], ()


async def _convert(client: Client, calls: AsyncIterator[Call], what: str, report: Callable[[str], None]) -> None:
    """Run the scripts, a few at once, so that a store which others use is never blocked for long."""
    done, converted, due = 0, 0, time.monotonic() + REPORT_S
    page: list[Call] = []

    async def run() -> None:
        nonlocal done, converted
        replies = await asyncio.gather(*(client.run(*call) for call in page))
        done, converted = done + len(page), converted + sum(replies)
        page.clear()
        crash_points.point("layout.page")

    async for call in calls:
        page.append(call)
        if len(page) == AT_ONCE:
            await run()
        if time.monotonic() > due:
            report(f"converting the store's data: {done} {what} so far ...")
            due = time.monotonic() + REPORT_S
    await run()
    if converted:
        report(f"the store's data is converted: {converted} {what}")
