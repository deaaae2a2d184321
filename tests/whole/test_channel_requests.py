"""What is sent to a channel: headers, parameters and fields of its own, over TLS and through a proxy. No secret comes back."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway import Outcome
from gateway.chat.request import BodyRules
from gateway.cli.commands import program
from gateway.metrics.exporter import Exporter
from gateway.testing import running
from gateway.tools.explain import explain
from tests.place import Place
from tests.whole.aftermath import assert_released, end_records, last_end_record, tasks
from tests.whole.conftest import Serve, configuration
from tests.whole.raw import ask, chat
from tests.whole.scripted import CHUNKED, HEAD, LAST, Fin, Scripted, Step, chunk
from tests.whole.test_stream import PASSED, STREAM

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
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROUTE", ROUTE)
    monkeypatch.setenv("BODY", BODY)
    echo = STREAM.replace(b"data: {", b'data: {"echo":"%b",' % " ".join(SPELLINGS).encode(), 1)
    answers: list[list[Step]] = [[CHUNKED + chunk(echo) + LAST], failed(400), failed(503)]
    async with Scripted(*answers) as upstream, running(yaml(upstream.base_url), *place) as gateway:
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


async def test_what_a_channel_adds_is_held(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUTE", ROUTE)
    monkeypatch.setenv("BODY", BODY)
    usage = b'"usage":{"prompt_tokens":1000,"completion_tokens":100,"total_tokens":1100}'
    end = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],%b}\n\ndata: [DONE]\n\n' % usage
    first = STREAM.partition(b"\n\n")[0] + b"\n\n"
    async with (
        Scripted([CHUNKED + chunk(first + end) + LAST]) as upstream,
        running(yaml(upstream.base_url), *place) as gateway,
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
    assert "channels.fake.drop: removes seed" in difference


NEEDS_OPENSSL = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")

GOOD: list[Step] = [CHUNKED + chunk(STREAM) + LAST]


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create an authority, and certificates for localhost (`server`) and for another name (`other`); return their folder."""
    folder = tmp_path_factory.mktemp("tls")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl(
        "req", "-x509", *new, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=A private authority"
    )
    for name, host in (("server", "localhost"), ("other", "elsewhere.example")):
        (folder / f"{name}.ext").write_text(f"subjectAltName=DNS:{host}\n")
        openssl("req", *new, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={host}")
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", f"{name}.ext")
        openssl("x509", "-req", "-in", f"{name}.csr", *signed, "-days", "2", "-out", f"{name}.pem")
    return folder


def context(certificates: Path, name: str = "server") -> ssl.SSLContext:
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(certificates / f"{name}.pem", certificates / f"{name}.key")
    return served


@NEEDS_OPENSSL
@pytest.mark.parametrize("script", [GOOD, [HEAD + b"\r\n" + STREAM, Fin]], ids=["chunked", "up to its close"])
async def test_a_private_authority_is_trusted_where_the_channel_names_it(
    serve: Serve, certificates: Path, script: list[Step]
) -> None:
    async with (
        Scripted(script, tls=context(certificates)) as upstream,
        serve(upstream.base_url, channel=f", ca_file: {certificates / 'ca.pem'}") as gateway,
    ):
        token = await gateway.token()
        for _ in range(2):
            answer = await ask(gateway.port, chat(token))
            assert (answer.status, answer.body, answer.whole) == (200, PASSED, True)
        assert upstream.connections == (1 if script is GOOD else 2)


@NEEDS_OPENSSL
@pytest.mark.parametrize(("server", "named"), [("server", False), ("other", True)])
async def test_an_invalid_certificate_is_never_accepted(
    serve: Serve, certificates: Path, server: str, named: bool
) -> None:
    async with Scripted(GOOD, tls=context(certificates, server)) as upstream:
        channel = f", ca_file: {certificates / 'ca.pem'}" if named else ""
        async with serve(upstream.base_url, channel=channel) as gateway:
            token = await gateway.token()
            before = tasks()
            answer = await ask(gateway.port, chat(token))
            assert (answer.status, answer.error["code"]) == (502, "upstream_unreachable")
            assert upstream.requests == []
            await assert_released(gateway, upstream, before, 0)


class Proxy:
    """A forward proxy that records the heads of its requests. With `refusal` it sends that, and closes the connection."""

    def __init__(self, refusal: bytes = b"") -> None:
        self.refusal = refusal
        self.heads: list[bytes] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            self.heads.append(head)
            if self.refusal:
                writer.write(self.refusal)
                return
            method, target, _ = head.split(b" ", 2)
            host, _, port = target.removeprefix(b"http://").partition(b"/")[0].rpartition(b":")
            onward, outward = await asyncio.open_connection(host.decode(), int(port))
            if method == b"CONNECT":
                writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
            else:
                outward.write(head)
            await asyncio.gather(copy(reader, outward), copy(onward, writer))
        finally:
            writer.close()


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
    except ConnectionError:
        pass
    finally:
        writer.close()


@asynccontextmanager
async def proxy(refusal: bytes = b"") -> AsyncIterator[Proxy]:
    made = Proxy(refusal)
    async with await asyncio.start_server(made.serve, "127.0.0.1", 0) as server:
        made.url = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield made


@NEEDS_OPENSSL
@pytest.mark.parametrize("secure", [True, False])
@pytest.mark.parametrize("login", ["", "user:canary-pass@"])
async def test_a_channels_proxy_is_used(serve: Serve, certificates: Path, secure: bool, login: str) -> None:
    tls = context(certificates) if secure else None
    async with proxy() as between, Scripted(GOOD, tls=tls) as upstream:
        channel = f', proxy: "http://{login}{between.url}"' + (
            f", ca_file: {certificates / 'ca.pem'}" if secure else ""
        )
        async with serve(upstream.base_url, channel=channel) as gateway:
            token = await gateway.token()
            for _ in range(2):
                answer = await ask(gateway.port, chat(token))
                assert (answer.status, answer.body) == (200, PASSED)
        assert upstream.requests[0].startswith(b"POST /v1/chat/completions " if secure else b"POST http://")
        assert (b"Proxy-Authorization: Basic " + base64.b64encode(b"user:canary-pass") in between.heads[0]) == bool(
            login
        )
        assert (b"channel-credential" in between.heads[0]) == (not secure), (
            "with TLS the proxy must not see the credential"
        )
        assert b"Proxy-Authorization" not in upstream.requests[0] or not secure
        assert len(between.heads) == 1


@NEEDS_OPENSSL
async def test_a_proxy_that_cannot_be_reached_makes_the_channel_unreachable(serve: Serve, certificates: Path) -> None:
    channel = f', proxy: "http://127.0.0.1:1", ca_file: {certificates / "ca.pem"}'
    async with (
        Scripted(GOOD, tls=context(certificates)) as upstream,
        serve(upstream.base_url, channel=channel) as gateway,
    ):
        answer = await ask(gateway.port, chat(await gateway.token()))
        assert (answer.status, answer.error["code"]) == (502, "upstream_unreachable")
        assert upstream.connections == 0


@NEEDS_OPENSSL
@pytest.mark.parametrize("status", ["403 Forbidden", "407 Proxy Authentication Required"])
async def test_a_proxy_that_refuses_the_tunnel_makes_the_channel_unreachable(
    serve: Serve, certificates: Path, status: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    login = base64.b64encode(b"user:canary-pass").decode()
    echo = f"user:canary-pass {login}"  # even a proxy that repeats its credential
    refusal = (
        f'HTTP/1.1 {status}: {echo}\r\nProxy-Authenticate: Basic realm="{echo}"\r\n'
        f"Content-Length: {len(echo)}\r\n\r\n{echo}"
    )
    async with proxy(refusal.encode()) as between, Scripted(GOOD, tls=context(certificates)) as upstream:
        channel = f', proxy: "http://user:canary-pass@{between.url}", ca_file: {certificates / "ca.pem"}'
        async with serve(upstream.base_url, channel=channel) as gateway:
            token = await gateway.token()
            before = tasks()
            answer = await ask(gateway.port, chat(token))
            assert (answer.status, answer.error["code"]) == (502, "upstream_unreachable")
            record = await last_end_record(gateway)
            assert (record.outcome, record.charge_micros) == (Outcome.UPSTREAM_FAILED, 0)
            await assert_released(gateway, upstream, before, 0)
        assert between.heads[0].startswith(b"CONNECT ")
        assert login.encode() in between.heads[0]
        assert upstream.connections == 0
    shown = "".join([repr(answer), repr(record), *capsys.readouterr(), caplog.text])
    assert "upstream_unreachable" in shown
    assert "canary" not in shown
    assert login not in shown


@NEEDS_OPENSSL
async def test_the_environments_proxies_are_not_used(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with Scripted(GOOD) as upstream, serve(upstream.base_url) as gateway:
        assert (await ask(gateway.port, chat(await gateway.token()))).status == 200
