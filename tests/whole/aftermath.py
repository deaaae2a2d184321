"""What must hold after every exchange, however it ended."""

from __future__ import annotations

import asyncio

from gateway import Outcome
from gateway.testing import Running
from gateway.usage.log import FIELD
from gateway.usage.record import Record, decode
from tests.patience import PATIENCE_S, soon
from tests.whole.scripted import Scripted

CREDIT = 5_000_000


def tasks() -> set[asyncio.Task[object]]:
    """The tasks under way that are not the scripted upstream's."""
    return {task for task in asyncio.all_tasks() if "Scripted" not in repr(task.get_coro())}


async def ended(gateway: Running) -> list[Record]:
    """The ends of all requests, oldest first."""
    page = await gateway.store.client.call("XRANGE", gateway.store.usage.stream, "-", "+")
    return [record for _, fields in page if (record := decode(fields[FIELD])).outcome is not None]


async def last_end(gateway: Running) -> Record:
    """The end of the request that ended last, as soon as nothing is under way."""
    async with asyncio.timeout(PATIENCE_S):
        while gateway.gateway.runner.open or not (records := await ended(gateway)):
            await asyncio.sleep(0.01)
    return records[-1]


async def given_back(
    gateway: Running, upstream: Scripted | None, before: set[asyncio.Task[object]], pooled: int
) -> None:
    """Holds, slots, streams, sockets and tasks, all of it soon. `pooled` connections to the upstream stay for the next."""

    async def idle() -> None:
        known = {*before, asyncio.current_task()}
        while (tasks() - known) or (upstream is not None and len(upstream.open) != pooled):
            await asyncio.sleep(0.01)
        while gateway.gateway.runner.open or gateway.gateway.runner.failover.relays:
            await asyncio.sleep(0.01)

    await soon(idle())
    account = await gateway.store.accounts.get("tester")
    assert account is not None
    assert (account.held_micros, account.holds) == (0, 0)
    assert await gateway.store.client.call("ZCARD", "gw:{tester}:limits:rate-limit:slots") == 0


async def charged(gateway: Running) -> int:
    """Micros that are gone from the account."""
    account = await gateway.store.accounts.get("tester")
    assert account is not None
    return CREDIT - account.balance_micros


async def assert_ended(gateway: Running, outcome: Outcome, charge: str, code: str = "") -> Record:
    """The record's outcome and code, and that the charge is of the kind that `charge` names, in account and record alike."""
    record = await last_end(gateway)
    assert (record.outcome, record.error_code) == (outcome, code)
    assert await charged(gateway) == record.charge_micros == record.prompt_tokens + 2 * record.completion_tokens
    source, delivered = record.usage_source, record.completion_tokens > 0
    assert (source, delivered) == {
        "nothing": ("none", False),
        "input": ("estimated", False),
        "estimate": ("estimated", True),
        "exact": ("upstream", True),
    }[charge]
    return record
