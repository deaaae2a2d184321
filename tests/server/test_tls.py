"""The public port serves TLS with the certificate that is in the files now, and streams through it are complete."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest
import trustme
from structlog.testing import capture_logs
from yarl import URL

from gateway.base.errors import Misconfigured
from gateway.config import schema
from gateway.config.schema import Port, Tls
from gateway.proxy.caller import CallerConnection
from gateway.proxy.relay import Relay
from gateway.runtime.worker import opened
from gateway.server import tls
from gateway.server.protocol import WRITE_BUFFER
from gateway.server.tls import Certificate, renewing
from gateway.store.pepper import make_pepper
from gateway.testing import Running
from tests.cli.processes import demo_in, gone, kill, serving, worker_of
from tests.patience import PATIENCE_S
from tests.whole.conftest import configuration
from tests.whole.raw import chat, get, read_answer
from tests.whole.scripted import CHUNKED, LAST, Scripted, chunk

AUTHORITY = trustme.CA()
ASK = {"model": "demo-words", "stream": True, "messages": [{"role": "user", "content": "Tell me a story"}]}


def issue(folder: Path, name: str = "127.0.0.1", *, key_of: str | None = None) -> Tls:
    """Write a certificate for `name` and its key, or the key of `key_of`, into the folder, and return the settings."""
    certificate = AUTHORITY.issue_cert(name)
    chain = b"".join(blob.bytes() for blob in certificate.cert_chain_pems)
    key = (AUTHORITY.issue_cert(key_of) if key_of else certificate).private_key_pem.bytes()
    (folder / "cert.pem").write_bytes(chain)
    (folder / "key.pem").write_bytes(key)
    return Tls(str(folder / "cert.pem"), str(folder / "key.pem"))


def client_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    AUTHORITY.configure_trust(context)
    return context


async def name_and_version(context: ssl.SSLContext, name: str) -> tuple[str, str]:
    """Connect, and return the certificate's name and the protocol version. Raise `ssl.SSLError` unless the name matches."""

    async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(close, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client_context(), server_hostname=name)
        connection = writer.get_extra_info("ssl_object")
        ((_, shown),) = connection.getpeercert()["subjectAltName"]
        writer.close()
        return shown, connection.version()


async def test_new_connections_get_the_renewed_certificate(tmp_path: Path) -> None:
    certificate = Certificate(issue(tmp_path, "first.test"))
    assert await name_and_version(certificate.context, "first.test") == ("first.test", "TLSv1.3")
    assert not certificate.renew(), "unchanged files were renewed"
    issue(tmp_path, "second.test")
    assert certificate.renew()
    assert await name_and_version(certificate.context, "second.test") == ("second.test", "TLSv1.3")


async def test_a_mismatched_pair_is_not_used_and_logged_once(tmp_path: Path) -> None:
    certificate = Certificate(issue(tmp_path, "first.test"))
    issue(tmp_path, "second.test", key_of="third.test")
    with capture_logs() as lines:
        assert not certificate.renew()
        assert not certificate.renew()
    assert [line["event"] for line in lines] == ["certificate_refused"]
    assert (await name_and_version(certificate.context, "first.test"))[0] == "first.test"
    (tmp_path / "cert.pem").unlink()
    assert not certificate.renew()
    issue(tmp_path, "second.test")
    assert certificate.renew()
    assert (await name_and_version(certificate.context, "second.test"))[0] == "second.test"


@pytest.mark.parametrize("wrong", ["missing", "no_pem", "other_key", "locked_key", "pipe"])
def test_files_that_cannot_be_used_stop_the_start_with_one_line(tmp_path: Path, wrong: str) -> None:
    settings = issue(tmp_path, key_of="other.test" if wrong == "other_key" else None)
    if wrong == "missing":
        Path(settings.key).unlink()
    elif wrong == "no_pem":
        Path(settings.certificate).write_text("certificate")
    elif wrong == "pipe":
        Path(settings.certificate).unlink()
        os.mkfifo(settings.certificate)
    elif wrong == "locked_key":
        Path(settings.key).write_text(
            "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMAo=\n-----END ENCRYPTED PRIVATE KEY-----\n"
        )
    with pytest.raises(Misconfigured) as refused:
        Certificate(settings)
    assert str(refused.value).startswith(f"tls: cannot use {settings.certificate} and {settings.key}: ")
    assert "\n" not in str(refused.value)


def allow_old_versions(context: ssl.SSLContext) -> None:
    """Lower OpenSSL's security level, which by itself refuses the signatures of TLS 1.1 and older."""
    context.set_ciphers("ALL:@SECLEVEL=0")


def version_agreed(server: ssl.SSLContext, only: ssl.TLSVersion) -> str | None:
    """Return the version of a handshake with a client that speaks `only` this one. Raise the server's `ssl.SSLError`."""
    client = client_context()
    client.minimum_version = client.maximum_version = only
    allow_old_versions(client)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    caller = client.wrap_bio(to_client, to_server, server_hostname="first.test")
    served = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(2):
        for end in (caller, served):
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
    caller.do_handshake()
    return served.version()


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1:DeprecationWarning")
@pytest.mark.parametrize("old", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1], ids=["TLSv1", "TLSv1.1"])
def test_old_protocol_versions_are_refused(tmp_path: Path, old: ssl.TLSVersion) -> None:
    settings = issue(tmp_path, "first.test")
    permissive = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    permissive.minimum_version = old
    permissive.load_cert_chain(settings.certificate, settings.key)
    allow_old_versions(permissive)
    try:
        version_agreed(permissive, old)
    except ssl.SSLError as error:
        pytest.skip(f"this OpenSSL does not speak {old.name} at all: {error.reason}")
    context = Certificate(settings).context
    allow_old_versions(context)
    with pytest.raises(ssl.SSLError, match="UNSUPPORTED_PROTOCOL"):
        version_agreed(context, old)


def test_tls_1_2_is_accepted(tmp_path: Path) -> None:
    context = Certificate(issue(tmp_path, "first.test")).context
    assert version_agreed(context, ssl.TLSVersion.TLSv1_2) == "TLSv1.2"


async def test_changed_files_are_loaded_automatically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "CHECK_EVERY_S", 0.01)
    async with renewing(Certificate(issue(tmp_path, "first.test"))) as context:
        assert context is not None
        with capture_logs() as lines:
            issue(tmp_path, "second.test")
            async with asyncio.timeout(PATIENCE_S):
                while not any(line["event"] == "certificate_renewed" for line in lines):
                    await asyncio.sleep(0.01)
        assert (await name_and_version(context, "second.test"))[0] == "second.test"
    async with renewing(None) as none:
        assert none is None


async def test_a_stream_through_the_public_port_is_complete(tmp_path: Path) -> None:
    settings = issue(tmp_path)
    file = demo_in(tmp_path)
    file.write_text(f"{file.read_text()}tls: {{certificate: {settings.certificate}, key: {settings.key}}}\n")
    async with serving(file) as served:
        assert served.base_url.startswith("https://127.0.0.1:")
        connector = aiohttp.TCPConnector(ssl=client_context())
        async with aiohttp.ClientSession(headers=served.headers, connector=connector) as client:
            for _ in range(2):  # the second one on the same connection
                async with client.post(f"{served.base_url}/chat/completions", json=ASK) as answer:
                    assert answer.status == 200
                    assert (await answer.text()).endswith("data: [DONE]\n\n")
            async with client.post(f"{served.base_url}/chat/completions", json=ASK) as answer:
                await answer.content.readline()  # and close the connection mid-stream
        with pytest.raises(aiohttp.ClientError):
            async with aiohttp.ClientSession() as plain:
                await plain.get(served.base_url.replace("https", "http"))
        assert await served.stop() == 0


async def test_a_worker_that_starts_while_the_files_cannot_be_used_has_the_last_good_pair(tmp_path: Path) -> None:
    settings = issue(tmp_path)
    file = demo_in(tmp_path)
    file.write_text(f"{file.read_text()}tls: {{certificate: {settings.certificate}, key: {settings.key}}}\n")
    async with serving(file) as served:
        for spoil in (Path(settings.certificate).unlink, lambda: Path(settings.certificate).write_text("garbage")):
            spoil()
            worker = worker_of(served.pid)
            kill(worker)
            await gone({worker})
            connector = aiohttp.TCPConnector(ssl=client_context())
            async with (
                aiohttp.ClientSession(headers=served.headers, connector=connector) as client,
                client.post(f"{served.base_url}/chat/completions", json=ASK) as answer,
            ):
                assert (await answer.text()).endswith("data: [DONE]\n\n")
        assert await served.stop() == 0


async def test_an_unfinished_handshake_is_closed(tmp_path: Path) -> None:
    settings = issue(tmp_path)
    file = demo_in(tmp_path)
    tls = f"tls: {{certificate: {settings.certificate}, key: {settings.key}}}\n"
    file.write_text(f"{file.read_text()}{tls}port: {{handshake_timeout: 0.5}}\n")
    async with serving(file) as served:
        port = URL(served.base_url).port
        for begun in (b"", b"\x16\x03\x01\x02\x00\x01"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(begun)
            async with asyncio.timeout(Port().handshake_timeout - 1):
                with suppress(ConnectionResetError):
                    assert await reader.read() == b""
            writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client_context())
        await asyncio.sleep(1)  # longer than a handshake may take
        writer.write(get("/healthz"))
        assert (await read_answer(reader)).status == 200
        writer.close()
    assert "Traceback" not in (tmp_path / "serve.log").read_text()


async def test_a_caller_that_does_not_read_pauses_the_upstream_with_tls_too(store_url: str, tmp_path: Path) -> None:
    event = b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % (b"x" * 4000)
    async with Scripted([CHUNKED, *[chunk(event)] * 5000, LAST]) as upstream:
        file = tmp_path / "gateway.yaml"
        file.write_text(f"{configuration(upstream.base_url)}data: {tmp_path}\n")
        make_pepper(tmp_path)
        async with opened(schema.load(file), store_url) as gateway:
            listener = socket.create_server(("127.0.0.1", 0))
            await gateway.listen(listener, Certificate(issue(tmp_path)).context)
            token = await Running(gateway, listener.getsockname()).token()
            port = listener.getsockname()[1]
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client_context())
            writer.write(chat(token))
            await reader.readexactly(1000)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            (stream,) = gateway.runner.failover.relays
            assert isinstance(stream, Relay)
            async with asyncio.timeout(PATIENCE_S):
                while stream._stall_timer is None:
                    await asyncio.sleep(0.01)
            assert isinstance(stream._caller, CallerConnection)
            assert stream._caller._transport.get_write_buffer_size() <= 3 * WRITE_BUFFER
            writer.transport.abort()
            async with asyncio.timeout(PATIENCE_S):
                while gateway.runner.open:
                    await asyncio.sleep(0.01)
