"""Checks that hold after every exchange, however it ended: its record, its charge, and the release of its resources."""

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
    """Return the running tasks, without those of upstreams of tests."""
    return {task for task in asyncio.all_tasks() if "TcpServer" not in repr(task.get_coro())}


async def records_in_stream(gateway: Running) -> list[Record]:
    """Return the records in the usage log's stream, arrivals and ends, oldest first."""
    page = await gateway.store.client.call("XRANGE", gateway.store.usage.streams[0], "-", "+")
    return [decode(fields[FIELD]) for _, fields in page]


async def end_records(gateway: Running) -> list[Record]:
    """Wait until no exchange is open, and return the end records of all requests, oldest first.

    An answer reaches its caller before its record reaches the log, so a caller that has its answer may be too early.
    """
    async with asyncio.timeout(PATIENCE_S):
        while gateway.gateway.runner.open:
            await asyncio.sleep(0.01)
    return [record for record in await records_in_stream(gateway) if record.outcome is not None]


async def last_end_record(gateway: Running) -> Record:
    """Wait until a request has ended and no exchange is open, and return the last end record."""
    async with asyncio.timeout(PATIENCE_S):
        while not (records := await end_records(gateway)):
            await asyncio.sleep(0.01)
    return records[-1]


async def assert_released(
    gateway: Running, upstream: Scripted | None, before: set[asyncio.Task[object]], pooled: int
) -> None:
    """Assert that holds, slots, relays, sockets and tasks are released soon.

    `before` are the tasks that ran before the exchange; `pooled` connections to the upstream stay open for later requests.
    """

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
    """Return how many micros the account was charged."""
    account = await gateway.store.accounts.get("tester")
    assert account is not None
    return CREDIT - account.balance_micros


async def assert_ended(gateway: Running, outcome: Outcome, charge: str, code: str = "") -> Record:
    """Assert the record's outcome and code, and a charge of the kind `charge` in account and record. Return the record."""
    record = await last_end_record(gateway)
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
