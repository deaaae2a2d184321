"""Doctor names each fault that a caller can meet, with its own verdict."""

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
from gateway.fake_upstream import FakeUpstream
from gateway.store.accounts import AccountStatus
from gateway.store.client.client import Client
from gateway.testing import Running, running
from gateway.tools import doctor
from gateway.tools.doctor import Diagnosis, diagnose, parsed, trust_of
from tests.tools.way import PAGE, Proxy, Says
from tests.whole.conftest import CHAIN, configuration


# Doctor names each fault that a caller can meet, from outside, against a gateway that has it.
@pytest.fixture
async def upstream() -> AsyncIterator[FakeUpstream]:
    async with FakeUpstream(pace_s=0.005, key="channel-credential-4711") as fake:
        yield fake


@pytest.fixture
async def gateway(upstream: FakeUpstream, store_url: str, client: Client, tmp_path: Path) -> AsyncIterator[Running]:
    chain = CHAIN.replace("concurrent: 50", "concurrent: 50, requests_per_minute: 6").replace(
        "requests_per_minute: 1000, ", ""
    )
    async with running(configuration(upstream.base_url, chain=chain), tmp_path, store_url) as whole:
        yield whole


@pytest.fixture
async def paced(store_url: str, client: Client, tmp_path: Path) -> AsyncIterator[Running]:
    """Yield a gateway whose answers take a third of a second."""
    async with (
        FakeUpstream(
            pace_s=0.03, words="one two three four five six seven eight", key="channel-credential-4711"
        ) as fake,
        running(configuration(fake.base_url), tmp_path, store_url) as whole,
    ):
        yield whole


async def diagnoses(base_url: str, token: str = "", model: str = "words") -> list[Diagnosis]:
    return [diagnosis async for diagnosis in diagnose(base_url, token, model)]


async def fault(base_url: str, token: str = "", model: str = "words") -> Diagnosis:
    result = await diagnoses(base_url, token, model)
    assert [diagnosis.verdict for diagnosis in result[:-1]].count("ill") == 0
    assert result[-1].verdict == "ill", result
    assert result[-1].remedy
    assert not token or token not in str(result)
    return result[-1]


SUBJECTS = ["address", "network", "gateway", "token", "model", "request"]


async def test_a_healthy_gateway_is_found_well(gateway: Running) -> None:
    result = await diagnoses(gateway.base_url, await gateway.token())
    assert [diagnosis.verdict for diagnosis in result] == ["well"] * 6
    assert [diagnosis.subject for diagnosis in result] == SUBJECTS


async def test_a_gateway_whose_proxy_knows_the_token(gateway: Running) -> None:
    async with Proxy(gateway.port, add={"Authorization": f"Bearer {await gateway.token()}"}) as proxy:
        result = await diagnoses(proxy.url())
    assert [diagnosis.subject for diagnosis in result[:4]] == SUBJECTS[:4]
    assert "asks callers for no token" in result[3].text


# The way to the gateway.


def way_through(gateway_port: int) -> dict[str, tuple[Proxy, str, str, str]]:
    """Return proxies, with the base path, and the subject and code of the last diagnosis that is not well."""
    port = gateway_port
    redirect = {"Location": "https://ai.example.com/v1/models?x=1"}
    basic = {"WWW-Authenticate": 'Basic realm="office"'}
    json_page = Says(200, {"Content-Type": "application/json"}, b'{"object":"list","data":[{"id":"llama"}]}')
    openai = b'{"error":{"message":"no","type":"t","param":null,"code":"invalid_api_key"}}'
    return {
        "a good proxy": (Proxy(port), "/v1", "", ""),
        "a path prefix": (Proxy(port, cut_prefix="/ai"), "/ai/v1", "", ""),
        "a prefix in place of /v1": (Proxy(port, put_prefix="/v1"), "", "address", "address_without_v1"),
        "a prefix that is passed on": (Proxy(port), "/ai/v1", "gateway", "path_changed"),
        "a proxy that doubles /v1": (Proxy(port, put_prefix="/v1"), "/v1", "gateway", "path_changed"),
        "no /v1": (Proxy(port), "", "gateway", "path_changed"),
        "a redirect": (Proxy(says=Says(301, redirect)), "/v1", "gateway", "other_service"),
        "a captive portal": (Proxy(says=Says(200, body=PAGE)), "/v1", "gateway", "other_service"),
        "a login of the proxy": (Proxy(says=Says(401, basic)), "/v1", "gateway", "other_service"),
        "another API": (Proxy(says=json_page), "/v1", "gateway", "other_service"),
        "OpenAI": (Proxy(says=Says(401, {}, openai)), "/v1", "gateway", "other_service"),
        "502 of the proxy": (Proxy(says=Says(502, body=PAGE)), "/v1", "gateway", "other_service"),
        "Authorization removed": (Proxy(port, drop=["Authorization"]), "/v1", "token", "authorization_removed"),
        "Authorization replaced": (Proxy(port, add={"Authorization": "Basic eDp5"}), "/v1", "token", "token_invalid"),
        "no x-request-id": (Proxy(port, hide=["x-request-id"]), "/v1", "", ""),
        "cut": (Proxy(port, cut_after=150), "/v1", "request", "cut"),
        "504 for long answers": (Proxy(port, says=Says(504), method="POST"), "/v1", "request", "other_service"),
        "POST is not answered": (Proxy(port, closes="POST"), "/v1", "request", "cut"),
        "a page for POST": (Proxy(port, says=Says(200, body=PAGE), method="POST"), "/v1", "request", "other_service"),
    }


async def test_what_is_on_the_way(paced: Running) -> None:
    token = await paced.token()
    wrong: dict[str, object] = {}
    for name, (proxy, path, subject, code) in way_through(paced.port).items():
        async with proxy:
            result = await diagnoses(proxy.url(path), token)
        found = [diagnosis for diagnosis in result if diagnosis.verdict != "well"]
        if {(diagnosis.subject, diagnosis.code) for diagnosis in found} - {SIDE_NOTE.get(name)} != (
            {(subject, code)} if code else set()
        ):
            wrong[name] = result
        assert all(diagnosis.remedy for diagnosis in found)
        assert str(result).isprintable()
        assert token not in str(result)
        assert [word for word in WORDS.get(name, ()) if word not in result[-1].text] == [], result[-1]
        shown_to = {path for _, path, authorization in proxy.seen if token in authorization}
        assert not shown_to or any("gateway answers below" in diagnosis.text for diagnosis in result)
    assert wrong == {}


WORDS = {
    "a redirect": ["https://ai.example.com/v1/models"],
    "a captive portal": ["fake-proxy/1.0", "status 200"],
    "a prefix that is passed on": ["Known here"],
}
SIDE_NOTE = {"no /v1": ("address", "address_without_v1")}
"""What is noted before the finding."""


async def test_a_proxy_of_the_environment_is_named(gateway: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://user:pass-word@127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    result = await diagnoses(gateway.base_url)
    assert [diagnosis.code for diagnosis in result] == ["", "proxy_of_environment"]
    assert "NO_PROXY" in result[-1].remedy
    assert "pass-word" not in str(result)


async def test_a_gateway_that_stops_is_not_ready(gateway: Running) -> None:
    gateway.gateway.draining = gateway.gateway.closing = True
    assert (await fault(gateway.base_url)).code == "not_ready"


# The request reached the service and failed.


async def test_what_the_service_refuses_is_named(gateway: Running) -> None:
    token = await gateway.token()
    elsewhere = (await gateway.store.tokens.create("tester", addresses=("192.0.2.7",))).token
    assert (await fault(gateway.base_url, elsewhere)).code == "token_restricted"
    await gateway.store.accounts.change("tester", status=AccountStatus.SUSPENDED)
    for given, text in (
        ("", "401 token_missing"),
        ("sk-nobody-aaaaaaaa-bbbb", "401 token_invalid"),
        (token, "403 account_inactive"),
        (await gateway.token("another", group="closed"), "403 group_forbidden"),
        (await gateway.token("poor", credit=0), "402 insufficient_balance"),
    ):
        assert text in (await fault(gateway.base_url, given)).text


async def test_the_model_is_wrong_and_the_right_ones_are_named(gateway: Running) -> None:
    token = await gateway.token()
    diagnosis = await fault(gateway.base_url, token, "gpt-77")
    assert "gpt-77" in diagnosis.text
    assert diagnosis.remedy == "Use one of: words, other."


async def test_a_token_that_was_copied_wrongly_is_not_sent(gateway: Running) -> None:
    for token in ("Bearer sk-x", "sk-\nx", "sk-\u00e9", "\u201csk-x\u201d", "sk-\x00"):
        assert (await fault(gateway.base_url, token)).code == "token_malformed", token


async def test_the_limit_is_reached(gateway: Running) -> None:
    token = await gateway.token()
    for _ in range(6):
        *_, last = await diagnoses(gateway.base_url, token)
    assert (last.verdict, last.code, last.text[:16]) == ("ill", "rate_limited", "429 rate_limited")


@pytest.mark.parametrize(
    ("mode", "word"), [("500", "502 upstream_error"), ("401", "502 upstream_auth_failed"), ("cut", "broke off")]
)
async def test_the_upstream_fails(gateway: Running, upstream: FakeUpstream, mode: str, word: str) -> None:
    upstream.mode = mode
    assert word in (await fault(gateway.base_url, await gateway.token())).text


# Base addresses that are wrong before anything is sent, and what to write instead.
WRONG = (
    *("", "localhost", "api.example.com/v1", "localhost:8080/v1", "http:/host/v1", "https:///v1", "ftp://host/v1"),
    *("https://host:99999/v1", "https://host:http/v1", "https://host:0/v1", "https://[::1/v1", "https://a..b/v1"),
    *(f"https://{'a' * 64}.example/v1", "https://xn--/v1", "https://h\u200b/v1", "https://ho st/v1"),
    *(
        "https://user:pass-word@host/v1",
        "https://user:pass-word@ho st:x/v1",
        "https://host/v1?key=1",
        "https://host/v1#top",
    ),
)


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_address(text: str) -> None:
    _, diagnosis = parsed(text)
    assert (diagnosis.subject, diagnosis.verdict, diagnosis.code) == ("address", "ill", "address_invalid")
    assert "as in https://host/v1" in diagnosis.remedy
    assert "pass-word" not in str(diagnosis)
    assert str(diagnosis).isprintable()


@pytest.mark.parametrize(
    "text",
    [
        "http://127.0.0.1:8080/v1",
        "https://host/ai/v1",
        " https://host/v1/\n",
        "HTTPS://[::1]:8443/v1",
        "https://b\u00fccher.example/v1",
    ],
)
def test_a_right_address(text: str) -> None:
    url, diagnosis = parsed(text)
    assert diagnosis.verdict == "well"
    assert str(url / "models").endswith("/v1/models")


@pytest.mark.parametrize("text", ["https://host", "https://host/", "https://host/ai", "https://host/V1"])
def test_an_address_that_is_right_only_behind_a_proxy_that_adds_v1(text: str) -> None:
    _, diagnosis = parsed(text)
    assert (diagnosis.verdict, diagnosis.code) == ("note", "address_without_v1")


# Why nothing answers: each way in which a name, a port or TLS can be wrong has its own verdict.
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


async def test_names_and_ports() -> None:
    assert (await last("https://no-such-host.invalid/v1")).code == "unreachable"
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    refused = await last(f"http://127.0.0.1:{port}/v1")
    assert (refused.code, f"127.0.0.1:{port} cannot be reached" in refused.text) == ("unreachable", True)
    assert "Nothing reached the gateway" in refused.remedy
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"
    for said in (b"", b"SSH-2.0-OpenSSH_9.2\r\n", head):
        async with listening(lambda writer, said=said: writer.write(said)) as port:  # type: ignore[misc]
            assert (await last(f"http://127.0.0.1:{port}/v1")).code == "no_answer"
            assert (await last(f"https://127.0.0.1:{port}/v1")).code in ("unreachable", "no_answer")


async def test_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "ANSWER_S", 0.3)
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
    assert found.code == "no_answer"


async def test_certificates(ca: Path) -> None:
    html = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>"
    for names, days, trusted, code in (
        (["127.0.0.1"], 0, ca, "other_service"),
        (["127.0.0.1"], 0, None, "certificate"),
        (["gateway.example.com"], 0, ca, "certificate"),
        (["127.0.0.1"], 2, ca, "certificate"),
    ):
        async with listening(lambda writer: writer.write(html), certified(*names, days=days)) as port:
            found = await last(f"https://127.0.0.1:{port}/v1", trusted)
        assert (found.verdict, found.code) == ("ill", code)
        assert ("--ca FILE" in found.remedy) == (code == "certificate")
    other = certified("127.0.0.1", authority=trustme.CA())
    async with listening(lambda writer: writer.write(html), other) as port:
        assert (await last(f"https://127.0.0.1:{port}/v1", ca)).code == "certificate"


@pytest.mark.parametrize("status", [b"HTTP/1.1 407 Who are you\r\n\r\n", b"HTTP/1.1 403 No\r\n\r\n"])
async def test_a_proxy_of_the_environment_that_refuses(status: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    async with listening(lambda writer: writer.write(status)) as port:
        monkeypatch.setenv("https_proxy", f"http://user:pass-word@127.0.0.1:{port}")
        found = await last("https://gateway.example.com/v1")
    assert (found.subject, found.code) == ("network", "proxy_of_environment")
    assert "pass-word" not in str(found)


def test_a_file_without_authorities(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("no certificate")
    for name, why in (("missing.pem", "No such file or directory"), ("empty.pem", "it has no certificate in PEM")):
        with pytest.raises(Misconfigured, match=f"^--ca .*{name}: {why}; give the certificates"):
            trust_of(tmp_path / name)
