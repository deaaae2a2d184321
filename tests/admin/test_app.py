"""The admin port tells what the log has to who has the token, follows it without loss, and is never in the way."""

from __future__ import annotations

import asyncio
import socket
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientResponse, ClientSession, ClientTimeout
from structlog.testing import capture_logs

from gateway.admin import app
from gateway.admin.app import Admin, serve, serving, token_of
from gateway.config.schema import Config
from gateway.errors import Misconfigured
from gateway.metrics.exporter import Exporter
from gateway.usage.database import UsageDatabase
from gateway.usage.record import Record, decode
from tests.cli.processes import free_port
from tests.patience import PATIENCE_S, soon
from tests.records import arrival, end

TOKEN = "an-admin-token-of-31-characters"


@pytest.fixture
def rows(tmp_path: Path) -> Iterator[UsageDatabase]:
    writer = UsageDatabase(tmp_path)
    yield writer
    writer.close()


@pytest.fixture
async def client(rows: UsageDatabase) -> AsyncIterator[ClientSession]:
    """Who has the token, at a port in front of `rows`."""
    async with serving(Admin(rows.folder, TOKEN, Exporter({})), "127.0.0.1:0") as port, caller(port) as session:
        yield session


@asynccontextmanager
async def caller(port: int, token: str = TOKEN) -> AsyncIterator[ClientSession]:
    headers = {"Authorization": f"Bearer {token}"}
    async with ClientSession(f"http://127.0.0.1:{port}", headers=headers, timeout=ClientTimeout(PATIENCE_S)) as session:
        yield session


@asynccontextmanager
async def following(client: ClientSession, place: str = "", **chosen: str) -> AsyncIterator[ClientResponse]:
    headers = {"Last-Event-ID": place} if place else {}
    async with client.get("/usage/live", params=chosen, headers=headers) as answer:
        assert (answer.status, answer.content_type) == (200, "text/event-stream")
        assert await answer.content.readuntil(b"\n\n") == b": from here on\n\n"
        yield answer


async def next_event(answer: ClientResponse) -> tuple[str, Record]:
    async with asyncio.timeout(PATIENCE_S):
        event = (await answer.content.readuntil(b"\n\n")).decode()
    place, data = event.splitlines()[:2]
    return place.removeprefix("id: "), decode(data.removeprefix("data: "))


async def test_each_request_is_one_event_when_it_has_ended(client: ClientSession, rows: UsageDatabase) -> None:
    rows.write([end(arrival())])
    async with following(client) as answer:
        opened, other = arrival(), arrival()
        rows.write([opened, other])
        rows.write([end(other)])
        assert (await next_event(answer))[1] == end(other)
        rows.write([end(opened)])
        assert (await next_event(answer))[1] == end(opened)


async def test_one_account_is_followed_alone(client: ClientSession, rows: UsageDatabase) -> None:
    async with following(client, account="mine") as answer:
        mine = [end(arrival(), account="mine") for _ in range(2)]
        rows.write([end(arrival()), mine[0], end(arrival()), mine[1]])
        assert [(await next_event(answer))[1] for _ in mine] == mine


async def test_a_follower_that_comes_back_is_told_what_it_missed_and_nothing_twice(
    client: ClientSession, rows: UsageDatabase
) -> None:
    told = [end(arrival()) for _ in range(5)]
    async with following(client) as answer:
        rows.write(told[:3])
        place, first = await next_event(answer)
    rows.write(told[3:])
    async with following(client, place) as answer:
        assert [first, *[(await next_event(answer))[1] for _ in told[1:]]] == told


async def test_more_than_one_batch_is_told_in_order(client: ClientSession, rows: UsageDatabase) -> None:
    async with following(client) as answer:
        told = [end(arrival()) for _ in range(1200)]
        rows.write(told)
        assert [(await next_event(answer))[1] for _ in told] == told


async def test_a_silent_log_is_told_from_a_dead_one_by_comments(
    client: ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "PING_S", 0.02)
    async with following(client) as answer, asyncio.timeout(PATIENCE_S):
        assert await answer.content.readuntil(b"\n\n") == b": ping\n\n"


async def test_a_place_that_never_was_is_refused(client: ClientSession) -> None:
    async with client.get("/usage/live", headers={"Last-Event-ID": "4711"}) as answer:
        assert (answer.status, (await answer.json())["error"]["param"]) == (400, "Last-Event-ID")


async def test_no_more_follow_than_the_port_can_serve_and_who_leaves_makes_room(
    client: ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "MOST_FOLLOWERS", 1)
    async with following(client), client.get("/usage/live") as answer:
        assert (answer.status, answer.headers["Retry-After"]) == (503, "10")
    async with asyncio.timeout(PATIENCE_S):
        while await refused(client):
            await asyncio.sleep(0.01)


async def refused(client: ClientSession) -> bool:
    async with client.get("/usage/live") as answer:
        return answer.status == 503


async def summary(client: ClientSession, **asked: str) -> Any:
    async with client.get("/usage/summary", params=asked) as answer:
        told = await answer.json()
        return told if answer.status == 200 else (answer.status, told["error"]["param"])


async def test_the_summary_adds_up_by_what_was_asked(client: ClientSession, rows: UsageDatabase) -> None:
    rows.write([end(arrival()), end(arrival(), account="other"), arrival()])
    (by_day,) = await summary(client)
    assert (by_day["requests"], by_day["charge_micros"]) == (2, 246)
    accounts = await summary(client, by="account,model")
    assert [(total["account"], total["requests"]) for total in accounts] == [("demo", 1), ("other", 1)]
    assert await summary(client, **{"from": "2001-01-01", "to": "2001-01-02"}) == []


@pytest.mark.parametrize(("name", "value"), [("by", "nope"), ("by", "day;--"), ("from", "2026-13-01"), ("to", "x")])
async def test_a_summary_that_cannot_be_made_is_refused(client: ClientSession, name: str, value: str) -> None:
    assert await summary(client, **{name: value}) == (400, name)


@pytest.mark.parametrize("token", ["", "wrong", TOKEN[:-1], "\x80"])
async def test_who_has_no_token_learns_only_that_somebody_is_here(rows: UsageDatabase, token: str) -> None:
    async with serving(Admin(rows.folder, TOKEN, Exporter({})), "127.0.0.1:0") as port, caller(port, token) as session:
        for path in ("/metrics", "/usage/live", "/usage/summary", "/nothing"):
            async with session.get(path) as answer:
                assert (answer.status, (await answer.json())["error"]["code"]) == (401, "token_invalid")
        async with session.get("/healthz") as answer:
            assert await answer.text() == "ok\n"


async def test_what_is_not_there_is_said_in_the_one_error_shape(client: ClientSession) -> None:
    for method, path, status in (("GET", "/nothing", 404), ("POST", "/usage/live", 405)):
        async with client.request(method, path) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (status, "unknown_path")


def test_the_token_is_made_once_and_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GATEWAY_ADMIN_TOKEN", raising=False)
    made = token_of(Config(data=str(tmp_path)))
    assert len(made) >= 32
    assert token_of(Config(data=str(tmp_path))) == made
    assert stat.S_IMODE((tmp_path / "admin.token").stat().st_mode) == 0o600
    monkeypatch.setenv("GATEWAY_ADMIN_TOKEN", TOKEN)
    assert token_of(Config(data=str(tmp_path))) == TOKEN
    monkeypatch.setenv("GATEWAY_ADMIN_TOKEN", "short")
    with pytest.raises(Misconfigured, match="too short"):
        token_of(Config(data=str(tmp_path)))


async def test_a_port_that_is_taken_is_said_once_and_served_when_it_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "TRY_AGAIN_S", 0.02)
    stop = asyncio.Event()
    with capture_logs() as lines, socket.create_server(("127.0.0.1", free_port())) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        running = asyncio.create_task(serve(Config(data=str(tmp_path)), address, Exporter({}), stop))
        async with asyncio.timeout(PATIENCE_S):
            while not lines:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)  # it tries again, and says nothing more
            taken.close()
            while lines[-1]["event"] != "admin_port_served":
                await asyncio.sleep(0.01)
    stop.set()
    await running
    assert [line["event"] for line in lines] == ["admin_port_not_served", "admin_port_served"]
    assert address in lines[0]["reason"]


async def test_a_stop_does_not_wait_for_followers(rows: UsageDatabase) -> None:
    async with ClientSession() as session:
        async with AsyncExitStack() as stack:
            port = await stack.enter_async_context(serving(Admin(rows.folder, TOKEN, Exporter({})), "127.0.0.1:0"))
            url, headers = f"http://127.0.0.1:{port}/usage/live", {"Authorization": f"Bearer {TOKEN}"}
            answer = await session.get(url, headers=headers)
            await soon(stack.aclose())
        assert await answer.text() == ": from here on\n\n"
