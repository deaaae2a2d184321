"""Channels with headers, parameters and fields of their own in a whole gateway: what is sent and held. No secret comes back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway.chat.request import BodyRules
from gateway.cli.commands import program
from gateway.metrics.exporter import Exporter
from gateway.testing import running
from gateway.tools.explain import explain
from tests.whole.aftermath import end_records, last_end_record
from tests.whole.conftest import configuration
from tests.whole.raw import ask, chat
from tests.whole.scripted import CHUNKED, LAST, Scripted, Step, chunk
from tests.whole.test_stream import STREAM

KEY = "sk/canary+of=query"
ENCODED = "sk%2Fcanary%2Bof%3Dquery"
ROUTE = "route-canary-4711"
BODY = "body-canary-0815"
SPELLINGS = (KEY, ENCODED, ENCODED.lower(), "sk/canary%2Bof%3Dquery", ROUTE, BODY)
CHANNEL = f""", auth: query key, query: {{version: "1"}}, headers: {{X-Route: "${{ROUTE}}"}},
    set: {{provider: {{token: "${{BODY}}"}}, padding: "{"x" * 1000}"}}, drop: [seed]"""


WORDS = "auth query key; headers X-Route; query version; set provider, padding; drop seed"


def yaml(base_url: str) -> str:
    return configuration(base_url, channel=CHANNEL).replace("channel-credential-4711", f"'{KEY}'")


def failed(status: int) -> list[Step]:
    text = json.dumps({"error": {"message": f"bad: {' '.join(SPELLINGS)}", "type": "t"}}).encode()
    head = f"HTTP/1.1 {status} No\r\nContent-Type: application/json\r\nx-request-id: {ENCODED}\r\n"
    return [f"{head}Content-Length: {len(text)}\r\n\r\n".encode() + text]


async def test_what_is_sent_and_that_no_secret_comes_back(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROUTE", ROUTE)
    monkeypatch.setenv("BODY", BODY)
    echo = STREAM.replace(b"data: {", b'data: {"echo":"%b",' % " ".join(SPELLINGS).encode(), 1)
    answers: list[list[Step]] = [[CHUNKED + chunk(echo) + LAST], failed(400), failed(503)]
    async with Scripted(*answers) as upstream, running(yaml(upstream.base_url), tmp_path, store_url) as gateway:
        token = await gateway.token()
        asked: dict[str, Any] = {"seed": 7, "Padding": "mine", "top_p": 0.5}
        shown = [(await ask(gateway.port, chat(token, asked))).body for _ in answers]
        assert b"[redacted]" in shown[0]
        assert b"bad: [redacted] [redacted]" in shown[1]
        records = await end_records(gateway)
        metrics = Exporter({"0": gateway.gateway.runner.metrics.shared}).exposition().decode()
        body = json.dumps({"model": "words", "messages": [{"role": "user", "content": "hi"}], "stream": True})
        headers = [("Authorization", f"Bearer {token}")]
        explained = await explain(gateway.gateway.chain, headers, body.encode(), BodyRules(), "127.0.0.1")
        assert explained.channels[0].request == WORDS
        everything = b"".join(shown).decode() + repr(records) + metrics + "".join(capsys.readouterr())
        assert [spelling for spelling in SPELLINGS if spelling in everything] == []
        head, _, sent = upstream.requests[0].decode().partition("\r\n\r\n")
        assert head.startswith(f"POST /v1/chat/completions?version=1&key={ENCODED} HTTP/1.1\r\n")
        assert f"X-Route: {ROUTE}" in head.split("\r\n")
        assert "authorization" not in head.lower()
        fields = json.loads(sent)
        assert (fields["provider"], fields["padding"], fields["top_p"]) == ({"token": BODY}, "x" * 1000, 0.5)
        assert not {"seed", "Padding"} & fields.keys()


async def test_what_a_channel_adds_is_held(store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUTE", ROUTE)
    monkeypatch.setenv("BODY", BODY)
    usage = b'"usage":{"prompt_tokens":1000,"completion_tokens":100,"total_tokens":1100}'
    end = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],%b}\n\ndata: [DONE]\n\n' % usage
    first = STREAM.partition(b"\n\n")[0] + b"\n\n"
    async with (
        Scripted([CHUNKED + chunk(first + end) + LAST]) as upstream,
        running(yaml(upstream.base_url), tmp_path, store_url) as gateway,
    ):
        poor = await gateway.token("poor", credit=1000)
        refused = await ask(gateway.port, chat(poor))
        assert (refused.status, upstream.requests) == (402, [])
        await ask(gateway.port, chat(await gateway.token("rich", credit=5000)))
        assert (await last_end_record(gateway)).charge_micros == 1200  # nothing is cut off the charge


def test_the_commands_show_names_and_no_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUTE", ROUTE)
    monkeypatch.setenv("BODY", BODY)

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(program(), list(arguments))
        assert [secret for secret in (*SPELLINGS, "x" * 50) if secret in result.output] == []
        return " ".join(result.output.split())

    before, after = tmp_path / "before.yaml", tmp_path / "after.yaml"
    text = yaml("http://127.0.0.1:9/v1") + f"data: {tmp_path}/data\n"
    before.write_text(text)
    changed = (
        text.replace('version: "1"', 'version: "2", more: "3"').replace("padding:", "padded:").replace("[seed]", "[]")
    )
    after.write_text(changed.replace("${ROUTE}", "${ROUTE}-other"))
    assert WORDS in run("check", "--config", str(before))
    assert json.loads(run("check", "--config", str(before), "--json"))["adds"] == {"fake": WORDS}
    run("init", "--config", str(before))
    assert f"fake {WORDS}" in run("channels", "--config", str(before))
    assert json.loads(run("channels", "--config", str(before), "--json"))["request"] == WORDS
    difference = run("diff", str(after), "--config", str(before))
    for place in ("headers.X-Route: changes", "query.version: changes", "query.more: is added"):
        assert f"channels.fake.{place}" in difference
    assert "channels.fake.set.padding: is removed" in difference
    assert "channels.fake.set.padded: is added" in difference
    assert "channels.fake.drop: ['seed'] becomes []" in difference
