"""The disk under the store and all files is full: no end is lost, nothing reaches an upstream, and it goes on afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway import Outcome
from gateway.base.errors import StoreAway
from gateway.runtime.maintenance import Maintenance
from gateway.store.embedded import EmbeddedStore
from gateway.testing import Running, running
from gateway.usage import queries
from gateway.usage.sink import Sink
from tests.disk import Disk, small_disk
from tests.patience import PATIENCE_S
from tests.records import usage_sink
from tests.whole.conftest import configuration
from tests.whole.raw import Answer, ask, chat
from tests.whole.scripted import Gated

EVENTS = [
    b'data: {"choices":[{"index":0,"delta":{"content":"hello"},"finish_reason":null}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":7,"total_tokens":12}}\n\ndata: [DONE]\n\n',
]
COST = 5 * 1 + 7 * 2


@pytest.fixture
async def disk(tmp_path: Path) -> AsyncIterator[Disk]:
    with small_disk(tmp_path / "disk", 8) as disk:
        yield disk


async def opened_streams(gateway: Running, upstream: Gated, token: str, count: int) -> list[asyncio.Task[Answer]]:
    """Return requests whose first event has come, and whose upstream waits."""
    asked = [asyncio.create_task(ask(gateway.port, chat(token))) for _ in range(count)]
    async with asyncio.timeout(PATIENCE_S):
        while len(upstream.requests) < count:
            await asyncio.sleep(0.01)
    return asked


async def settled(gateway: Running, sink: Sink, count: int) -> None:
    """Do the work of the background processes until so many requests are in the files."""
    maintenance = Maintenance(gateway.store)
    async with asyncio.timeout(PATIENCE_S):
        while len(list(queries.select(gateway.store.usage.folder))) < count or gateway.store.journal.waiting():
            await maintenance.run_once()
            await sink.move_batch()
            await asyncio.sleep(0.05)


async def test_ends_that_nothing_accepts_are_kept_until_the_disk_has_space(
    disk: Disk, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = await asyncio.to_thread(EmbeddedStore.start, disk.folder / "store")
    gated = Gated(*EVENTS)
    gated.scripts = (gated.scripts[0],)
    async with gated as upstream:
        yaml = configuration(upstream.base_url, store_timeout=1)
        async with running(yaml, disk.folder, store.url) as gateway:
            token = await gateway.token(credit=1_000_000)
            sink = usage_sink(gateway.store.usage, retention_months=13, crashed_after_s=600)
            asked = await opened_streams(gateway, upstream, token, 4)
            disk.fill()
            async with asyncio.timeout(PATIENCE_S):  # the server notices when it writes
                while not await refuses_writes(gateway):
                    await asyncio.sleep(0.05)
            refused = [await ask(gateway.port, chat(token)) for _ in range(3)]
            upstream.gate.set()
            answers = await asyncio.gather(*asked)
            await gateway.gateway.runner.wait_ended()
            assert [answer.status for answer in refused] == [503] * 3
            assert len(upstream.requests) == 4, "no refused request reached the upstream"
            assert [answer.body.endswith(b"data: [DONE]\n\n") for answer in answers] == [True] * 4
            await sink.move_batch()
            disk.free()
            await settled(gateway, sink, 7)
            account = await gateway.store.accounts.get("tester")
            assert account is not None
            assert (account.balance_micros, account.held_micros) == (1_000_000 - 4 * COST, 0)
            assert await gateway.store.wallet.verify("tester") == []
            assert (await ask(gateway.port, chat(token))).status == 200
            await gateway.gateway.runner.wait_ended()
            await settled(gateway, sink, 8)
    await asyncio.to_thread(store.stop)
    rows = {row.id: row for row in queries.select(gateway.store.usage.folder)}
    served = [rows[answer.headers["x-request-id"]] for answer in answers]
    assert {(row.outcome, row.charge_micros) for row in served} == {(Outcome.COMPLETED, COST)}
    assert {rows[answer.headers["x-request-id"]].outcome for answer in refused} == {Outcome.REFUSED}
    printed = capsys.readouterr()
    assert "Traceback" not in printed.out + printed.err
    assert printed.out.count("journal_not_written") <= 2, "one line now and then, not one for each request"
    assert printed.out.count("records_not_written") <= 2


async def refuses_writes(gateway: Running) -> bool:
    try:
        await gateway.store.client.call("SET", "gw:probe", "x" * 4096)
    except StoreAway:
        return True
    return False
