"""What callers get through the shipped nginx.conf and Caddyfile, with the real programs where they are installed."""

from __future__ import annotations

import json
import re
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest

from gateway.fake_upstream import FakeUpstream
from tests.cli.processes import free_port
from tests.patience import wait_until
from tests.reverse_proxies import AUTHORITY, SHIPPED, ends_cut_streams_as_whole, shipped_proxy
from tests.whole.conftest import Serve
from tests.whole.scripted import CHUNKED, Fin, Forever, Gated, Scripted, chunk

EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"one"}}]}\n\n'
END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
CHAT = {"model": "words", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
TRUSTING = "port: {trusted_proxies: [127.0.0.1], max_body: 100000}"


@pytest.fixture(params=sorted(SHIPPED))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    tls = ssl.create_default_context()
    AUTHORITY.configure_trust(tls)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls)) as session:
        yield session


async def error_of(response: aiohttp.ClientResponse) -> tuple[int, str, str]:
    """Return status, code and message, and check that the error is the gateway's."""
    assert response.content_type == "application/json", await response.text()
    error = json.loads(await response.read())["error"]
    assert error["request_id"] == response.headers["x-request-id"]
    return response.status, error["code"], error["message"]


async def test_paths_limits_and_addresses(
    name: str, session: aiohttp.ClientSession, serve: Serve, tmp_path: Path
) -> None:
    async with (
        FakeUpstream(pace_s=0, key="channel-credential-4711") as upstream,
        serve(upstream.base_url, more=TRUSTING) as gateway,
        shipped_proxy(name, tmp_path / name, gateway.port) as base,
    ):
        await gateway.token()
        restricted = (await gateway.store.tokens.create("tester", addresses=("127.0.0.1",))).token
        other = (await gateway.store.tokens.create("tester", addresses=("192.0.2.0/24",))).token
        for path, code, sentence in (
            ("/chat/completions", "unknown_path", "must end in /v1"),
            ("/v1/v1/models", "unknown_path", "repeated /v1"),
            ("/", "unknown_path", "Known here"),
            ("/v1/models", "token_missing", "No token was sent"),
        ):
            async with session.get(f"{base}{path}") as response:
                status, found, message = await error_of(response)
                assert (status in (401, 404), found) == (True, code)
                assert sentence in message
        for path in ("/healthz", "/readyz"):
            async with session.get(f"{base}{path}") as response:
                assert (response.status, "x-request-id" in response.headers) == (404, False)
        headers = {"Authorization": f"Bearer {restricted}", "X-Forwarded-For": "192.0.2.7"}
        async with session.post(f"{base}/v1/chat/completions", json=CHAT, headers=headers) as response:
            assert response.status == 200, await response.text()
            assert (await response.text()).endswith("data: [DONE]\n\n")
        headers["Authorization"] = f"Bearer {other}"
        async with session.get(f"{base}/v1/models", headers=headers) as response:
            assert (await error_of(response))[:2] == (403, "token_restricted")
        headers["Authorization"] = f"Bearer {restricted}"
        large = {**CHAT, "messages": [{"role": "user", "content": "x" * 200_000}]}
        async with session.post(f"{base}/v1/chat/completions", json=large, headers=headers) as response:
            assert (await error_of(response))[:2] == (413, "body_too_large")


async def test_events_come_as_they_are_sent_and_a_cut_stream_is_cut(
    name: str, session: aiohttp.ClientSession, serve: Serve, tmp_path: Path
) -> None:
    async with (
        Gated(EVENT, END) as upstream,
        serve(upstream.base_url) as gateway,
        shipped_proxy(name, tmp_path / name, gateway.port) as base,
    ):
        headers = {"Authorization": f"Bearer {await gateway.token()}"}
        async with session.post(f"{base}/v1/chat/completions", json=CHAT, headers=headers) as response:
            assert response.status == 200
            assert await response.content.readany() == EVENT
            upstream.gate.set()
            assert (await response.read()).endswith(END)
        upstream.scripts = ([CHUNKED + chunk(EVENT), Fin],)
        received = b""
        with suppress(aiohttp.ClientError) if ends_cut_streams_as_whole(name) else pytest.raises(aiohttp.ClientError):
            async with session.post(f"{base}/v1/chat/completions", json=CHAT, headers=headers) as response:
                async for piece in response.content.iter_any():
                    received += piece
        assert received.startswith(EVENT + b'data: {"error"')


async def test_a_caller_that_leaves_is_noticed(
    name: str, session: aiohttp.ClientSession, serve: Serve, tmp_path: Path
) -> None:
    async with (
        Scripted([CHUNKED, Forever(chunk(EVENT), 0.01)]) as upstream,
        serve(upstream.base_url) as gateway,
        shipped_proxy(name, tmp_path / name, gateway.port) as base,
    ):
        headers = {"Authorization": f"Bearer {await gateway.token()}"}
        async with session.post(f"{base}/v1/chat/completions", json=CHAT, headers=headers) as response:
            assert (await response.content.readany()).startswith(EVENT)
        await wait_until(upstream.gone.is_set)


def second(name: str, port: int) -> Callable[[str], str]:
    """Return a change of the shipped file: it has a second gateway, at `port`."""
    if name == "nginx":
        return lambda text: text.replace("# server gateway-2:8080;", f"server 127.0.0.1:{port};")
    return lambda text: re.sub(r"(reverse_proxy 127\.0\.0\.1:\d+)", rf"\1 127.0.0.1:{port}", text)


async def test_a_dead_gateway_is_passed_over(
    name: str, session: aiohttp.ClientSession, serve: Serve, tmp_path: Path
) -> None:
    async with (
        FakeUpstream(pace_s=0, key="channel-credential-4711") as upstream,
        serve(upstream.base_url) as gateway,
        shipped_proxy(name, tmp_path / name, gateway.port, second(name, free_port())) as base,
    ):
        headers = {"Authorization": f"Bearer {await gateway.token()}"}
        failed, began = 0, time.monotonic()
        for _ in range(12):
            async with session.post(f"{base}/v1/chat/completions", json=CHAT, headers=headers) as response:
                failed += not (await response.text()).endswith("data: [DONE]\n\n")
        rounds = 1 + (time.monotonic() - began) // 10
        assert failed <= rounds * (name == "caddy"), "Caddy passes over a gateway for ten seconds after a failure"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_a_request_that_was_sent_is_not_sent_again(
    name: str, session: aiohttp.ClientSession, tmp_path: Path, path: str
) -> None:
    async with Scripted([Fin]) as dying, Scripted([Fin]) as other:
        ports = [int(str(server.base_url).rpartition(":")[2].partition("/")[0]) for server in (dying, other)]
        async with (
            shipped_proxy(name, tmp_path / name, ports[0], second(name, ports[1])) as base,
            session.post(f"{base}{path}", json=CHAT) as response,
        ):
            error = json.loads(await response.read())["error"]
            assert (response.status, response.content_type) == (503, "application/json")
            assert (error["code"], response.headers["Retry-After"]) == ("service_unavailable", "1")
            assert error["type"] == ("overloaded_error" if path == "/v1/messages" else "server_error")
        assert len(dying.requests) + len(other.requests) == 1
