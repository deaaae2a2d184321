"""`gateway channels test` says how an upstream answers one small request, and shows no credential."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.cli.commands import program
from gateway.fake_upstream.server import FakeUpstream
from tests.whole.scripted import Scripted

FILE = """
redis: redis://127.0.0.1:1
channels:
  one: {{base_url: "{url}", api_keys: [channel-credential-4711, channel-credential-4712], timers: {{first_byte: 0.5}}}}
  closed: {{base_url: "http://127.0.0.1:1/v1"}}
  spare: {{base_url: "{url}"}}
models:
  words: {{input: 1, output: 2, channels: [{{use: one, model: upstream-words}}, closed]}}
groups: {{default: {{}}}}
plugins: [{{use: usage-logger}}, {{use: auth}}, {{use: quota}}, {{use: model-routing}}]
"""


@pytest.fixture
async def upstream(tmp_path: Path) -> AsyncIterator[FakeUpstream]:
    async with FakeUpstream(pace_s=0.001, key="channel-credential-4711") as fake:
        (tmp_path / "gateway.yaml").write_text(FILE.format(url=fake.base_url))
        yield fake


async def tried(folder: Path, *arguments: str, code: int) -> str:
    command = ["channels", "test", *arguments, "--config", str(folder / "gateway.yaml")]
    result = await asyncio.to_thread(CliRunner().invoke, program(), command)
    assert result.exit_code == code, result.output
    assert "credential-47" not in result.output
    return result.output


async def test_an_upstream_that_streams_is_good(tmp_path: Path, upstream: FakeUpstream) -> None:
    out = await tried(tmp_path, "one", code=0)
    assert out.startswith("one answers with 200 after ")
    assert out.endswith(" ms for upstream-words: it streams\n")
    [request] = upstream.requests
    body = json.loads(request.body)
    assert (body["model"], body["stream"], body["max_tokens"]) == ("upstream-words", True, 16)
    verdict = json.loads(await tried(tmp_path, "one", "--model", "words", "--json", code=0))
    assert (verdict["good"], verdict["status"], verdict["channel"]) == (True, 200, "one")


@pytest.mark.parametrize(
    ("mode", "text"),
    [
        ("429", "fails with 429"),
        ("html", "its answer is not an event stream, but text/html"),
        ("silent", "it did not answer in time, see `timers`"),
    ],
)
async def test_how_it_fails_is_said(tmp_path: Path, upstream: FakeUpstream, mode: str, text: str) -> None:
    upstream.mode = mode
    assert text in await tried(tmp_path, "one", code=1)


async def test_each_credential_can_be_tried_and_what_cannot_be_is_refused(
    tmp_path: Path, upstream: FakeUpstream
) -> None:
    assert "one fails with 401 after " in await tried(tmp_path, "one", "--credential", "2", code=1)
    assert "closed fails after " in await tried(tmp_path, "closed", code=1)
    assert "one has 2 credentials, counted from 1" in await tried(tmp_path, "one", "--credential", "3", code=1)
    assert "no model of the configuration is served by spare" in await tried(tmp_path, "spare", code=3)
    assert "it serves: words" in await tried(tmp_path, "one", "--model", "large", code=3)
    assert "the configuration has: one, closed, spare" in await tried(tmp_path, "two", code=3)


async def test_it_is_asked_as_requests_of_callers_are(tmp_path: Path) -> None:
    answered = [b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 17\r\n\r\nevent: ping\ndata:"]
    own = "headers: {X-Title: gateway}, query: {version: '1'}, set: {metadata: {user_id: trial}}, api_key: channel-credential-4711"
    for more, seen in (
        ("auth: query key", [b"POST /v1/chat/completions?version=1&key=channel-credential-4711 ", b'"stream":true']),
        ("dialect: anthropic", [b"POST /v1/messages?version=1 ", b"x-api-key: channel-credential-4711\r\n"]),
    ):
        async with Scripted(answered) as upstream:
            (tmp_path / "gateway.yaml").write_text(
                f"channels: {{one: {{base_url: '{upstream.base_url}', {own}, {more}}}}}\n"
                "models: {words: {free: true, channels: [one]}}\nplugins: [{use: auth}, {use: model-routing}, {use: anthropic}]\n"
            )
            assert "it streams" in await tried(tmp_path, "one", code=0)
            (request,) = upstream.requests
            for part in (*seen, b"X-Title: gateway\r\n", b'"metadata":{"user_id":"trial"}', b'"max_tokens":16'):
                assert part.lower() in request.lower()
