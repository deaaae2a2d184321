"""The store is stopped under load: requests refused meanwhile are in the usage log afterwards, and each request only once.

It is stopped for 3 seconds, or for `GATEWAY_STORE_AWAY_S`.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from gateway import Outcome
from gateway.config.schema import StoreSettings
from gateway.fake_upstream import FakeUpstream
from gateway.store.embedded import EmbeddedStore
from gateway.testing import Running, running
from gateway.usage import queries
from tests.patience import PATIENCE_S
from tests.records import usage_sink
from tests.usage.test_database import rolled_up, summed
from tests.whole.conftest import CHAIN, configuration
from tests.whole.raw import ask, chat

AWAY_S = float(os.environ.get("GATEWAY_STORE_AWAY_S", "3"))
REQUESTS_PER_S = 50
WIDE = CHAIN.replace("requests_per_minute: 1000, tokens_per_minute: 1000000", "requests_per_minute: 1000000")


async def load(gateway: Running, token: str, received: dict[str, int], stop: asyncio.Event) -> None:
    """Send requests at a constant rate, and record the status of each by its id."""

    async def call() -> None:
        answer = await ask(gateway.port, chat(token))
        received[answer.headers["x-request-id"]] = answer.status

    async with asyncio.TaskGroup() as calls:
        while not stop.is_set():
            calls.create_task(call())
            await asyncio.sleep(1 / REQUESTS_PER_S)


async def until(received: dict[str, int], status: int, more: int) -> None:
    """Wait until `more` further requests were answered with this status."""
    wanted = list(received.values()).count(status) + more
    async with asyncio.timeout(PATIENCE_S):
        while list(received.values()).count(status) < wanted:
            await asyncio.sleep(0.02)


async def test_requests_refused_while_the_store_is_down_are_in_the_log_afterwards(tmp_path: Path) -> None:
    store = await asyncio.to_thread(EmbeddedStore.start, tmp_path / "store")
    received: dict[str, int] = {}
    async with FakeUpstream(pace_s=0, key="channel-credential-4711") as upstream:
        yaml = configuration(upstream.base_url, chain=WIDE, store_timeout=StoreSettings().timeout)
        async with running(yaml, tmp_path, store.url) as gateway:
            token, stop = await gateway.token(credit=5_000_000_000), asyncio.Event()
            sink = usage_sink(gateway.store.usage, retention_months=13, crashed_after_s=600)
            draining = asyncio.create_task(sink.run(stop))
            loading = asyncio.create_task(load(gateway, token, received, stop))
            await until(received, 200, 30)
            await asyncio.to_thread(store.stop)
            await asyncio.sleep(AWAY_S)
            await until(received, 503, 30)
            store = await asyncio.to_thread(EmbeddedStore.start, tmp_path / "store")
            await until(received, 200, 30)
            stop.set()
            await loading
            await gateway.gateway.runner.wait_ended()
            await draining
            usage = gateway.store.usage
            while await sink.move_batch():
                pass
            assert (await usage.length(), usage.spool.files()) == (0, [])
    await asyncio.to_thread(store.stop)
    rows = {row.id: row for row in queries.select(usage.folder)}
    assert rows.keys() == received.keys()
    refused = [row for row in rows.values() if row.status == 503]
    assert len(refused) >= 30
    assert {(row.outcome, row.error_code, row.charge_micros) for row in refused} == {
        (Outcome.REFUSED, "service_unavailable", 0)
    }
    assert {row.id: row.status for row in rows.values()} == received
    assert rolled_up(usage.folder) == summed(usage.folder)
