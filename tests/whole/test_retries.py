"""The official client's own retries against each error that it retries: how often the upstream is called, and that a wait that
was announced is enough.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest

from gateway.store.channels import Condition, CooldownRules
from gateway.store.client.client import Client
from gateway.store.embedded import EmbeddedStore
from gateway.testing import Running, running
from tests.place import Place
from tests.whole.conftest import CHAIN, Serve, configuration
from tests.whole.raw import ask, chat
from tests.whole.scripted import CHUNKED, LAST, Fin, Forever, Hold, Scripted, Step, chunk
from tests.whole.test_channels import GOOD, gateway_with, until
from tests.whole.test_stream import STREAM, WORDS
from tests.whole.test_upstream_faults import full_response

QUICK = CooldownRules(first_ms=50, max_ms=400)
"""Cool-downs that are short enough for a test."""


class Try(msgspec.Struct):
    """One answer that the client got: when, and what it says about retrying."""

    at: float
    status: int
    code: str
    wait_ms: str
    retry_after: str
    should_retry: str


@asynccontextmanager
async def recording(
    gateway: Running, token: str, retries: int, on_answer: Callable[[], None]
) -> AsyncIterator[tuple[openai.AsyncOpenAI, list[Try]]]:
    """Yield the official client, and the list of the answers that it gets. `on_answer` is called at each."""
    tries: list[Try] = []

    async def note(response: Any) -> None:
        code = ""
        if response.status_code >= 400:
            code = msgspec.json.decode(await response.aread())["error"]["code"]
        headers = response.headers
        on_answer()
        tries.append(
            Try(
                time.monotonic(),
                response.status_code,
                code,
                headers.get("retry-after-ms", ""),
                headers.get("retry-after", ""),
                headers.get("x-should-retry", ""),
            )
        )

    async with openai.DefaultAsyncHttpxClient(event_hooks={"response": [note]}) as http:
        yield (
            openai.AsyncOpenAI(base_url=gateway.base_url, api_key=token, max_retries=retries, http_client=http),
            tries,
        )


async def tried(gateway: Running, token: str, retries: int, on_answer: Callable[[], None] = lambda: None) -> list[Try]:
    """Return the answers that the client gets for one question."""
    async with recording(gateway, token, retries, on_answer) as (client, tries):
        try:
            stream = await client.chat.completions.create(
                model="words", messages=[{"role": "user", "content": "hi"}], stream=True
            )
            async for _ in stream:
                pass
        except openai.APIError:
            pass
    return tries


def assert_waits_suffice(tries: Sequence[Try]) -> None:
    """Assert that no answer after an announced wait is a refusal by the gateway, and that the client did wait."""
    for before, after in pairwise(tries):
        if before.wait_ms:
            assert after.code != "model_unavailable", tries
            assert after.at - before.at >= float(before.wait_ms) / 1000 - 0.01


RETRYABLE: dict[str, tuple[list[Step], int, str]] = {
    "429": ([full_response("429 Slow", b"{}", "retry-after-ms: 100")], 429, "upstream_rate_limited"),
    "500": ([full_response("500 No", b"{}", "retry-after-ms: 10")], 502, "upstream_error"),
    "502": ([full_response("502 No", b"{}", "retry-after-ms: 10")], 502, "upstream_error"),
    "503": ([full_response("503 No", b"{}", "retry-after-ms: 100")], 502, "upstream_error"),
    "504": ([full_response("504 No", b"{}", "retry-after-ms: 10")], 502, "upstream_error"),
    "529": ([full_response("529 No", b"{}", "retry-after-ms: 100")], 502, "upstream_error"),
    "without advice": ([full_response("500 No", b"{}")], 502, "upstream_error"),
    "first error": ([CHUNKED + chunk(b'data: {"error": {"message": "no"}}\n\n') + LAST], 502, "upstream_error"),
    "page": ([full_response("200 OK", b"<p>", kind="text/html")], 502, "upstream_error"),
    "refused": ([], 502, "upstream_unreachable"),
}


@pytest.mark.parametrize("fault", RETRYABLE)
async def test_with_one_channel_each_try_reaches_the_upstream(place: Place, fault: str) -> None:
    script, status, code = RETRYABLE[fault]
    async with gateway_with(*place, script) as (gateway, (upstream,)):
        gateway.store.channels.cooldown = QUICK
        token = await gateway.token()
        if fault == "refused":
            await upstream.__aexit__(None, None, None)
        tries = await tried(gateway, token, 6)
        assert [(each.status, each.code) for each in tries] == [(status, code)] * 7
        assert_waits_suffice(tries)
        if fault != "refused":
            assert len(upstream.requests) == 7


@pytest.mark.parametrize("fault", ["429", "503", "without advice"])
async def test_with_several_channels_a_wait_suffices_too(place: Place, fault: str) -> None:
    script, status, code = RETRYABLE[fault]
    async with gateway_with(*place, script, script) as (gateway, upstreams):
        gateway.store.channels.cooldown = QUICK
        tries = await tried(gateway, await gateway.token(), 6)
        assert [(each.status, each.code) for each in tries] == [(status, code)] * 7
        assert_waits_suffice(tries)
        assert all(3 <= len(upstream.requests) <= 7 for upstream in upstreams)


@pytest.mark.parametrize(
    ("script", "status", "code"),
    [
        ([full_response("500 No", b"{}", "x-should-retry: false")], 502, "upstream_error"),
        ([full_response("429 No", b"{}", "x-should-retry: false")], 429, "upstream_rate_limited"),
        ([full_response("409 No", b'{"error": {"message": "no"}}', "x-should-retry: false")], 409, "upstream_refused"),
        (
            [full_response("429 No", b'{"error": {"message": "pay", "code": "insufficient_quota"}}')],
            502,
            "upstream_auth_failed",
        ),
        ([full_response("429 Slow", b"{}", "Retry-After: 600")], 429, "upstream_rate_limited"),
        ([full_response("503 Slow", b"{}", "Retry-After: 600")], 502, "upstream_error"),
        ([full_response("403 No", b"{}")], 502, "upstream_auth_failed"),
        ([full_response("401 No", b"{}")], 502, "upstream_auth_failed"),
        ([full_response("407 No", b"{}")], 502, "upstream_unreachable"),
        ([full_response("422 No", b"<p>", kind="text/html")], 422, "upstream_refused"),
        ([Fin], 502, "upstream_error"),
        ([Hold], 504, "upstream_timeout"),
    ],
)
async def test_what_a_retry_cannot_mend_is_tried_once(place: Place, script: list[Step], status: int, code: str) -> None:
    each = ", timers: {first_byte: 0.3}" if script == [Hold] else ""
    async with gateway_with(*place, script, each=each) as (gateway, (upstream,)):
        (only,) = await tried(gateway, await gateway.token(), 6)
        assert (only.status, only.code) == (status, code)
        assert only.should_retry == ("" if status == 422 else "false")
        assert len(upstream.requests) == 1
        assert only.retry_after == ("59" if b"600" in repr(script).encode() else "")


async def test_a_wait_that_is_told_suffices_also_beside_advice_not_to_retry(place: Place) -> None:
    slow = full_response("429 Slow", b"{}", "retry-after-ms: 10\r\nx-should-retry: false")
    async with gateway_with(*place, [slow]) as (gateway, (upstream,)):
        gateway.store.channels.cooldown = CooldownRules(first_ms=300, max_ms=300)
        token, tries = await gateway.token(), list[Try]()
        for _ in range(3):
            tries += await tried(gateway, token, 0)
            await asyncio.sleep(float(tries[-1].wait_ms) / 1000)
        assert [(each.code, each.should_retry) for each in tries] == [("upstream_rate_limited", "false")] * 3
        assert len(upstream.requests) == 3


async def test_a_long_wait_is_told_in_the_message(place: Place) -> None:
    async with gateway_with(*place, [full_response("429 Slow", b"{}", "Retry-After: 600")]) as (
        gateway,
        _,
    ):
        answer = await ask(gateway.port, chat(await gateway.token()))
    assert answer.error["message"].endswith("Retry in 10 minutes.")
    assert (answer.headers["retry-after"], answer.headers["retry-after-ms"]) == ("59", "59000")


async def test_a_retry_of_a_recovered_channel_succeeds(serve: Serve) -> None:
    bad: list[Step] = [full_response("500 No", b"{}", "retry-after-ms: 10")]
    async with Scripted(bad, bad, bad, bad, GOOD) as upstream, serve(upstream.base_url) as gateway:
        gateway.store.channels.cooldown = QUICK
        tries = await tried(gateway, await gateway.token(), 6)
    assert [each.status for each in tries] == [502] * 4 + [200]
    assert float(tries[2].wait_ms) > 50, "the third failure in a row announces the cool-down"
    assert float(tries[3].wait_ms) > 100, "the cool-down that the store doubled is announced"


@pytest.mark.parametrize("closed", ["cooling", "disabled", "full"])
async def test_the_gateways_own_refusals(store_url: str, client: Client, tmp_path: Path, closed: str) -> None:
    gate = asyncio.Event()
    script: list[Step] = GOOD
    if closed == "full":
        script = [CHUNKED + chunk(WORDS[1]), Forever(b"", 0.01, until=gate.is_set), chunk(STREAM) + LAST]
    async with gateway_with(tmp_path, store_url, script, each=", concurrent: 1") as (gateway, (upstream,)):
        token = await gateway.token()
        waiting: list[asyncio.Task[object]] = []
        if closed == "cooling":
            state = "gw:{channels}:c0:state"
            now_s, _ = await gateway.store.client.call("TIME")
            await gateway.store.client.call("HSET", state, "until", int(now_s) * 1000 + 5000, "firm", 1)
            await until(gateway, "c0", Condition.COOLING)
        elif closed == "disabled":
            await gateway.store.channels.set_enabled("c0", False)
            await until(gateway, "c0", Condition.DISABLED)
        else:
            waiting.append(asyncio.create_task(ask(gateway.port, chat(token))))
            await asyncio.wait_for(upstream.arrived.wait(), 10)
        tries = await tried(gateway, token, 2, gate.set)
        await asyncio.gather(*waiting)
    if closed == "disabled":
        assert [(each.status, each.should_retry) for each in tries] == [(503, "false")]
    else:
        assert [each.status for each in tries] == [503, 200]
        assert tries[0].code == "model_unavailable"


@pytest.mark.parametrize("limit", ["requests_per_minute: 120", "tokens_per_minute: 6000"])
async def test_the_wait_that_a_rate_limit_announces_suffices(serve: Serve, limit: str) -> None:
    async with Scripted(GOOD) as upstream:
        chain = CHAIN.replace("requests_per_minute: 1000, tokens_per_minute: 1000000", limit)
        async with serve(upstream.base_url, chain=chain) as gateway:
            token = await gateway.token()
            body = {"max_tokens": 100}
            while (answer := await ask(gateway.port, chat(token, body))).status == 200:
                pass
            assert (answer.status, answer.error["code"]) == (429, "rate_limited")
            tries = await tried(gateway, token, 2)
    assert tries[-1].status == 200
    assert len(tries) <= 2


async def test_the_limit_of_concurrent_requests_is_retried(serve: Serve) -> None:
    gate = asyncio.Event()
    script: list[Step] = [CHUNKED + chunk(WORDS[1]), Forever(b"", 0.01, until=gate.is_set), chunk(STREAM) + LAST]
    async with Scripted(script) as upstream:
        chain = CHAIN.replace("concurrent: 50", "concurrent: 1")
        async with serve(upstream.base_url, chain=chain) as gateway:
            token = await gateway.token()
            first = asyncio.create_task(ask(gateway.port, chat(token)))
            await asyncio.wait_for(upstream.arrived.wait(), 10)
            tries = await tried(gateway, token, 2, gate.set)
            await first
    assert [(each.status, each.code) for each in tries] == [(429, "too_many_concurrent"), (200, "")]


async def test_a_store_that_is_away_is_retried(tmp_path: Path) -> None:
    store = EmbeddedStore.start(tmp_path / "store")
    async with (
        Scripted(GOOD) as upstream,
        running(configuration(upstream.base_url, store_timeout=0.4), tmp_path, store.url) as gateway,
    ):
        token = await gateway.token()
        await asyncio.to_thread(store.stop)
        tries = await tried(gateway, token, 2)
    assert [(each.status, each.code) for each in tries] == [(503, "service_unavailable")] * 3
    assert upstream.requests == []
