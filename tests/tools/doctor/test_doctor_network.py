"""Why nothing answers: each way in which a name, a port or TLS can be wrong has its own verdict."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from gateway.base.errors import Misconfigured
from gateway.store.client.client import Client
from gateway.testing import configuration, running
from gateway.tools.channel_test import Diagnosis
from gateway.tools.doctor import doctor, network
from gateway.tools.doctor.doctor import diagnose

AUTHORITY = trustme.CA()


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("authority") / "ca.pem"
    AUTHORITY.cert_pem.write_to_path(file)
    return file


async def last(base_url: str, ca: Path | None = None) -> Diagnosis:
    found = [diagnosis async for diagnosis in diagnose(base_url, "", "words", ca=ca)]
    assert [diagnosis.verdict for diagnosis in found[:-1]].count("ill") == 0
    assert str(found).isprintable()
    return found[-1]


@asynccontextmanager
async def listening(
    answer: Callable[[asyncio.StreamWriter], object], tls: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    """Listen, call `answer` with each connection once it has sent something, and close it. Yield the port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read(1)
            answer(writer)
            await writer.drain()
        except (ConnectionError, ssl.SSLError):
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls) as server:
        yield server.sockets[0].getsockname()[1]


def certified(*names: str, days: int = 0, authority: trustme.CA = AUTHORITY) -> ssl.SSLContext:
    """Return what serves with a certificate for these names; `days` ago it expired."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    until = datetime.now(UTC) - timedelta(days=days) if days else None
    authority.issue_cert(*names, not_after=until).configure_cert(context)
    return context


async def test_names_and_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await last("https://no-such-host.invalid/v1")).code == "name_unknown"
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    refused = await last(f"http://127.0.0.1:{port}/v1")
    assert (refused.code, f"127.0.0.1:{port} cannot be reached" in refused.text) == ("unreachable", True)
    assert "Nothing reached the gateway" in refused.remedy
    async with listening(lambda writer: None) as port:
        assert (await last(f"http://127.0.0.1:{port}/v1")).code == "no_answer"
        assert (await last(f"https://127.0.0.1:{port}/v1")).code in ("unreachable", "tls_failed")
    async with listening(lambda writer: writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")) as port:
        assert (await last(f"http://127.0.0.1:{port}/v1")).code == "no_answer"
        assert (await last(f"https://127.0.0.1:{port}/v1")).code == "tls_failed"
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"
    async with listening(lambda writer: writer.write(head)) as port:
        assert (await last(f"http://127.0.0.1:{port}/v1")).code == "no_answer"


async def test_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "ANSWER_S", 0.3)
    monkeypatch.setattr(network, "PROBE_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert (await last(f"http://127.0.0.1:{silent.getsockname()[1]}/v1")).code == "no_answer"
    monkeypatch.setattr(doctor, "CONNECT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        waiting = [socket.socket() for _ in range(8)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        found = await last(f"http://127.0.0.1:{full.getsockname()[1]}/v1")
        for each in waiting:
            each.close()
    assert found.code == "connect_timeout"


async def test_certificates(ca: Path) -> None:
    html = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>"
    for names, days, trusted, code in (
        (["127.0.0.1"], 0, ca, "other_service"),
        (["127.0.0.1"], 0, None, "certificate_untrusted"),
        (["gateway.example.com"], 0, ca, "certificate_of_another_name"),
        (["127.0.0.1"], 2, ca, "certificate_expired"),
    ):
        async with listening(lambda writer: writer.write(html), certified(*names, days=days)) as port:
            found = await last(f"https://127.0.0.1:{port}/v1", trusted)
        assert (found.verdict, found.code) == ("ill", code)
        assert ("--ca FILE" in found.remedy) == (code == "certificate_untrusted")
    other = certified("127.0.0.1", authority=trustme.CA())
    async with listening(lambda writer: writer.write(html), other) as port:
        assert (await last(f"https://127.0.0.1:{port}/v1", ca)).code == "certificate_untrusted"


async def test_http_to_a_port_with_tls_and_the_reverse(store_url: str, client: Client, tmp_path: Path) -> None:
    tls = certified("127.0.0.1")
    async with listening(lambda writer: None, tls) as port:
        found = await last(f"http://127.0.0.1:{port}/v1")
        assert (found.code, f"https://127.0.0.1:{port}/v1" in found.remedy) == ("needs_https", True)
    async with running(configuration("http://127.0.0.1:1/v1"), tmp_path, store_url) as gateway:
        found = await last(gateway.base_url.replace("http", "https"))
        assert (found.code, gateway.base_url in found.remedy) == ("needs_http", True)
    async with running(configuration("http://127.0.0.1:1/v1"), tmp_path, store_url) as gateway:
        bound = socket.create_server(("127.0.0.1", 0))
        gateway.gateway._listener.stop()  # type: ignore[union-attr]
        await gateway.gateway.listen(bound, tls)
        assert (await last(f"http://127.0.0.1:{bound.getsockname()[1]}/v1")).code == "needs_https"


async def test_a_version_of_tls_that_is_not_spoken() -> None:
    alert = bytes([0x15, 3, 1, 0, 2, 2, 70])  # fatal: protocol_version
    async with listening(lambda writer: writer.write(alert)) as port:
        found = await last(f"https://127.0.0.1:{port}/v1")
    assert (found.code, "ALERT_PROTOCOL_VERSION" in found.text) == ("tls_failed", True)


@pytest.mark.parametrize(
    "status",
    [b"HTTP/1.1 407 Who are you\r\n\r\n", b"HTTP/1.1 403 No\r\n\r\n"],
)
async def test_a_proxy_of_the_environment_that_refuses(status: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    async with listening(lambda writer: writer.write(status)) as port:
        monkeypatch.setenv("https_proxy", f"http://user:pass-word@127.0.0.1:{port}")
        found = await last("https://gateway.example.com/v1")
    assert (found.subject, found.code) == ("proxy", "proxy_of_environment")
    assert "pass-word" not in str(found)


def test_a_file_without_authorities(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("no certificate")
    for name, why in (("missing.pem", "No such file or directory"), ("empty.pem", "it has no certificate in PEM")):
        with pytest.raises(Misconfigured, match=f"^--ca .*{name}: {why}; give the certificates"):
            network.trust_of(tmp_path / name)
