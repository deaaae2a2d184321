"""The usage log is followed over the admin port, and in the files when that breaks, without a gap."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import cast

import pytest
from aiohttp import web
from pytest_aiohttp import AiohttpRawServer

from gateway.admin.actions import usage
from gateway.admin.actions.links import AdminToken, token_of
from gateway.admin.actions.management_tokens import ManagementTokens
from gateway.admin.actions.remote import Feed, FeedElsewhere, HttpClient
from gateway.admin.http.app import Admin, Callers
from gateway.admin.http.port import serving
from gateway.admin.http.usage_feed import LiveUsage
from gateway.cli import follow
from gateway.config.schema import Config
from gateway.metrics.exporter import Exporter
from gateway.store.client.client import Client as StoreClient
from gateway.usage.database import UsageDatabase
from gateway.usage.record import Record
from tests.cli.processes import free_port
from tests.patience import PATIENCE_S
from tests.records import arrival, end, usage_database


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(data=str(tmp_path), admin=f"127.0.0.1:{free_port()}")


def admin_of(config: Config, client: StoreClient) -> Admin:
    """Return the operator's port of a configuration."""
    callers = Callers(AdminToken(config), ManagementTokens(client))
    return Admin(config.data_path / "usage", callers, Exporter({}))


async def first_of(ended: AsyncIterator[Record], rows: UsageDatabase) -> list[Record]:
    """Write records until the first one is received, and return those that were written after it."""
    first = asyncio.ensure_future(anext(ended))
    written: list[Record] = []
    while not first.done():
        written.append(end(arrival()))
        rows.write(written[-1:])
        await asyncio.wait([first], timeout=0.05)
    return written[written.index(await first) + 1 :]


async def test_a_broken_connection_is_continued_in_the_files(config: Config, client: StoreClient) -> None:
    rows = usage_database(config.data_path / "usage")
    async with AsyncExitStack() as running, aclosing(follow.ended(config)) as ended:
        served = serving(
            Admin(rows.folder, Callers(AdminToken(config), ManagementTokens(client)), Exporter({})),
            cast(str, config.admin),
        )
        await running.enter_async_context(served)
        waiting = await first_of(ended, rows)
        assert [await anext(ended) for _ in waiting] == waiting
        more = [end(arrival()) for _ in range(3)]
        rows.write(more)
        assert await anext(ended) == more[0]
        await running.aclose()
        last = end(arrival())
        rows.write([last])
        async with asyncio.timeout(PATIENCE_S):
            assert [await anext(ended) for _ in range(3)] == [*more[1:], last]
    rows.close()


async def test_the_admin_port_is_tried_first(
    config: Config, client: StoreClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = usage_database(config.data_path / "usage")
    monkeypatch.setattr(follow, "POLL_S", 3600)
    served = serving(
        Admin(rows.folder, Callers(AdminToken(config), ManagementTokens(client)), Exporter({})), cast(str, config.admin)
    )
    async with served, aclosing(follow.ended(config)) as ended, asyncio.timeout(PATIENCE_S):
        await first_of(ended, rows)
    rows.close()


@pytest.mark.parametrize("status", [200, 401, 503])
async def test_another_program_at_the_port_is_ignored(
    config: Config, aiohttp_raw_server: AiohttpRawServer, status: int
) -> None:
    token_of(config)
    paths = []

    async def answer(request: web.BaseRequest) -> web.Response:
        paths.append(request.path)
        return web.Response(status=status, text="data: {}\n\n")

    await aiohttp_raw_server(answer, port=int(cast(str, config.admin).rpartition(":")[2]))
    rows = usage_database(config.data_path / "usage")
    async with aclosing(follow.ended(config)) as ended, asyncio.timeout(PATIENCE_S):
        await first_of(ended, rows)
    assert paths == ["/usage/live"]
    rows.close()


async def test_without_a_port_the_files_are_followed(tmp_path: Path) -> None:
    rows = usage_database(tmp_path / "usage")
    async with aclosing(follow.ended(Config(data=str(tmp_path), admin=None))) as ended, asyncio.timeout(PATIENCE_S):
        await first_of(ended, rows)
    rows.close()


async def test_what_ends_elsewhere_is_followed_through_a_broken_connection(
    config: Config, client: StoreClient, aiohttp_raw_server: AiohttpRawServer, tmp_path: Path
) -> None:
    """A proxy breaks the first connection after two events; the command's client goes on with the third."""
    rows = usage_database(config.data_path / "usage")
    live, asked = LiveUsage(), list[str]()

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        asked.append(request.headers.get("Last-Event-ID", ""))
        sent = 0

        def selects(record: Record) -> bool:
            nonlocal sent
            sent += 1
            if len(asked) == 1 and sent > 2 and request.transport is not None:
                request.transport.abort()
            return True

        return await live.send(cast(web.Request, request), Feed(rows.folder, selects))

    server = await aiohttp_raw_server(answer)
    async with HttpClient.open(f"http://{server.host}:{server.port}", "a-token") as http_client:
        feed = await usage.live(http_client, query=usage.Followed())
        assert isinstance(feed, FeedElsewhere)
        async with aclosing(cast("AsyncGenerator[Record]", feed.records())) as ended:
            waiting = await first_of(ended, rows)
            waiting += [end(arrival()) for _ in range(5)]
            rows.write(waiting[-5:])
            async with asyncio.timeout(PATIENCE_S):
                assert [await anext(ended) for _ in waiting] == waiting
    assert len(asked) == 2
    assert asked[1]
    rows.close()
