"""Each request that ended is in ClickHouse once, however often it was sent and whatever failed meanwhile.

The statements run on the engine itself where it is installed (`pip install chdb`), behind a few lines of HTTP. Without it
only the tests that need no engine run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from aiohttp import web
from pytest_aiohttp import AiohttpServer
from structlog.testing import capture_logs

from gateway.base.errors import GatewayError, StoreAway
from gateway.config.schema import Config, UsageSettings
from gateway.domain.exchange import Outcome
from gateway.store.client.client import Client
from gateway.usage import clickhouse
from gateway.usage.clickhouse import VIEW, ClickHouse, Copier
from gateway.usage.database import COLUMNS, GROUPS, UsageFiles
from gateway.usage.log import UsageLog
from gateway.usage.sums import Selected, grouped
from tests.patience import PATIENCE_S
from tests.records import COSTED, arrival, end, usage_database

NAME, PASSWORD = "sluice", "database-password-0815"


class Server:
    """The HTTP interface of an engine. Without an engine it accepts every statement and returns nothing."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.fails = 0
        self.statements: list[str] = []
        self.data: list[str] = []
        self.url = ""
        self.columns = ""
        """What is returned where there is no engine."""

    async def start(self, aiohttp_server: AiohttpServer) -> None:
        app = web.Application()
        app.router.add_post("/", self.answer)
        running = await aiohttp_server(app)
        self.url = f"http://{NAME}:{PASSWORD}@{running.host}:{running.port}/records"

    async def answer(self, request: web.Request) -> web.Response:
        assert request.headers["X-ClickHouse-User"] == NAME
        assert request.headers["X-ClickHouse-Key"] == PASSWORD
        assert request.headers["X-ClickHouse-Database"] == "records"
        statement, data = request.query["query"], (await request.read()).decode()
        self.statements.append(statement)
        self.data.append(data)
        if self.fails:
            self.fails -= 1
            return web.Response(status=500, text=f"Code: 241. Memory limit\n{PASSWORD}")
        if self.engine is None:
            return web.Response(text=self.columns)
        for name, value in request.query.items():
            if name.startswith("param_"):
                statement = statement.replace(f"{{{name[6:]}:String}}", f"'{value}'")
        try:
            return web.Response(body=self.engine.query(f"{statement}\n{data}").bytes())
        except Exception as error:
            return web.Response(status=400, text=str(error))


@pytest.fixture(scope="session")
def chdb() -> ModuleType:
    engine: ModuleType = pytest.importorskip("chdb.session", reason="the engine is not installed: pip install chdb")
    return engine


@pytest.fixture
def engine(chdb: ModuleType, tmp_path: Path) -> Iterator[Any]:
    session = chdb.Session(str(tmp_path / "engine"))
    yield session
    session.close()


@pytest.fixture
async def server(engine: Any, aiohttp_server: AiohttpServer) -> Server:
    server = Server(engine)
    await server.start(aiohttp_server)
    return server


@pytest.fixture
async def server_without_engine(aiohttp_server: AiohttpServer) -> Server:
    server = Server(None)
    await server.start(aiohttp_server)
    return server


@pytest.fixture
def database(tmp_path: Path) -> Iterator[UsageFiles]:
    database = usage_database(tmp_path / "usage")
    yield database
    database.close()


def copier(server: Server, database: UsageFiles) -> Copier:
    return Copier(ClickHouse(server.url), UsageFiles(database.folder))


async def drain(worker: Copier) -> int:
    total = 0
    while copied := await worker.copy_batch():
        total += copied
    return total


async def rolled_up(server: Server) -> list[dict[str, Any]]:
    lines = await ClickHouse(server.url).execute(
        f"SELECT * FROM {VIEW} ORDER BY {', '.join(GROUPS)} FORMAT JSONEachRow"
    )
    return [msgspec.json.decode(line) for line in lines.splitlines()]


async def test_the_view_in_clickhouse_equals_the_sums_in_the_files(server: Server, database: UsageFiles) -> None:
    ended = [
        end(
            arrival(),
            account=f"a{n % 3}",
            charge_micros=n,
            first_byte_ms=None if n % 2 else n,
            **(COSTED if n % 5 else {}),
        )
        for n in range(50)
    ]
    database.write([*ended, end(arrival(), outcome=Outcome.REFUSED, status=401, model="", channel=""), arrival()])
    assert await drain(copier(server, database)) == 51
    assert await rolled_up(server) == grouped(UsageFiles(database.folder), GROUPS, Selected(), [])


async def test_a_record_that_is_sent_twice_is_stored_once(server: Server, database: UsageFiles) -> None:
    database.write([end(arrival()) for _ in range(5)])
    assert await drain(copier(server, database)) == 5
    (database.folder / "clickhouse.place").unlink()
    assert await drain(copier(server, database)) == 5
    assert await rolled_up(server) == grouped(UsageFiles(database.folder), GROUPS, Selected(), [])


@pytest.mark.parametrize("presumed_first", [True, False])
async def test_an_actual_end_replaces_a_presumed_one_in_either_order(
    server: Server, database: UsageFiles, presumed_first: bool
) -> None:
    ended = end(arrival())
    presumed = end(ended, outcome=Outcome.GATEWAY_CRASHED, account="", charge_micros=0)
    remote = ClickHouse(server.url)
    await remote.create_tables()
    for record in (presumed, ended) if presumed_first else (ended, presumed):
        await remote.insert([record])
    assert await remote.find(ended.id) == ended


async def test_every_field_is_read_as_it_was_written(server: Server) -> None:
    remote = ClickHouse(server.url)
    await remote.create_tables()
    odd = end(arrival(), first_byte_ms=None, upstream_request_id="'; DROP TABLE x; --\\ \"ü\n", bytes=2**53)
    await remote.insert([odd])
    assert await remote.find(odd.id) == odd
    assert await remote.find(arrival().id) is None


async def test_a_table_of_another_version_is_refused(server_without_engine: Server) -> None:
    remote = ClickHouse(server_without_engine.url)
    for present in ((), COLUMNS):
        server_without_engine.columns = "\t".join(present)
        await remote.create_tables()
    server_without_engine.columns = "\t".join(COLUMNS[:-1])
    with pytest.raises(GatewayError, match="is of another version of the gateway: rename it, and drop the view"):
        await remote.create_tables()


async def test_a_request_that_another_machine_served_is_found(
    server: Server, database: UsageFiles, client: Client
) -> None:
    remote_record, local_record = end(arrival()), end(arrival())
    remote = ClickHouse(server.url)
    await remote.create_tables()
    await remote.insert([remote_record])
    database.write([local_record])
    usage = UsageLog(client, UsageFiles(database.folder), clickhouse=remote)
    assert (await usage.ask(remote_record.id, "demo")).record == remote_record
    assert (await usage.ask(remote_record.id, "other")).record is None
    assert (await usage.ask(local_record.id)).record == local_record


async def test_a_batch_that_failed_is_sent_again(server_without_engine: Server, database: UsageFiles) -> None:
    worker = copier(server_without_engine, database)
    database.write([end(arrival()) for _ in range(3)])
    await worker.copy_batch()
    database.write([end(arrival()) for _ in range(2)])
    server_without_engine.fails = 1
    with pytest.raises(GatewayError, match="Memory limit") as failed:
        await worker.copy_batch()
    assert PASSWORD not in str(failed.value)
    assert await copier(server_without_engine, database).copy_batch() == 2
    assert await worker.copy_batch() == 0


async def test_an_outage_is_logged_once_and_its_end_too(
    server_without_engine: Server, database: UsageFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clickhouse, "RETRY_S", 0.01)
    monkeypatch.setattr(clickhouse, "POLL_S", 0.01)
    database.write([end(arrival())])
    server_without_engine.fails, stop = 3, asyncio.Event()
    with capture_logs() as lines:
        running = asyncio.create_task(copier(server_without_engine, database).run(stop))
        async with asyncio.timeout(PATIENCE_S):
            while len(lines) < 2:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)  # and nothing more is logged
        stop.set()
        await running
    assert [line["event"] for line in lines] == ["clickhouse_waits", "clickhouse_goes_on"]
    assert PASSWORD not in str(lines)


async def test_an_unknown_request_raises_while_clickhouse_is_away(client: Client, database: UsageFiles) -> None:
    nowhere = ClickHouse(f"http://{NAME}:{PASSWORD}@127.0.0.1:1/records", timeout_s=1)
    usage = UsageLog(client, UsageFiles(database.folder), clickhouse=nowhere)
    with pytest.raises(StoreAway) as away:
        await usage.ask(arrival().id)
    assert PASSWORD not in str(away.value)
    assert (await usage.ask("nonsense")).record is None, "what is no id is not looked up"


@pytest.mark.parametrize("wrong", ["clickhouse:8123", "ftp://host/", "https://", "http://host:70000/x", "http://a b/"])
def test_an_invalid_url_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="clickhouse must be like"):
        UsageSettings(clickhouse=wrong)


def test_the_credential_is_in_no_repr() -> None:
    config = Config(usage=UsageSettings(clickhouse=f"https://{NAME}:{PASSWORD}@host:8443/records"))
    assert PASSWORD not in repr(config)
