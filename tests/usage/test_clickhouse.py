"""What ends is in ClickHouse once, however often it was sent and whatever failed meanwhile.

The statements run on the engine itself where it is installed (`pip install chdb`), behind the few lines of HTTP that a server
has before it; without it only what needs no engine is tried.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from gateway.config.schema import Config, UsageSettings
from gateway.errors import GatewayError, StoreAway
from gateway.exchange import Outcome
from gateway.store.client.client import Client
from gateway.usage import clickhouse, queries
from gateway.usage.clickhouse import VIEW, ClickHouse, Copier
from gateway.usage.database import GROUPS, UsageDatabase
from gateway.usage.log import UsageLog
from tests.patience import PATIENCE_S
from tests.records import arrival, end

NAME, PASSWORD = "sluice", "database-password-0815"


class Server:
    """HTTP before the engine, or, without one, before nothing: then it takes whatever comes."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.fails = 0
        self.statements: list[str] = []
        self.data: list[str] = []
        self.url = ""

    async def answer(self, request: web.BaseRequest) -> web.Response:
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
            return web.Response()
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


async def listening(server: Server) -> AsyncIterator[Server]:
    runner = web.ServerRunner(web.Server(server.answer))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://{NAME}:{PASSWORD}@127.0.0.1:{runner.addresses[0][1]}/records"
    yield server
    await runner.cleanup()


@pytest.fixture
async def server(engine: Any) -> AsyncIterator[Server]:
    async for listens in listening(Server(engine)):
        yield listens


@pytest.fixture
async def hollow() -> AsyncIterator[Server]:
    async for listens in listening(Server(None)):
        yield listens


@pytest.fixture
def rows(tmp_path: Path) -> Iterator[UsageDatabase]:
    writer = UsageDatabase(tmp_path / "usage")
    yield writer
    writer.close()


def copier(server: Server, rows: UsageDatabase) -> Copier:
    return Copier(ClickHouse(server.url), rows.folder)


async def drain(copying: Copier) -> int:
    total = 0
    while moved := await copying.step():
        total += moved
    return total


async def rolled_up(server: Server) -> list[dict[str, Any]]:
    lines = await ClickHouse(server.url).run(f"SELECT * FROM {VIEW} ORDER BY {', '.join(GROUPS)} FORMAT JSONEachRow")
    return [msgspec.json.decode(line) for line in lines.splitlines()]


async def test_the_view_there_equals_the_roll_up_here(server: Server, rows: UsageDatabase) -> None:
    ended = [
        end(arrival(), account=f"a{n % 3}", charge_micros=n, first_byte_ms=None if n % 2 else n) for n in range(50)
    ]
    rows.write([*ended, end(arrival(), outcome=Outcome.REFUSED, status=401, model="", channel=""), arrival()])
    assert await drain(copier(server, rows)) == 51
    assert await rolled_up(server) == queries.summary(rows.folder, GROUPS)


async def test_what_is_sent_twice_is_there_once(server: Server, rows: UsageDatabase) -> None:
    rows.write([end(arrival()) for _ in range(5)])
    assert await drain(copier(server, rows)) == 5
    (rows.folder / "clickhouse.place").unlink()
    assert await drain(copier(server, rows)) == 5
    assert await rolled_up(server) == queries.summary(rows.folder, GROUPS)


@pytest.mark.parametrize("guessed_first", [True, False])
async def test_a_true_end_replaces_a_guess_whichever_came_first(
    server: Server, rows: UsageDatabase, guessed_first: bool
) -> None:
    ended = end(arrival())
    guess = end(ended, outcome=Outcome.GATEWAY_CRASHED, account="", charge_micros=0)
    database = ClickHouse(server.url)
    await database.prepare()
    for record in (guess, ended) if guessed_first else (ended, guess):
        await database.keep([record])
    assert await database.find(ended.id) == ended


async def test_every_field_comes_back_as_it_went(server: Server) -> None:
    database = ClickHouse(server.url)
    await database.prepare()
    odd = end(arrival(), first_byte_ms=None, upstream_request_id="'; DROP TABLE x; --\\ \"ü\n", bytes=2**53)
    await database.keep([odd])
    assert await database.find(odd.id) == odd
    assert await database.find(arrival().id) is None


async def test_a_request_that_another_machine_served_is_found(
    server: Server, rows: UsageDatabase, client: Client
) -> None:
    elsewhere, mine = end(arrival()), end(arrival())
    database = ClickHouse(server.url)
    await database.prepare()
    await database.keep([elsewhere])
    rows.write([mine])
    usage = UsageLog(client, rows.folder, elsewhere=database)
    assert await usage.find(elsewhere.id, "demo") == elsewhere
    assert await usage.find(elsewhere.id, "other") is None
    assert await usage.find(mine.id) == mine


async def test_what_fails_is_sent_again_from_where_it_was(hollow: Server, rows: UsageDatabase) -> None:
    copying = copier(hollow, rows)
    rows.write([end(arrival()) for _ in range(3)])
    await copying.step()
    rows.write([end(arrival()) for _ in range(2)])
    hollow.fails = 1
    with pytest.raises(GatewayError, match="Memory limit") as failed:
        await copying.step()
    assert PASSWORD not in str(failed.value)
    assert await copier(hollow, rows).step() == 2
    assert await copying.step() == 0


async def test_a_server_that_is_away_is_said_once_and_its_return_too(
    hollow: Server, rows: UsageDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clickhouse, "TRY_AGAIN_S", 0.01)
    monkeypatch.setattr(clickhouse, "POLL_S", 0.01)
    rows.write([end(arrival())])
    hollow.fails, stop = 3, asyncio.Event()
    with capture_logs() as lines:
        running = asyncio.create_task(copier(hollow, rows).run(stop))
        async with asyncio.timeout(PATIENCE_S):
            while len(lines) < 2:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)  # and nothing more is said
        stop.set()
        await running
    assert [line["event"] for line in lines] == ["clickhouse_waits", "clickhouse_goes_on"]
    assert PASSWORD not in str(lines)


async def test_nobody_is_told_of_other_machines_while_they_cannot_be_asked(client: Client, rows: UsageDatabase) -> None:
    nowhere = ClickHouse(f"http://{NAME}:{PASSWORD}@127.0.0.1:1/records", timeout_s=1)
    usage = UsageLog(client, rows.folder, elsewhere=nowhere)
    with pytest.raises(StoreAway) as away:
        await usage.find(arrival().id)
    assert PASSWORD not in str(away.value)
    assert await usage.find("nonsense") is None, "what is no id is asked of nobody"


@pytest.mark.parametrize("wrong", ["clickhouse:8123", "ftp://host/", "https://", "http://host:70000/x", "http://a b/"])
def test_an_address_that_is_none_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="clickhouse must be like"):
        UsageSettings(clickhouse=wrong)


def test_the_credential_is_in_no_repr() -> None:
    config = Config(usage=UsageSettings(clickhouse=f"https://{NAME}:{PASSWORD}@host:8443/records"))
    assert PASSWORD not in repr(config)
