"""The admin port answers callers with the token, waits for its address, and stops without waiting for its clients."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from aiohttp import ClientSession
from structlog.testing import capture_logs

from gateway.admin.actions.local import LocalClient
from gateway.admin.actions.management_tokens import ManagementTokens
from gateway.admin.http.app import Admin, Callers
from gateway.admin.http.port import run, serving
from gateway.metrics.exporter import Exporter
from gateway.usage.database import UsageDatabase
from tests.admin.http.conftest import TOKEN, Client, ClientWith
from tests.cli.processes import free_port
from tests.patience import PATIENCE_S, soon


@pytest.mark.parametrize("token", ["", "wrong", TOKEN[:-1], "\x80"])
async def test_a_caller_without_the_token_learns_only_that_the_port_is_served(
    client_with: ClientWith, token: str
) -> None:
    client = await client_with(token)
    for path in ("/metrics", "/api/v1/usage/live", "/api/v1/usage/summary", "/nothing"):
        async with client.get(path) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (401, "token_invalid")
    async with client.get("/healthz") as response:
        assert await response.text() == "ok\n"


@pytest.mark.parametrize(
    ("scope", "statuses"),
    [("metrics", [200, 403, 403]), ("read", [200, 200, 403]), ("money", [403, 403, 403])],
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
        running = asyncio.create_task(run(Admin(callers, Exporter({})), address, stop))
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
    rows: UsageDatabase, callers: Callers, local_client: LocalClient
) -> None:
    async with ClientSession() as session:
        async with AsyncExitStack() as stack:
            admin = Admin(callers, Exporter({}), lambda *_: local_client)
            port = await stack.enter_async_context(serving(admin, "127.0.0.1:0"))
            url, headers = f"http://127.0.0.1:{port}/api/v1/usage/live", {"Authorization": f"Bearer {TOKEN}"}
            response = await session.get(url, headers=headers)
            await soon(stack.aclose())
        assert await response.text() == ": from here on\n\n"


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /a b HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost a\r\n\r\n",
        b"GET /enter?ticket=canary%b HTTP/1.1\r\n\r\n" % (b"x" * 9000),
    ],
)
async def test_also_what_is_no_http_is_answered_with_the_headers_of_every_answer(
    rows: UsageDatabase, callers: Callers, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(Admin(callers, Exporter({})), "127.0.0.1:0") as port:
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
