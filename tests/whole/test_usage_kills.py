"""Workers, sinks, store and database are killed at random under load: each id that a caller received is in the usage log once.

They are killed 8 times, or `GATEWAY_KILLS` times.

Where the store is away, for 3 seconds or for `GATEWAY_STORE_AWAY_S`, requests that are refused are in the log afterwards.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from gateway import Outcome
from gateway.chain.services import Store
from gateway.config.schema import Config, StoreSettings, load
from gateway.fake_upstream import FakeUpstream
from gateway.runtime.data_folder import data_folder
from gateway.store.embedded import EmbeddedStore
from gateway.store.pepper import make_pepper
from gateway.testing import Running, running
from gateway.usage import queries
from gateway.usage.database import UsageFiles
from tests.cli.processes import free_port
from tests.patience import PATIENCE_S
from tests.postgres import PostgresServer
from tests.records import usage_sink
from tests.usage.test_database import rolled_up, summed
from tests.whole.conftest import CHAIN, configuration
from tests.whole.load import serving
from tests.whole.raw import ask, chat

ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the children of a process are read from /proc")

CALLERS = 6
KILLS = int(os.environ.get("GATEWAY_KILLS", "8"))


class Callers:
    """Callers that send one request after the other. `received`: ids of all responses; `refused`: ids of 503 responses."""

    def __init__(self, port: int, token: str) -> None:
        self._request = port, chat(token)
        self.received: set[str] = set()
        self.refused: set[str] = set()

    async def ask(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            with suppress(OSError, EOFError, asyncio.IncompleteReadError):
                answer = await ask(*self._request)
                self.received.add(answer.headers["x-request-id"])
                if answer.whole and answer.status == 503:
                    self.refused.add(answer.headers["x-request-id"])

    async def more(self, ids: set[str], count: int) -> None:
        """Wait until `ids` has grown by `count`."""
        before = len(ids)
        async with asyncio.timeout(PATIENCE_S):
            while len(ids) < before + count:
                await asyncio.sleep(0.02)


async def kill_at_random(
    pid: int, store: EmbeddedStore, folder: Path, callers: Callers, server: PostgresServer | None
) -> EmbeddedStore:
    """Kill workers, the sink, the store and the database; start the store again after a request was refused, and return it."""
    chance = random.Random(7)
    for turn in range(KILLS):
        await asyncio.sleep(0.2 + chance.random() * 0.3)
        if turn % 4 == 3:
            os.kill(store.pid, signal.SIGKILL)
            await asyncio.to_thread(store.stop)
            await callers.more(callers.refused, 1)
            store = await asyncio.to_thread(EmbeddedStore.start, folder)
        elif turn % 4 == 1 and server is not None:
            server.kill()
            await callers.more(callers.received, 20)
            await asyncio.to_thread(server.start)
        else:
            children: list[str] = []
            while not children:  # all may be dead, and wait longer each time before they are started again
                await asyncio.sleep(0.02)
                children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()  # noqa: ASYNC240
            with suppress(ProcessLookupError):
                os.kill(int(chance.choice(children)), signal.SIGKILL)
    return store


@ON_LINUX
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_every_id_that_a_caller_received_is_in_the_log_once(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    server = None if kind == "sqlite" else request.getfixturevalue("postgres_server")
    database = "" if server is None else request.getfixturevalue("database_url")
    folder, port = tmp_path / "store", free_port()
    store = EmbeddedStore.start(folder)
    async with FakeUpstream(pace_s=0.005, key="channel-credential-4711") as upstream:
        file = tmp_path / "gateway.yaml"
        more = (
            f"listen: 127.0.0.1:{port}\nadmin: 127.0.0.1:{free_port()}\nredis: {store.url}\ndata: {tmp_path / 'data'}"
            f"\nusage: {{database: '{database}'}}"
        )
        wide = configuration(upstream.base_url, more=more, store_timeout=StoreSettings().timeout).replace(
            "requests_per_minute: 1000", "requests_per_minute: 100000"
        )
        file.write_text(wide)
        config = load(file).config
        make_pepper(data_folder(config))
        async with Store.open(config, store.url) as stores:
            await stores.accounts.create("tester")
            await stores.wallet.credit("tester", "opening", 5_000_000_000)
            token = (await stores.tokens.create("tester")).token
            await stores.client.call("WAITAOF", 1, 0, 0)  # on the disk before the store is killed
        async with serving(file, 2, tmp_path / "serve.log") as pid:
            stop = asyncio.Event()
            callers = Callers(port, token)
            asking = [asyncio.create_task(callers.ask(stop)) for _ in range(CALLERS)]
            store = await kill_at_random(pid, store, folder, callers, server)
            await callers.more(callers.received, 50)
            stop.set()
            await asyncio.gather(*asking)
    await check_log(config, store, callers)
    store.stop()


async def check_log(config: Config, store: EmbeddedStore, callers: Callers) -> None:
    async with Store.open(config, store.url) as stores:
        usage = stores.usage
        sink = usage_sink(usage, retention_months=13, crashed_after_s=600)
        while await sink.move_batch():
            pass
        await sink.close_lost(round(time.time() * 1000))
        while await sink.move_batch():
            pass
        rows = list(queries.select(usage.home))
        outcomes = {row.id: row.outcome for row in rows}
        assert len(outcomes) == len(rows)
        assert callers.received <= outcomes.keys()
        of_refused = {outcomes[id_] for id_ in callers.refused}
        assert Outcome.REFUSED in of_refused
        assert of_refused <= {Outcome.REFUSED, Outcome.GATEWAY_CRASHED}, "a refusal is sent before its end is written"
        assert {Outcome.COMPLETED, Outcome.REFUSED} <= set(outcomes.values())
        assert None not in outcomes.values()
        assert rolled_up(usage.home) == summed(usage.home)
        assert (await usage.length(), usage.spool.files()) == (0, [])


AWAY_S = float(os.environ.get("GATEWAY_STORE_AWAY_S", "3"))
REQUESTS_PER_S = 50
WIDE = CHAIN.replace("requests_per_minute: 1000, tokens_per_minute: 1000000", "requests_per_minute: 1000000")


async def ask_evenly(gateway: Running, token: str, received: dict[str, int], stop: asyncio.Event) -> None:
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
            loading = asyncio.create_task(ask_evenly(gateway, token, received, stop))
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
    rows = {row.id: row for row in queries.select(UsageFiles(usage.folder))}
    assert rows.keys() == received.keys()
    refused = [row for row in rows.values() if row.status == 503]
    assert len(refused) >= 30
    assert {(row.outcome, row.error_code, row.charge_micros) for row in refused} == {
        (Outcome.REFUSED, "service_unavailable", 0)
    }
    assert {row.id: row.status for row in rows.values()} == received
    assert rolled_up(UsageFiles(usage.folder)) == summed(UsageFiles(usage.folder))
