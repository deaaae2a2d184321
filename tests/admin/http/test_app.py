"""The operator's port: its token, its callers and connections, and the live stream."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import ClientResponse, ClientSession, web
from structlog.testing import capture_logs

from gateway.admin.actions.action import Scope
from gateway.admin.actions.local import LocalClient
from gateway.admin.actions.management_tokens import ManagementTokens
from gateway.admin.http import port, usage_feed
from gateway.admin.http.app import ADMIN, Admin, Callers
from gateway.admin.http.port import run, serving
from gateway.base.errors import Refused, StoreAway
from gateway.metrics.exporter import Exporter
from gateway.usage.database import UsageFiles
from gateway.usage.record import Record, decode
from tests.admin.http.conftest import TOKEN, Client, ClientWith
from tests.cli.processes import free_port
from tests.patience import PATIENCE_S, soon
from tests.records import arrival, end


def assert_private(response: ClientResponse) -> None:
    """Assert that no browser runs, frames or keeps the answer."""
    assert response.headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert (response.headers["X-Content-Type-Options"], response.headers["Cache-Control"]) == ("nosniff", "no-store")


# The admin port answers callers with the token, waits for its address, and stops without waiting for its clients.
@pytest.mark.parametrize("token", ["", "wrong", TOKEN[:-1], "\x80", "sk-mgmt-000000000000-guessed"])
async def test_a_caller_without_the_token_learns_only_that_the_port_is_served(
    client_with: ClientWith, token: str
) -> None:
    client = await client_with(token)
    for path in ("/metrics", "/api/v1/usage/live", "/api/v1/usage/summary", "/nothing"):
        async with client.get(path) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (401, "token_invalid")
            assert_private(response)
    async with client.get("/healthz") as response:
        assert await response.text() == "ok\n"
        assert_private(response)


@pytest.mark.parametrize(
    ("scope", "statuses"), [("metrics", [200, 403, 403]), ("read", [200, 200, 403]), ("money", [403, 403, 403])]
)
async def test_a_token_for_metrics_reads_nothing_else(
    api: Client, tokens: ManagementTokens, scope: str, statuses: list[int]
) -> None:
    _, token = await tokens.create("prometheus", [scope], None, "test")
    found = []
    for path in ("/metrics", "/api/v1/accounts", "/api/v1/management-tokens"):
        async with api.get(path, headers={"Authorization": f"Bearer {token}"}) as response:
            found.append(response.status)
    assert found == statuses


async def test_unknown_paths_and_methods_have_the_shape_of_all_errors(client: Client) -> None:
    for method, path, status, code in (
        ("GET", "/nothing", 404, "unknown_path"),
        ("POST", "/api/v1/usage/live", 405, "method_not_allowed"),
    ):
        async with client.request(method, path) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (status, code)


async def test_a_taken_port_is_logged_once_and_served_when_it_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, callers: Callers
) -> None:
    monkeypatch.setattr("gateway.admin.http.port.RETRY_INTERVAL_S", 0.02)
    stop = asyncio.Event()
    with capture_logs() as lines, socket.create_server(("127.0.0.1", free_port())) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        running = asyncio.create_task(run(Admin(callers, Exporter({})).application(), address, stop))
        async with asyncio.timeout(PATIENCE_S):
            while not lines:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)  # it tries again, and logs nothing more
            taken.close()
            while lines[-1]["event"] != "admin_port_served":
                await asyncio.sleep(0.01)
    stop.set()
    await running
    assert [line["event"] for line in lines] == ["admin_port_not_served", "admin_port_served"]
    assert address in lines[0]["reason"]


async def test_a_stop_does_not_wait_for_live_streams(
    rows: UsageFiles, callers: Callers, local_client: LocalClient
) -> None:
    async with ClientSession() as session:
        async with AsyncExitStack() as stack:
            admin = Admin(callers, Exporter({}), lambda *_: local_client)
            port = await stack.enter_async_context(serving(admin.application(), "127.0.0.1:0"))
            url, headers = f"http://127.0.0.1:{port}/api/v1/usage/live", {"Authorization": f"Bearer {TOKEN}"}
            response = await session.get(url, headers=headers)
            await soon(stack.aclose())
        assert await response.text() == ": from here on\n\n"


@pytest.mark.parametrize(
    "sent",
    [
        *(b"GET /a b HTTP/1.1\r\n\r\n", b"\x16\x03\x01\r\n\r\n", b"GET / HTTP/1.1\r\nHost a\r\n\r\n"),
        b"GET /enter?ticket=canary%b HTTP/1.1\r\n\r\n" % (b"x" * 9000),
    ],
)
async def test_also_what_is_no_http_is_answered_with_the_headers_of_every_answer(
    rows: UsageFiles, callers: Callers, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(Admin(callers, Exporter({})).application(), "127.0.0.1:0") as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
        writer.close()
    assert answer.startswith(b"HTTP/1.0 400") or answer.startswith(b"HTTP/1.1 400")
    assert b"Content-Security-Policy: default-src 'none'" in answer
    assert b"X-Content-Type-Options: nosniff" in answer
    error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert error["code"] == "invalid_request"
    assert f"x-request-id: {error['request_id']}".encode() in answer.lower()
    assert b"canary" not in answer
    assert caplog.text == ""


# The connections of the operator's port: what is sent is not decompressed, and an idle one is closed.
def echo() -> web.Application:
    """Return what answers with the body that it read, as both ports of the operator's process serve theirs."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=await request.read())

    application = web.Application()
    application.router.add_post("/", answer)
    return application


@pytest.mark.parametrize("body", [gzip.compress(bytes(1000), mtime=0), b"no gzip"])
async def test_a_body_is_not_decompressed(body: bytes) -> None:
    async with port.serving(echo(), "127.0.0.1:0") as number, ClientSession() as session:
        headers = {"Content-Encoding": "gzip"}
        async with session.post(f"http://127.0.0.1:{number}/", data=body, headers=headers) as response:
            assert (response.status, await response.read()) == (200, body)


async def test_an_idle_connection_is_closed(callers: Callers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port, "IDLE_S", 0.3)
    async with port.serving(Admin(callers, Exporter({})).application(), "127.0.0.1:0") as number:
        reader, writer = await asyncio.open_connection("127.0.0.1", number)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await soon(reader.read())).endswith(b"ok\n")
        writer.close()


# Wrong tokens are counted, and logged with their address.
class Counted:
    """Callers, and how many wrong tokens they counted."""

    def __init__(self, tokens: ManagementTokens) -> None:
        self.wrong = 0
        self.callers = Callers(lambda: TOKEN, tokens, self._count)

    def _count(self) -> None:
        self.wrong += 1

    async def code(self, authorization: str, address: str = "192.0.2.1") -> str:
        try:
            return (await self.callers.of(authorization, address)).name
        except Refused as refused:
            return refused.code


@pytest.fixture
def counted(tokens: ManagementTokens) -> Counted:
    return Counted(tokens)


@pytest.mark.parametrize(
    "authorization",
    [
        "Bearer wrong",
        f"Basic {TOKEN}",
        TOKEN,
        "Bearer ",
        f"Bearer {TOKEN} x",
        *("Bearer \udcff", "Bearer sk-mgmt-a-b", "Bearer"),
    ],
)
async def test_what_is_no_token_is_refused_and_counted(counted: Counted, authorization: str) -> None:
    assert await counted.code(authorization) == "token_invalid"
    assert counted.wrong == 1


async def test_none_is_refused_and_not_counted(counted: Counted) -> None:
    assert await counted.code("") == "token_invalid"
    assert counted.wrong == 0


async def test_the_right_ones_are_told_apart(counted: Counted, tokens: ManagementTokens) -> None:
    assert await counted.callers.of(f"bearer  {TOKEN}", "192.0.2.1") == ADMIN
    made, text = await tokens.create("shop", ["read", "of-a-later-version"], None, "test")
    actor = await counted.callers.of(f"Bearer {text}", "192.0.2.1")
    assert (actor.name, actor.scopes, actor.token) == (f"token {made.id} shop", {Scope.READ}, made.id)


async def test_a_wrong_one_is_logged_with_its_address_and_without_its_text(counted: Counted) -> None:
    with capture_logs() as lines:
        assert await counted.code("Bearer canary") == "token_invalid"
    assert [(line["event"], line["address"]) for line in lines] == [("admin_tokens_wrong", "192.0.2.1")]
    assert "canary" not in str(lines)


async def test_the_admin_token_needs_no_store_and_others_are_not_refused_for_want_of_one(
    counted: Counted, tokens: ManagementTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(_: str) -> None:
        raise StoreAway("away")

    monkeypatch.setattr(tokens, "authenticate", away)
    assert await counted.code(f"Bearer {TOKEN}") == ADMIN.name
    with pytest.raises(StoreAway):
        await counted.callers.of("Bearer sk-mgmt-a-b", "192.0.2.1")
    assert counted.wrong == 0


# The live stream sends each request once when it has ended, in order, and goes on after a reconnection without loss.
@asynccontextmanager
async def following(client: Client, last_event_id: str = "", **query: str) -> AsyncIterator[ClientResponse]:
    headers = {"Last-Event-ID": last_event_id} if last_event_id else {}
    async with client.get("/api/v1/usage/live", params=query, headers=headers) as response:
        assert (response.status, response.content_type) == (200, "text/event-stream")
        assert await response.content.readuntil(b"\n\n") == b": from here on\n\n"
        yield response


async def next_event(response: ClientResponse) -> tuple[str, Record]:
    """Return the next event's id and record."""
    async with asyncio.timeout(PATIENCE_S):
        event = (await response.content.readuntil(b"\n\n")).decode()
    event_id, data = event.splitlines()[:2]
    return event_id.removeprefix("id: "), decode(data.removeprefix("data: "))


async def test_each_request_is_one_event_when_it_has_ended(client: Client, rows: UsageFiles) -> None:
    rows.write([end(arrival())])
    async with following(client) as response:
        opened, other = arrival(), arrival()
        rows.write([opened, other])
        rows.write([end(other)])
        assert (await next_event(response))[1] == end(other)
        rows.write([end(opened)])
        assert (await next_event(response))[1] == end(opened)


async def test_one_account_is_selected(client: Client, rows: UsageFiles) -> None:
    async with following(client, account="mine") as response:
        mine = [end(arrival(), account="mine") for _ in range(2)]
        rows.write([end(arrival()), mine[0], end(arrival()), mine[1]])
        assert [(await next_event(response))[1] for _ in mine] == mine


async def test_a_client_that_reconnects_gets_what_it_missed_and_nothing_twice(client: Client, rows: UsageFiles) -> None:
    ends = [end(arrival()) for _ in range(5)]
    async with following(client) as response:
        rows.write(ends[:3])
        last_event_id, first = await next_event(response)
    rows.write(ends[3:])
    async with following(client, last_event_id) as response:
        assert [first, *[(await next_event(response))[1] for _ in ends[1:]]] == ends


async def test_more_than_one_batch_is_sent_in_order(client: Client, rows: UsageFiles) -> None:
    async with following(client) as response:
        ends = [end(arrival()) for _ in range(1200)]
        rows.write(ends)
        assert [(await next_event(response))[1] for _ in ends] == ends


async def test_comments_show_that_the_stream_of_a_quiet_log_works(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_feed, "PING_S", 0.02)
    async with following(client) as response, asyncio.timeout(PATIENCE_S):
        assert await response.content.readuntil(b"\n\n") == b": ping\n\n"


async def test_an_event_id_that_never_was_is_refused(client: Client) -> None:
    async with client.get("/api/v1/usage/live", headers={"Last-Event-ID": "4711"}) as response:
        assert (response.status, (await response.json())["error"]["param"]) == (400, "Last-Event-ID")
