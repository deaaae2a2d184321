"""A real browser: a page of an origin that the operator named streams an answer, and a page of another origin does not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from gateway.fake_upstream import FakeUpstream
from tests.cli.processes import free_port
from tests.patience import PATIENCE_S
from tests.whole.browser import launched, needs_browser
from tests.whole.conftest import Serve

pytestmark = needs_browser

PAGE = """<!doctype html><title>a page</title>
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


async def test_a_page_of_a_named_origin_streams_and_another_is_refused(serve: Serve) -> None:
    port = free_port()
    named, other = f"http://127.0.0.1:{port}", f"http://localhost:{port}"
    async with (
        FakeUpstream(pace_s=0.05, key="channel-credential-4711") as upstream,
        serve(upstream.base_url, more=f"port: {{cors_origins: ['{named}']}}") as gateway,
    ):
        text = PAGE.replace("GATEWAY", f"http://127.0.0.1:{gateway.port}").replace("TOKEN", await gateway.token())
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
