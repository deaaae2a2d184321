"""Doctor names each fault that a caller can meet, from outside, against a gateway that has it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from pytest_aiohttp import AiohttpServer

from gateway.fake_upstream import FakeUpstream
from gateway.store.accounts import AccountStatus
from gateway.store.client.client import Client
from gateway.testing import Running, running
from gateway.tools.doctor import Diagnosis, diagnose
from tests.whole.conftest import CHAIN, configuration
from tests.whole.scripted import HEAD, Scripted


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


async def diagnoses(base_url: str, token: str = "", model: str = "words") -> list[Diagnosis]:
    return [diagnosis async for diagnosis in diagnose(base_url, token, model)]


async def fault(base_url: str, token: str = "", model: str = "words") -> Diagnosis:
    result = await diagnoses(base_url, token, model)
    assert [diagnosis.verdict for diagnosis in result[:-1]].count("ill") == 0
    assert result[-1].verdict == "ill", result
    assert result[-1].remedy
    assert not token or token not in str(result)
    return result[-1]


async def test_a_healthy_gateway_is_found_well(gateway: Running) -> None:
    result = await diagnoses(gateway.base_url, await gateway.token())
    assert [diagnosis.verdict for diagnosis in result] == ["well"] * 5
    assert [diagnosis.subject for diagnosis in result] == ["address", "network", "token", "model", "request"]


# The request did not reach the service.


@pytest.mark.parametrize(
    ("end", "word"),
    [("/v1/v1", "repeats /v1"), ("", "does not end in /v1"), ("/v1/chat/completions", "names an operation")],
)
async def test_a_wrong_path(gateway: Running, end: str, word: str) -> None:
    assert word in (await fault(gateway.base_url.removesuffix("/v1") + end)).text


async def test_no_address_at_all() -> None:
    assert "not an http address" in (await fault("localhost")).text


async def test_nothing_listens_there() -> None:
    assert "cannot be reached" in (await fault("http://127.0.0.1:1/v1")).text


async def test_another_service_or_a_proxy_answers_there(aiohttp_server: AiohttpServer) -> None:
    async def sign_in(_: web.Request) -> web.Response:
        return web.Response(text="<html>sign in</html>")

    application = web.Application()
    application.router.add_get("/{path:.*}", sign_in)
    server = await aiohttp_server(application)
    assert "something else answers" in (await fault(str(server.make_url("/v1")))).text


async def test_a_proxy_of_the_environment_is_noted(gateway: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    result = await diagnoses(gateway.base_url)
    assert result[1].subject == "proxy"
    assert "NO_PROXY" in result[1].remedy
    assert result[-1].verdict == "ill"


# The request reached the service and failed.


async def test_the_token_is_missing_or_wrong(gateway: Running) -> None:
    assert "401 token_missing" in (await fault(gateway.base_url)).text
    assert "401 token_invalid" in (await fault(gateway.base_url, "sk-nobody-aaaaaaaa-bbbb")).text


async def test_the_account_is_suspended(gateway: Running) -> None:
    token = await gateway.token()
    await gateway.store.accounts.set_status("tester", AccountStatus.SUSPENDED)
    assert "403 account_inactive" in (await fault(gateway.base_url, token)).text


async def test_the_group_is_disabled(gateway: Running) -> None:
    assert "403 group_forbidden" in (await fault(gateway.base_url, await gateway.token(group="closed"))).text


async def test_the_model_is_wrong_and_the_right_ones_are_named(gateway: Running) -> None:
    diagnosis = await fault(gateway.base_url, await gateway.token(), "gpt-77")
    assert "gpt-77" in diagnosis.text
    assert "words, other" in diagnosis.remedy


async def test_the_balance_is_too_low(gateway: Running) -> None:
    assert "402 insufficient_balance" in (await fault(gateway.base_url, await gateway.token(credit=0))).text


async def test_the_limit_is_reached(gateway: Running) -> None:
    token = await gateway.token()
    await diagnoses(gateway.base_url, token)
    await diagnoses(gateway.base_url, token)
    assert "429 rate_limited" in (await fault(gateway.base_url, token)).text


@pytest.mark.parametrize(
    ("mode", "word"), [("500", "502 upstream_error"), ("401", "502 upstream_auth_failed"), ("cut", "broke off")]
)
async def test_the_upstream_fails(gateway: Running, upstream: FakeUpstream, mode: str, word: str) -> None:
    upstream.mode = mode
    assert word in (await fault(gateway.base_url, await gateway.token())).text


async def test_an_answer_that_comes_all_at_once_is_noted(store_url: str, client: Client, tmp_path: Path) -> None:
    whole = b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    async with (
        Scripted([HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(whole), whole)]) as upstream,
        running(configuration(upstream.base_url), tmp_path, store_url) as gateway,
    ):
        result = await diagnoses(gateway.base_url, await gateway.token())
    assert (result[-1].verdict, "buffering proxy" in result[-1].remedy) == ("note", True)
