"""While the store or its disk fails, new requests are refused at no charge, and open streams are charged exactly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway import Outcome
from gateway.base.errors import StoreAway
from gateway.config.schema import StoreSettings
from gateway.runtime.background import Maintenance
from gateway.store.embedded import EmbeddedStore
from gateway.testing import Running, running
from gateway.usage import queries
from gateway.usage.database import UsageFiles
from gateway.usage.sink import Sink
from tests.disk import Disk, small_disk
from tests.patience import PATIENCE_S, timed
from tests.records import usage_sink
from tests.whole.aftermath import charged
from tests.whole.conftest import configuration
from tests.whole.own_store import PASSING, REFUSING, OwnStore, own_store
from tests.whole.raw import Answer, ask, chat, get
from tests.whole.scripted import Gated
from tests.whole.test_errors import assert_error
from tests.whole.test_stream import CHARGE, PASSED, STREAM, WORDS

WITHIN_S = 0.5
HALF = STREAM.partition(WORDS[3])[0]


@pytest.fixture
async def upstream() -> AsyncIterator[Gated]:
    """Yield an upstream whose first stream stays open until the test opens the gate."""
    async with Gated(HALF, STREAM.removeprefix(HALF)) as gated:
        yield gated


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[OwnStore]:
    async with own_store(tmp_path / "store") as own:
        yield own


@pytest.fixture
async def gateway(store: OwnStore, upstream: Gated, tmp_path: Path) -> AsyncIterator[Running]:
    async with running(
        configuration(upstream.base_url, store_timeout=StoreSettings().timeout), tmp_path, store.url
    ) as whole:
        yield whole


async def begun(gateway: Running, token: str) -> asyncio.Task[Answer]:
    """Start a stream and wait for its first event."""
    answer = asyncio.create_task(ask(gateway.port, chat(token)))
    async with asyncio.timeout(PATIENCE_S):
        while not any(stream.events.started for stream in gateway.gateway.runner.failover.relays):
            await asyncio.sleep(0.01)
    return answer


async def assert_books(gateway: Running, answers: list[Answer], served: int) -> None:
    """Assert that all charges are settled exactly, and that the usage log has the id and status of every response."""
    async with asyncio.timeout(PATIENCE_S):
        while gateway.gateway.runner.open:
            await asyncio.sleep(0.01)
    await Maintenance(gateway.store).run_once()
    assert await gateway.store.wallet.verify("tester") == []
    account = await gateway.store.accounts.get("tester")
    assert account is not None
    assert (account.held_micros, account.holds) == (0, 0)
    assert await charged(gateway) == served * CHARGE
    sink = usage_sink(gateway.store.usage, retention_months=13, crashed_after_s=600)
    while await sink.move_batch():
        pass
    sink.home.close()
    kept = list(queries.select(UsageFiles(gateway.store.usage.folder)))
    assert {record.id: record.status for record in kept} == {
        answer.headers["x-request-id"]: answer.status for answer in answers
    }
    assert sum(record.charge_micros for record in kept) == served * CHARGE


@pytest.mark.parametrize("name", REFUSING)
async def test_requests_are_refused_while_the_store_fails(
    name: str, store: OwnStore, gateway: Running, upstream: Gated
) -> None:
    token = await gateway.token()
    stream = await begun(gateway, token)
    called = len(upstream.requests)
    await REFUSING[name].begin(store)
    assert not stream.done()
    requests = [*[chat(token)] * 10, get("/v1/models", token), get("/v1/account", token)]
    answers, slowest = [], WITHIN_S
    for _ in range(3):  # a machine that stands still for a moment makes one round slow
        refused = await asyncio.gather(*(timed(ask(gateway.port, request)) for request in requests))
        for answer, _ in refused:
            assert_error(answer, 503, "service_error", "service_unavailable")
        answers += [answer for answer, _ in refused]
        if (slowest := max(seconds for _, seconds in refused)) < WITHIN_S:
            break
    assert slowest < WITHIN_S
    assert len(upstream.requests) == called
    upstream.gate.set()
    await REFUSING[name].end(store)
    open_one = await stream
    assert (open_one.status, open_one.whole, open_one.body) == (200, True, PASSED)
    after = await ask(gateway.port, chat(token))
    assert after.status == 200
    await assert_books(gateway, [*answers, open_one, after], served=2)


@pytest.mark.parametrize("name", PASSING)
async def test_requests_are_served_after_a_passing_store_fault(
    name: str, store: OwnStore, gateway: Running, upstream: Gated
) -> None:
    token = await gateway.token()
    stream = await begun(gateway, token)
    await PASSING[name].begin(store)
    assert not stream.done()
    upstream.gate.set()
    answers = await asyncio.gather(stream, *(ask(gateway.port, chat(token)) for _ in range(10)))
    assert [(answer.status, answer.whole) for answer in answers] == [(200, True)] * 11
    await assert_books(gateway, answers, served=11)


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
        while (
            len(list(queries.select(UsageFiles(gateway.store.usage.folder)))) < count or gateway.store.journal.waiting()
        ):
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
    rows = {row.id: row for row in queries.select(UsageFiles(gateway.store.usage.folder))}
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
