"""Pages of the origins that the operator names may call the public port; a preflight request costs neither a record nor a call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from gateway.fake_upstream import FakeUpstream
from gateway.proxy.failover import SERVED_MODEL
from gateway.server.cors import READABLE, CrossOriginGateway
from gateway.server.gateway import NOT_NAMED
from gateway.testing import Running
from tests.cli.processes import free_port
from tests.patience import PATIENCE_S
from tests.whole.aftermath import end_records, last_end_record, records_in_stream
from tests.whole.browser import launched, needs_browser
from tests.whole.conftest import Serve
from tests.whole.raw import Answer, ask, chat, get, head

PAGE = "https://app.example"
CHAT = "/v1/chat/completions"


@pytest.fixture
async def gateway(upstream: FakeUpstream, serve: Serve) -> AsyncIterator[Running]:
    async with serve(upstream.base_url, more=f"port: {{cors_origins: ['{PAGE}', 'http://localhost:5173']}}") as whole:
        yield whole


@pytest.fixture
async def closed(upstream: FakeUpstream, serve: Serve) -> AsyncIterator[Running]:
    """Yield a gateway that names no origin."""
    async with serve(upstream.base_url) as whole:
        yield whole


def preflight(path: str = CHAT, origin: str = PAGE, **more: str) -> bytes:
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    return head("OPTIONS", path, {"Host": "gateway", "Origin": origin, **asked, **more})


def assert_readable(answer: Answer, origin: str = PAGE) -> None:
    assert answer.headers["access-control-allow-origin"] == origin
    assert answer.headers["access-control-expose-headers"] == READABLE
    assert answer.headers["vary"] == "Origin"
    assert "access-control-allow-credentials" not in answer.headers


def assert_unreadable(answer: Answer) -> None:
    assert [name for name in answer.headers if name.startswith("access-control-")] == []


async def test_a_preflight_of_a_named_origin_is_granted_without_a_record(gateway: Running) -> None:
    for origin in (PAGE, "http://localhost:5173"):
        for path in (CHAT, "/v1/models", "/v1/responses"):
            answer = await ask(gateway.port, preflight(path, origin))
            assert (answer.status, answer.body) == (200, b"")
            assert answer.headers["access-control-allow-origin"] == origin
            assert answer.headers["access-control-allow-methods"] == "GET, POST"
            assert answer.headers["access-control-allow-headers"].startswith("authorization, ")
            assert answer.headers["vary"] == "Origin"
            assert int(answer.headers["access-control-max-age"]) > 0
    assert await records_in_stream(gateway) == []


@pytest.mark.parametrize("origin", ["https://other.example", "https://app.example.evil", "null", "http://app.example"])
async def test_a_preflight_of_another_origin_is_refused_without_a_record(gateway: Running, origin: str) -> None:
    answer = await ask(gateway.port, preflight(origin=origin))
    assert (answer.status, answer.error["code"], answer.error["message"]) == (405, "method_not_allowed", NOT_NAMED)
    assert_unreadable(answer)
    assert answer.headers["vary"] == "Origin"
    assert await records_in_stream(gateway) == []


async def test_without_the_setting_a_preflight_is_refused_without_a_record(closed: Running) -> None:
    for path in (CHAT, "/v1/models", "/v1/nothing", "/nothing"):
        answer = await ask(closed.port, preflight(path))
        assert (answer.status, answer.error["code"], answer.error["message"]) == (405, "method_not_allowed", NOT_NAMED)
        assert_unreadable(answer)
        assert "vary" not in answer.headers
    assert await records_in_stream(closed) == []


async def test_without_the_setting_no_answer_is_for_a_page(closed: Running) -> None:
    assert type(closed.gateway) is not CrossOriginGateway
    answer = await ask(closed.port, chat(await closed.token(), headers={"Origin": PAGE}))
    assert answer.status == 200
    assert_unreadable(answer)


async def test_what_only_looks_like_a_preflight_leaves_a_record(gateway: Running) -> None:
    for request in (get(CHAT, method="OPTIONS"), head("OPTIONS", CHAT, {"Host": "gateway", "Origin": PAGE})):
        assert (await ask(gateway.port, request)).status == 405
    await last_end_record(gateway)
    assert len({record.id for record in await end_records(gateway)}) == 2


async def test_a_preflight_with_a_body_is_refused(gateway: Running) -> None:
    assert (await ask(gateway.port, preflight(**{"Content-Length": "2"}) + b"{}")).status == 405


async def test_a_stream_its_headers_and_an_error_can_be_read_by_the_page(gateway: Running) -> None:
    token = await gateway.token()
    answer = await ask(gateway.port, chat(token, headers={"Origin": PAGE}))
    assert (answer.status, answer.body[-14:]) == (200, b"data: [DONE]\n\n")
    assert_readable(answer)
    assert {"x-request-id", "x-ratelimit-remaining-requests"} <= set(READABLE.split(", ")) & set(answer.headers)
    assert SERVED_MODEL in READABLE.split(", ")
    for request in (
        chat(None, headers={"Origin": PAGE}),
        chat(token, {"model": "none"}, headers={"Origin": PAGE}),
        chat(token, b"no json", headers={"Origin": PAGE}),
        chat(token, headers={"Origin": PAGE}, path="/v1/responses"),
        chat(token, headers={"Origin": PAGE}, path="/nothing"),
        chat(token, headers={"Origin": PAGE, "x-long": "x" * 60000, "x-longer": "x" * 60000}),
    ):
        answer = await ask(gateway.port, request)
        assert answer.status >= 400
        assert_readable(answer)


async def test_a_page_of_another_origin_cannot_read_its_answer(gateway: Running) -> None:
    token = await gateway.token()
    for headers in ({"Origin": "https://other.example"}, {}):
        answer = await ask(gateway.port, chat(token, headers=headers))
        assert answer.status == 200
        assert_unreadable(answer)
        assert answer.headers["vary"] == "Origin", "caches keep it for no other origin"


async def test_preflights_are_answered_one_after_the_other_on_one_connection(gateway: Running) -> None:
    answer = await ask(gateway.port, preflight() + preflight() + chat(await gateway.token(), headers={"Origin": PAGE}))
    assert answer.status == 200
    assert answer.headers.get("connection") != "close"


ASKING_PAGE = """<!doctype html><title>a page</title>
<script>
async function ask(path, token, body) {
  const said = {}
  try {
    const headers = {Authorization: "Bearer " + token, "Content-Type": "application/json", "X-Stainless-Lang": "js"}
    const answer = await fetch("GATEWAY" + path, {method: "POST", headers, body: JSON.stringify(body)})
    Object.assign(said, {status: answer.status, id: answer.headers.get("x-request-id"), text: "", reads: 0})
    said.left = answer.headers.get("x-ratelimit-remaining-requests")
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader()
    for (let read = await reader.read(); !read.done; read = await reader.read()) {
      said.text += read.value
      said.reads += 1
    }
  } catch (error) {
    said.error = String(error)
  }
  return said
}
async function all() {
  const body = {model: "words", stream: true, messages: [{role: "user", content: "hi"}]}
  const said = {origin: location.origin}
  said.stream = await ask("/v1/chat/completions", "TOKEN", body)
  said.refused = await ask("/v1/chat/completions", "no-token", body)
  await fetch("/said", {method: "POST", body: JSON.stringify(said)})
}
all()
</script>OTHER"""


@asynccontextmanager
async def pages(port: int, text: str, said: asyncio.Queue[Any]) -> AsyncIterator[None]:
    """Serve the page under the origins 127.0.0.1 and localhost, and take what it says."""

    async def page(request: web.Request) -> web.Response:
        other = f'<iframe src="http://localhost:{port}/"></iframe>' if request.host.startswith("127.") else ""
        return web.Response(text=text.replace("OTHER", other), content_type="text/html")

    async def take(request: web.Request) -> web.Response:
        said.put_nowait(json.loads(await request.text()))
        return web.Response()

    app = web.Application()
    app.add_routes([web.get("/", page), web.post("/said", take)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    yield
    await runner.cleanup()


@needs_browser
async def test_a_page_of_a_named_origin_streams_and_another_is_refused(serve: Serve) -> None:
    port = free_port()
    named, other = f"http://127.0.0.1:{port}", f"http://localhost:{port}"
    async with (
        FakeUpstream(pace_s=0.05, key="channel-credential-4711") as upstream,
        serve(upstream.base_url, more=f"port: {{cors_origins: ['{named}']}}") as gateway,
    ):
        text = ASKING_PAGE.replace("GATEWAY", f"http://127.0.0.1:{gateway.port}").replace(
            "TOKEN", await gateway.token()
        )
        said: asyncio.Queue[Any] = asyncio.Queue()
        async with pages(port, text, said), launched() as browser, asyncio.timeout(PATIENCE_S):
            page = await browser.new_page()
            await page.goto(f"{named}/")
            answers = {each["origin"]: each for each in (await said.get(), await said.get())}
    stream, refused = answers[named]["stream"], answers[named]["refused"]
    assert (stream["status"], stream["text"][-14:]) == (200, "data: [DONE]\n\n")
    assert stream["reads"] > 3, "the words came one after the other"
    assert len(stream["id"]) == 36
    assert int(stream["left"]) > 0
    assert (refused["status"], "token_invalid" in refused["text"]) == (401, True)
    for each in (answers[other]["stream"], answers[other]["refused"]):
        assert each == {"error": "TypeError: Failed to fetch"}
    assert len(upstream.requests) == 1
