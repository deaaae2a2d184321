"""Upstreams over TLS, with a private authority or an invalid certificate, and behind a proxy."""

from __future__ import annotations

import asyncio
import base64
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway import Outcome
from tests.whole.aftermath import assert_released, last_end_record, tasks
from tests.whole.conftest import Serve
from tests.whole.raw import ask, chat
from tests.whole.scripted import CHUNKED, HEAD, LAST, Fin, Scripted, Step, chunk
from tests.whole.test_stream import PASSED, STREAM

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")

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


async def test_a_proxy_that_cannot_be_reached_makes_the_channel_unreachable(serve: Serve, certificates: Path) -> None:
    channel = f', proxy: "http://127.0.0.1:1", ca_file: {certificates / "ca.pem"}'
    async with (
        Scripted(GOOD, tls=context(certificates)) as upstream,
        serve(upstream.base_url, channel=channel) as gateway,
    ):
        answer = await ask(gateway.port, chat(await gateway.token()))
        assert (answer.status, answer.error["code"]) == (502, "upstream_unreachable")
        assert upstream.connections == 0


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


async def test_the_environments_proxies_are_not_used(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with Scripted(GOOD) as upstream, serve(upstream.base_url) as gateway:
        assert (await ask(gateway.port, chat(await gateway.token()))).status == 200
