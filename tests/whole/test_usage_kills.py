"""Workers, sinks, store and database are killed at random under load: each id that a caller received is in the usage log once.

They are killed 8 times, or `GATEWAY_KILLS` times.
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
from gateway.usage import queries
from tests.cli.processes import free_port
from tests.patience import PATIENCE_S
from tests.postgres import PostgresServer
from tests.records import usage_sink
from tests.usage.test_database import rolled_up, summed
from tests.whole.conftest import configuration
from tests.whole.load import serving
from tests.whole.raw import ask, chat

CALLERS = 6
KILLS = int(os.environ.get("GATEWAY_KILLS", "8"))

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the children of a process are read from /proc")


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
