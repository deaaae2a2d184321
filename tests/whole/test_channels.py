"""Several channels behind a model: failover, cool-downs, limits, credentials, aliases, affinity, and the reasons of refusals."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from gateway import Outcome
from gateway.admin.actions.requests import in_words
from gateway.base.errors import GatewayError
from gateway.config.schema import load
from gateway.fake_upstream import FakeUpstream
from gateway.fake_upstream.server import ReceivedRequest
from gateway.store.channels import (
    ChannelLimits,
    ChannelReport,
    ChannelStatus,
    Condition,
    CooldownRules,
    CredentialState,
    fingerprint_of,
)
from gateway.store.client.client import Client
from gateway.testing import Running, running
from plugins.model_routing import ModelRouting
from tests.metrics.scrape import scrape, value
from tests.patience import PATIENCE_S, soon, wait_until
from tests.place import Place
from tests.whole.aftermath import assert_released, charged, end_records, last_end_record, tasks
from tests.whole.conftest import CHAIN
from tests.whole.raw import Answer, ask, chat, get
from tests.whole.scripted import CHUNKED, LAST, Fin, Forever, Hold, Reset, Scripted, Step, chunk
from tests.whole.test_stream import PASSED, STREAM, WORDS
from tests.whole.test_upstream_faults import full_response

# Several channels behind a model: failover, cool-downs, limits and credentials.
GOOD: list[Step] = [CHUNKED + chunk(STREAM) + LAST]
REFUSED = full_response("401 No", b'{"error": {"message": "bad key"}}')


def yaml(*base_urls: str, each: str = "", tiers: bool = True) -> str:
    """Return YAML with one model served by channels `c0`, `c1`, ..., in this order or, without `tiers`, of equal priority."""
    names = [f"c{n}" for n in range(len(base_urls))]
    channels = "\n".join(f'  {name}: {{base_url: "{url}"{each}}}' for name, url in zip(names, base_urls, strict=True))
    servings = ", ".join(f"{{use: {name}, priority: {n if tiers else 0}}}" for n, name in enumerate(names))
    return (
        f"channels:\n{channels}\nmodels:\n  words: {{input: 1, output: 2, max_output_tokens: 100, channels: [{servings}]}}\n"
        f"groups:\n  default: {{}}\nstore: {{timeout: {PATIENCE_S}}}\n{CHAIN}"
    )


@asynccontextmanager
async def gateway_with(
    folder: Path, url: str, *scripts: list[Step], each: str = ""
) -> AsyncIterator[tuple[Running, list[Scripted]]]:
    """Yield a gateway whose channels play these scripts, and the upstreams, in this order."""
    async with AsyncExitStack() as stack:
        upstreams = [await stack.enter_async_context(Scripted(script)) for script in scripts]
        text = yaml(*(upstream.base_url for upstream in upstreams), each=each)
        yield await stack.enter_async_context(running(text, folder, url)), upstreams


async def conditions(gateway: Running) -> dict[str, Condition]:
    shown = await gateway.store.channels.show(list(gateway.gateway.services.catalogue.channels))
    return {each.channel: each.condition for each in shown}


def status_of(gateway: Running, channel: str) -> ChannelStatus:
    """Return the status of a channel as the gateway knows it."""
    routing = gateway.gateway.chain.entries[-1].plugin
    assert isinstance(routing, ModelRouting)
    return routing.health._channels[channel].status


async def until(gateway: Running, channel: str, condition: Condition) -> None:
    """Wait until the channel has this condition in the store and in the gateway's copy."""
    async with asyncio.timeout(PATIENCE_S):
        while {status_of(gateway, channel).shown, (await conditions(gateway))[channel]} != {condition}:
            await asyncio.sleep(0.01)


async def until_called(upstream: Scripted, times: int) -> None:
    await wait_until(lambda: len(upstream.requests) >= times)


async def answered(calls: Sequence[asyncio.Task[Answer]], count: int) -> None:
    """Wait until `count` of the calls are answered."""
    await wait_until(lambda: sum(call.done() for call in calls) >= count)


def pausing_script(gate: asyncio.Event) -> list[Step]:
    """Return a script of a response that begins at once, and ends when the gate is set."""
    return [CHUNKED + chunk(WORDS[1]), Forever(b"", 0.01, until=gate.is_set), chunk(STREAM) + LAST]


RETRIED: dict[str, list[Step]] = {
    "refused": [],
    "closed": [Fin],
    "silent": [Hold],
    "429": [full_response("429 Slow", b"{}", "Retry-After: 7")],
    "529": [full_response("529 Overloaded", b"{}")],
    "500": [full_response("500 No", b"{}")],
    "401": [REFUSED],
    "redirect": [full_response("307 There", b"", "Location: http://127.0.0.1:1/")],
    "page": [full_response("200 OK", b"<p>", kind="text/html")],
    "first error": [CHUNKED + chunk(b'data: {"error": {"message": "no"}}\n\n') + LAST],
    "no event": [CHUNKED + LAST],
    "garbage": [b"hello\r\n\r\n", Hold],
}


@pytest.mark.parametrize("fault", RETRIED)
async def test_the_next_channel_serves_when_the_first_fails(place: Place, fault: str) -> None:
    each = ", timers: {first_byte: 0.5}" if fault == "silent" else ""
    async with gateway_with(*place, RETRIED[fault], GOOD, each=each) as (gateway, (first, second)):
        token = await gateway.token()
        if fault == "refused":
            await first.__aexit__(None, None, None)
        before = tasks()
        answer = await ask(gateway.port, chat(token))
        assert (answer.status, answer.body, answer.whole) == (200, PASSED, True)
        record = await last_end_record(gateway)
        assert [tried.channel for tried in record.attempts] == ["c0", "c1"]
        assert (record.outcome, record.channel) == (Outcome.COMPLETED, "c1")
        assert record.attempts[0].error
        assert record.charge_micros == await charged(gateway)
        may_be_billed = fault in ("closed", "silent")
        assert (record.prompt_tokens > 11) == may_be_billed, "an attempt that may have been billed adds to the usage"
        await assert_released(gateway, second, before, 1)
        assert len(second.requests) == 1


async def test_a_callers_mistake_is_not_retried(place: Place) -> None:
    wrong = [full_response("400 No", b'{"error": {"message": "too long", "type": "invalid_request_error"}}')]
    async with gateway_with(*place, list(wrong), GOOD) as (gateway, (_, second)):
        answer = await ask(gateway.port, chat(await gateway.token()))
        assert (answer.status, answer.error["message"]) == (400, "too long")
        assert second.requests == []


async def test_nothing_is_retried_after_the_first_byte(place: Place) -> None:
    async with gateway_with(*place, [CHUNKED + chunk(WORDS[1]), Reset], GOOD) as (gateway, (_, second)):
        answer = await ask(gateway.port, chat(await gateway.token()))
        assert (answer.status, answer.whole) == (200, False)
        assert second.requests == []


async def test_at_most_three_channels_are_called_and_none_twice(place: Place) -> None:
    bad: list[Step] = [full_response("500 No", b"{}")]
    async with gateway_with(*place, bad, bad, bad, GOOD) as (gateway, upstreams):
        answer = await ask(gateway.port, chat(await gateway.token()))
        assert (answer.status, answer.error["code"]) == (502, "upstream_error")
        assert [len(upstream.requests) for upstream in upstreams] == [1, 1, 1, 0]


async def test_a_channel_is_not_called_twice_under_another_name_of_the_model(place: Place) -> None:
    async with Scripted([full_response("500 No", b"{}")]) as upstream:
        text = yaml(upstream.base_url).replace(
            "{use: c0, priority: 0}", "{use: c0}, {use: c0, model: other, priority: 1}"
        )
        async with running(text, *place) as gateway:
            assert (await ask(gateway.port, chat(await gateway.token()))).status == 502
            assert len(upstream.requests) == 1


async def test_a_failing_channel_gets_no_request_while_it_cools_and_then_one_probe(
    store_url: str, client: Client, tmp_path: Path
) -> None:
    async with gateway_with(tmp_path, store_url, [full_response("500 No", b"{}")], GOOD) as (gateway, (first, second)):
        token = await gateway.token()
        gateway.store.channels.cooldown = CooldownRules(first_ms=3_600_000, max_ms=3_600_000)
        for each in (token, await gateway.token("other")) * 2:
            assert (await ask(gateway.port, chat(each))).status == 200
        await until(gateway, "c0", Condition.COOLING)
        for _ in range(10):
            assert (await ask(gateway.port, chat(token))).status == 200
        assert len(first.requests) == 4
        await gateway.store.client.call("HSET", "gw:{channels}:c0:state", "until", 1)  # the cool-down is over
        await wait_until(lambda: not status_of(gateway, "c0").cool_ms)
        gate, before = asyncio.Event(), len(second.requests)
        first.scripts = ([CHUNKED, Forever(b"", 0.01, until=gate.is_set), chunk(STREAM) + LAST],)
        calls = [asyncio.create_task(ask(gateway.port, chat(token))) for _ in range(10)]
        await until_called(first, 5)
        await until_called(second, before + 9)
        gate.set()
        assert [answer.status for answer in await asyncio.gather(*calls)] == [200] * 10
        assert len(first.requests) == 5, "more than one probe was sent"
        await until(gateway, "c0", Condition.HEALTHY)
        assert (await ask(gateway.port, chat(token))).status == 200
        assert len(first.requests) == 6


async def test_when_all_channels_cool_the_response_says_when_to_retry(place: Place) -> None:
    busy: list[Step] = [full_response("429 Slow", b"{}", "Retry-After: 55")]
    async with gateway_with(*place, busy, busy) as (gateway, (first, second)):
        token = await gateway.token()
        answer = await ask(gateway.port, chat(token))
        assert (answer.status, answer.error["code"], answer.headers["retry-after"]) == (
            429,
            "upstream_rate_limited",
            "55",
        )
        for _ in range(2):
            assert (await ask(gateway.port, chat(token))).status == 429
        before = tasks()
        answer = await ask(gateway.port, chat(token))
        assert (answer.status, answer.error["type"], answer.error["code"]) == (
            503,
            "upstream_error",
            "model_unavailable",
        )
        assert 1 <= int(answer.headers["retry-after"]) <= 56
        assert (len(first.requests), len(second.requests)) == (3, 3)
        record = await last_end_record(gateway)
        assert (record.outcome, record.error_code, record.attempts) == (
            Outcome.UPSTREAM_FAILED,
            "model_unavailable",
            [],
        )
        assert record.unavailable.keys() == {"c0", "c1"}
        samples = scrape(gateway.gateway.runner.metrics.shared)
        for name in ("c0", "c1"):
            assert value(samples, "channel_unavailable_total", channel=name, reason="failing") == 1
        assert value(samples, "requests_total", outcome="upstream_failed", model="words", channel="none") == 1
        assert await charged(gateway) == 0
        await assert_released(gateway, second, before, 1)


async def test_a_full_channel_is_skipped_and_requests_are_refused_when_all_are_full(
    store_url: str, client: Client, tmp_path: Path
) -> None:
    gate = asyncio.Event()
    slow = pausing_script(gate)
    async with gateway_with(tmp_path, store_url, slow, slow, each=", concurrent: 2") as (gateway, upstreams):
        token = await gateway.token()
        calls = [asyncio.create_task(ask(gateway.port, chat(token))) for _ in range(7)]
        await answered(calls, 3)
        gate.set()
        assert sorted(answer.status for answer in await asyncio.gather(*calls)) == [200] * 4 + [503] * 3
        assert [len(upstream.requests) for upstream in upstreams] == [2, 2]
        await last_end_record(gateway)
        async with asyncio.timeout(PATIENCE_S):
            for channel in ("c0", "c1"):
                while await gateway.store.client.call("ZCARD", f"gw:{{channels}}:{channel}:slots"):
                    await asyncio.sleep(0.01)
        assert (await ask(gateway.port, chat(token))).status == 200, "the slots were not released"


async def test_a_channels_requests_per_minute_are_limited(place: Place) -> None:
    async with gateway_with(*place, GOOD, GOOD, each=", requests_per_minute: 2") as (gateway, upstreams):
        token = await gateway.token()
        statuses = [(await ask(gateway.port, chat(token))).status for _ in range(5)]
        assert statuses == [200, 200, 200, 200, 503]
        assert [len(upstream.requests) for upstream in upstreams] == [2, 2]


async def test_two_gateways_agree_on_cool_downs_within_a_second_and_share_a_limit(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATEWAY_PEPPER", "the-pepper-of-both-gateways")
    gate = asyncio.Event()
    (tmp_path / "other").mkdir()
    async with (
        Scripted([0.3, full_response("429 Slow", b"{}", "Retry-After: 100")]) as first,
        Scripted(pausing_script(gate)) as second,
    ):
        text = yaml(first.base_url, second.base_url, each=", concurrent: 6")
        async with running(text, tmp_path, store_url) as one, running(text, tmp_path / "other", store_url) as two:
            token, other = await one.token(), await two.token("other")
            tokens = (token, await one.token("another")) * 2
            early = [asyncio.create_task(ask(one.port, chat(each))) for each in tokens]
            await until(one, "c0", Condition.COOLING)
            await soon(until(two, "c0", Condition.COOLING))
            await until_called(second, 4)
            assert len(first.requests) == 4
            requests = [
                ask(gateway.port, chat(each)) for gateway, each in ((one, token), (two, other)) for _ in range(5)
            ]
            calls = [*early, *map(asyncio.create_task, requests)]
            await answered(calls, 8)
            gate.set()
            answers = await asyncio.gather(*calls)
            assert sorted(answer.status for answer in answers) == [200] * 6 + [503] * 8
            assert len(first.requests) == 4, "the other gateway called a channel that cools"


async def test_a_channel_that_stops_under_load_breaks_only_its_open_streams(place: Place) -> None:
    async with (
        FakeUpstream(pace_s=0.005) as first,
        FakeUpstream(pace_s=0.005) as second,
        running(yaml(first.base_url, second.base_url, tiers=False), *place) as gateway,
    ):
        token = await gateway.token()
        answers: list[Answer] = []
        stop = asyncio.Event()

        async def call() -> None:
            while not stop.is_set():
                answers.append(await ask(gateway.port, chat(token, {"max_tokens": 8})))

        callers = [asyncio.create_task(call()) for _ in range(8)]
        async with asyncio.timeout(PATIENCE_S):
            while len(answers) < 40:
                await asyncio.sleep(0.01)
            open_there = len(first.requests)
            await first.stop()
            killed_at = len(answers)
            while len(answers) < killed_at + 100:
                await asyncio.sleep(0.01)
        stop.set()
        await asyncio.gather(*callers)
        assert open_there > 5, "the load did not use both channels"
        assert {answer.status for answer in answers} == {200}
        cut = [answer for answer in answers if not answer.whole]
        assert len(cut) <= 8
        for answer in cut:
            assert (
                json.loads(answer.body.split(b"\n\n")[-2].removeprefix(b"data: "))["error"]["code"]
                == "upstream_truncated"
            )
        await last_end_record(gateway)
        assert {record.outcome for record in await end_records(gateway)} <= {
            Outcome.COMPLETED,
            Outcome.UPSTREAM_TRUNCATED,
        }


async def test_an_error_in_a_stream_is_a_failure_of_its_channel(place: Place) -> None:
    async with (
        FakeUpstream(pace_s=0, mode="error-event") as upstream,
        running(yaml(upstream.base_url), *place) as gateway,
    ):
        token = await gateway.token()
        for _ in range(3):
            assert (await ask(gateway.port, chat(token))).status == 200
        await until(gateway, "c0", Condition.FAILING)
        (shown,) = await gateway.store.channels.show(["c0"])
        assert (shown.figures.calls, shown.figures.failed) == (3, 3)


async def test_a_disabled_channel_is_skipped_within_a_second(place: Place) -> None:
    async with gateway_with(*place, GOOD, GOOD) as (gateway, (first, second)):
        token = await gateway.token()
        await gateway.store.channels.set_enabled("c0", False)
        await soon(until(gateway, "c0", Condition.DISABLED))
        assert (await ask(gateway.port, chat(token))).status == 200
        assert (len(first.requests), len(second.requests)) == (0, 1)
        await gateway.store.channels.set_enabled("c0", True)
        await soon(until(gateway, "c0", Condition.HEALTHY))
        assert (await ask(gateway.port, chat(token))).status == 200
        assert (len(first.requests), len(second.requests)) == (1, 1)


async def test_credentials_are_used_in_turn_and_a_refused_one_is_suspended(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = ", api_keys: [canary-key-zero, canary-key-one, canary-key-two]"
    echo: list[Step] = [CHUNKED + chunk(b": canary-key-zero canary-key-one canary-key-two\n\n" + STREAM) + LAST]
    async with (
        Scripted(echo, [REFUSED], echo) as upstream,
        running(yaml(upstream.base_url, each=keys), *place) as gateway,
    ):
        token = await gateway.token()
        answers = [await ask(gateway.port, chat(token)) for _ in range(4)]
        record = await last_end_record(gateway)
    assert [answer.status for answer in answers] == [200] * 4
    used = [request.split(b"Bearer ")[1].split(b"\r\n")[0].decode() for request in upstream.requests]
    assert used == ["canary-key-zero", "canary-key-one", "canary-key-two", "canary-key-zero", "canary-key-two"]
    assert len(record.attempts) == 1
    assert all(answer.body.startswith(b": [redacted] [redacted] [redacted]\n\n") for answer in answers)
    assert "canary" not in repr(answers)
    printed = "".join(capsys.readouterr())
    assert "credential_refused" in printed
    assert "canary" not in printed


async def test_a_channel_whose_credentials_are_all_refused_cools(place: Place) -> None:
    async with gateway_with(*place, [REFUSED], each=", api_keys: [one, two]") as (gateway, (upstream,)):
        token = await gateway.token()
        answer = await ask(gateway.port, chat(token))
        assert (answer.status, answer.error["code"]) == (502, "upstream_auth_failed")
        assert len(upstream.requests) == 2
        await until(gateway, "c0", Condition.FAILING)
        await ask(gateway.port, chat(token))
        await ask(gateway.port, chat(token))
        await wait_until(lambda: status_of(gateway, "c0").shown is Condition.NO_CREDENTIAL)
        assert await charged(gateway) == 0


async def test_a_caller_is_told_not_to_wait_for_a_channel_without_a_credential(place: Place) -> None:
    async with gateway_with(*place, GOOD, each=", api_key: one") as (gateway, _):
        token = await gateway.token()
        gateway.gateway.services.store.channels.credentials.refused("c0", fingerprint_of("one"), "402", spent=True)
        await wait_until(lambda: status_of(gateway, "c0").condition is Condition.NO_CREDENTIAL)
        answer = await ask(gateway.port, chat(token))
        assert (answer.status, answer.headers["x-should-retry"]) == (503, "false")
        assert answer.error["message"] == (
            "Every channel of this model is closed until the operator opens one. Choose another model."
        )


async def test_an_upstream_that_loads_its_model_is_waited_for_and_closes_nothing(place: Place) -> None:
    loading: list[Step] = [
        full_response("503 No", b'{"error": {"message": "Loading model", "type": "unavailable_error"}}')
    ]
    async with (
        Scripted(loading, loading, GOOD) as upstream,
        running(yaml(upstream.base_url), *place) as gateway,
    ):
        call = asyncio.create_task(ask(gateway.port, chat(await gateway.token())))
        await until(gateway, "c0", Condition.STARTING)
        answer = await call
        record = await last_end_record(gateway)
        await until(gateway, "c0", Condition.HEALTHY)
    assert (answer.status, answer.body, len(upstream.requests)) == (200, PASSED, 3)
    assert [(each.channel, each.error) for each in record.attempts] == [("c0", "")]


async def test_while_an_upstream_loads_its_model_others_serve(place: Place) -> None:
    loading: list[Step] = [full_response("503 No", b'{"error": {"message": "Model is loading"}}')]
    async with gateway_with(*place, loading, GOOD) as (gateway, (first, second)):
        token = await gateway.token()
        assert (await ask(gateway.port, chat(token))).status == 200
        await until(gateway, "c0", Condition.STARTING)
        for _ in range(3):
            assert (await ask(gateway.port, chat(token))).status == 200
        assert (len(first.requests), len(second.requests)) == (1, 4)


async def test_an_upstream_that_loads_for_longer_than_its_first_byte_is_unavailable(place: Place) -> None:
    loading: list[Step] = [full_response("503 No", b'{"error": {"message": "Model is loading"}}', "Retry-After: 3")]
    async with gateway_with(*place, loading, each=", timers: {first_byte: 1}") as (gateway, _):
        answer = await ask(gateway.port, chat(await gateway.token()))
        record = await last_end_record(gateway)
    assert (answer.status, answer.error["code"], answer.headers["retry-after"]) == (503, "model_unavailable", "3")
    assert (record.outcome, record.attempts[0].message) == (Outcome.UPSTREAM_FAILED, "Model is loading")


@pytest.mark.parametrize(("key", "path"), [("", "/health"), ("canary-key-0123", "/v1/models")])
async def test_a_dead_channel_comes_back_by_a_free_probe_and_no_callers_request(
    place: Place, key: str, path: str
) -> None:
    async with FakeUpstream(pace_s=0, key=key or None) as upstream:
        each = f", probe: 0.1{f', api_key: {key}' if key else ''}"
        async with running(yaml(upstream.base_url, each=each), *place) as gateway:
            upstream.mode = "silent"
            failing = ChannelReport(failed=3, cool_ms=60_000, error="upstream_unreachable")
            await gateway.store.channels.sync("another", {"c0": failing})
            await until(gateway, "c0", Condition.HEALTHY)
            assert [request.path for request in upstream.requests] == [path]
            (tried,) = upstream.requests
            assert tried.headers.get("Authorization", "") == (f"Bearer {key}" if key else "")


async def test_an_upstream_that_limits_requests_is_not_probed(place: Place) -> None:
    async with FakeUpstream(pace_s=0) as limiting, FakeUpstream(pace_s=0) as dead:
        urls = (limiting.base_url, dead.base_url)
        async with running(yaml(*urls, each=", probe: 0.1"), *place) as gateway:
            errors = {"c0": "upstream_rate_limited", "c1": "upstream_unreachable"}
            reports = {name: ChannelReport(failed=3, cool_ms=60_000, error=error) for name, error in errors.items()}
            await gateway.store.channels.sync("another", reports)
            await until(gateway, "c1", Condition.HEALTHY)
            assert ((await conditions(gateway))["c0"], limiting.requests) == (Condition.COOLING, [])


async def test_a_channel_whose_probe_fails_stays_closed(place: Place) -> None:
    async with (
        FakeUpstream(pace_s=0, mode="loading") as upstream,
        running(yaml(upstream.base_url, each=", probe: 0.1"), *place) as gateway,
    ):
        failing = ChannelReport(failed=3, cool_ms=100, error="upstream_unreachable")
        await gateway.store.channels.sync("another", {"c0": failing})
        await wait_until(lambda: len(upstream.requests) >= 1)
        await wait_until(lambda: status_of(gateway, "c0").cool_ms > 1000)
        assert {request.path for request in upstream.requests} == {"/health"}
        upstream.mode = "words"
        await until(gateway, "c0", Condition.HEALTHY)


# What the operator learns of a refusal: the model that was asked for, why each channel could not be called, which key is bad.
KEYS = ["canary-key-zero", "canary-key-one"]
CHANNELS = """
channels:
  east: {base_url: "http://127.0.0.1:1/v1"}
  west: {base_url: "http://127.0.0.1:1/v1"}
  full: {base_url: "http://127.0.0.1:1/v1", concurrent: 1}
  keyless: {base_url: "http://127.0.0.1:1/v1", api_keys: [canary-key-zero, canary-key-one]}
  distant: {base_url: "http://127.0.0.1:1/v1"}
models: {words: {input: 1, output: 2, max_output_tokens: 100, channels: [east, west, full, keyless, distant]}}
groups: {default: {channels: [east, west, full, keyless]}}
plugins: [{use: usage-logger}, {use: auth}, {use: quota}, {use: model-routing}]
"""


async def reasons_until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await condition():
            await asyncio.sleep(0.01)


async def test_a_503_keeps_why_each_channel_could_not_be_called_and_its_caller_does_not_see_it(place: Place) -> None:
    async with running(f"{CHANNELS}store: {{timeout: {PATIENCE_S}}}\n", *place) as gateway:
        token, channels = await gateway.token(), gateway.store.channels
        await channels.set_enabled("east", False)
        for key in KEYS:
            await channels.switch_credential("keyless", key, "off")
        failing = ChannelReport(failed=3, cool_ms=60_000, error="upstream_auth_failed")
        await channels.sync("another", {"west": failing})
        await channels.admit("another", [ChannelLimits("full", 1, 0, 600_000, 1000)])
        routing = gateway.gateway.chain.entries[-1].plugin
        assert isinstance(routing, ModelRouting)
        await routing.health.sync()
        refused = await ask(gateway.port, chat(token))
        record = await last_end_record(gateway)
        await routing.health.sync()
    assert (refused.status, refused.error["code"], record.outcome) == (
        503,
        "model_unavailable",
        Outcome.UPSTREAM_FAILED,
    )
    words = in_words(record)
    assert "channel east was not asked: disabled" in words
    assert "channel west was not asked: cooling until 20" in words
    assert record.unavailable.pop("west").endswith("Z after upstream_auth_failed")
    assert record.unavailable == {
        "east": "disabled",
        "full": "full",
        "keyless": "no credential: each is spent or switched off",
        "distant": "not open to the group",
    }
    assert not any(name in refused.body.decode() for name in (*record.unavailable, "west"))


async def test_the_caller_reads_which_model_it_asked_for_and_no_channels(gateway: Running) -> None:
    token = await gateway.token()
    refused = await ask(gateway.port, chat(token, {"model": "wrods"}))
    pasted = await ask(gateway.port, chat(token, {"model": token}))
    assert (refused.status, pasted.status) == (404, 404)
    assert token not in pasted.body.decode()
    await last_end_record(gateway)
    for answer, requested in ((refused, "wrods"), (pasted, "hidden: ")):
        fields: dict[str, str] = {}

        async def found(answer: object = answer, fields: dict[str, str] = fields) -> bool:
            got = await ask(gateway.port, get(f"/v1/requests/{answer.headers['x-request-id']}", token))  # type: ignore[attr-defined]
            if got.status == 200:
                fields |= json.loads(got.body)
            return got.status == 200

        await reasons_until(found)
        assert requested in fields["requested_model"]
        assert fields["model"] == ""
        assert "unavailable" not in fields


async def test_a_credential_that_one_gateway_found_refused_is_set_aside_by_the_other_until_it_is_tried(
    store_url: str, client: Client, tmp_path: Path
) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(Scripted([REFUSED], GOOD))
        text = yaml(upstream.base_url, each=f", api_keys: {KEYS}")
        one, two = [await stack.enter_async_context(running(text, folder, store_url)) for folder in pepper_in(folders)]
        token, channels = await one.token(), two.gateway.services.store.channels
        assert (await ask(one.port, chat(token))).status == 200
        bad, good = map(fingerprint_of, KEYS)
        assert one.gateway.services.store.channels.credentials.until("c0", bad) > 0, (
            "the worker that met it knows at once"
        )

        async def aside() -> bool:
            return channels.credentials.until("c0", bad) > 0

        async def in_use() -> bool:
            return not await aside()

        await reasons_until(aside)
        answers = [await ask(two.port, chat(token)) for _ in range(4)]
        assert [answer.status for answer in answers] == [200] * 4
        used = [request.split(b"Bearer ")[1].split(b"\r\n")[0].decode() for request in upstream.requests]
        assert used == [KEYS[0]] + [KEYS[1]] * 5, "the other gateway does not meet it, too"
        (shown,) = await channels.show(["c0"])
        (_, first), (_, second) = channels.credentials_of(shown, KEYS)
        assert (first.state, first.reason, second.state) == (CredentialState.REFUSED, "401", CredentialState.IN_USE)
        assert (first.until_ms or 0) - (first.since_ms or 0) == 600_000
        assert channels.credentials_of(shown, ["another key", KEYS[1]])[0][1].state is CredentialState.IN_USE
        await channels.switch_credential("c0", KEYS[0], "try")
        await reasons_until(in_use)
        for _ in range(2):
            assert (await ask(two.port, chat(token))).status == 200
        assert KEYS[0].encode() in b"".join(upstream.requests[6:])
        await channels.switch_credential("c0", KEYS[1], "off")

        async def off() -> bool:
            return one.gateway.services.store.channels.credentials.until("c0", good) == float("inf")

        await reasons_until(off)
        before = len(upstream.requests)
        for _ in range(3):
            assert (await ask(one.port, chat(token))).status == 200
        assert all(KEYS[0].encode() in request for request in upstream.requests[before:])
        fields = await client.call("HGETALL", "gw:{channels}:c0:state")
        assert b"canary" not in b"".join([*fields, *fields.values()])


def pepper_in(folders: list[Path]) -> list[Path]:
    """Make the folders, with the same pepper in each."""
    for folder in folders:
        (folder / "data").mkdir(parents=True)
        (folder / "data/pepper").write_bytes(b"0123456789abcdef0123456789abcdef")
    return folders


# An alias is another name of a model: callers may name either, and records have the name that was asked for, too.
FILE = """
channels: {{east: {{base_url: "{url}"}}}}
models:
  words: {{input: 1, output: 2, max_output_tokens: 100, channels: [{{use: east, model: theirs}}]}}
  other: {{free: true, channels: [east]}}
aliases: {{fast: words, "claude-sonnet": other}}
groups: {{default: {{models: {models}}}}}
plugins: [{{use: usage-logger}}, {{use: auth}}, {{use: quota}}, {{use: model-routing}}]
"""


@pytest.mark.parametrize("models", ["[words]", "[fast]", '["*"]'])
async def test_an_alias_has_the_price_and_the_permissions_of_its_model(place: Place, models: str) -> None:
    async with (
        Scripted(GOOD) as upstream,
        running(FILE.format(url=upstream.base_url, models=models), *place) as gateway,
    ):
        token = await gateway.token()
        listed = json.loads((await ask(gateway.port, get("/v1/models", token))).body)["data"]
        one = json.loads((await ask(gateway.port, get("/v1/models/fast", token))).body)
        answers = [await ask(gateway.port, chat(token, {"model": name})) for name in ("words", "fast")]
        record = await last_end_record(gateway)
        samples = scrape(gateway.gateway.runner.metrics.shared)
        spent = await charged(gateway)
    named = {each["id"]: each["pricing"] for each in listed}
    everything = {"words", "other", "fast", "claude-sonnet"}
    assert named.keys() == (everything if models == '["*"]' else {"words", "fast"})
    assert named["fast"] == named["words"] == one["pricing"]
    assert [answer.status for answer in answers] == [200, 200]
    assert all(b'"model":"theirs"' in request for request in upstream.requests)
    assert (record.model, record.requested_model, record.changed_by) == ("words", "fast", ["aliases"])
    assert "changed by aliases" in in_words(record)
    assert 0 < record.charge_micros * 2 == spent
    assert value(samples, "requests_total", outcome="completed", model="words", channel="east") == 2


async def test_a_model_that_is_not_open_is_not_open_under_its_alias(place: Place) -> None:
    async with running(FILE.format(url="http://127.0.0.1:1/v1", models="[words]"), *place) as gateway:
        token = await gateway.token()
        answer = await ask(gateway.port, chat(token, {"model": "claude-sonnet"}))
        record = await last_end_record(gateway)
    assert (answer.status, answer.error["code"]) == (404, "model_not_found")
    assert (record.outcome, record.model, record.requested_model) == (Outcome.REFUSED, "other", "claude-sonnet")


@pytest.mark.parametrize(
    ("aliases", "message"),
    [
        ("{fast: nowhere}", "aliases.fast: there is no model `nowhere`"),
        ("{other: words}", "aliases.other: `other` is a model already; give the alias another name"),
        ("{fast: words, faster: fast}", "aliases.faster: an alias of an alias; name the model itself"),
        ('{"a\\nb": words}', "a name has 1 to 128 characters, and no control characters"),
    ],
)
def test_a_wrong_alias_is_refused(tmp_path: Path, aliases: str, message: str) -> None:
    text = FILE.format(url="http://127.0.0.1:1/v1", models="[words]")
    file = tmp_path / "gateway.yaml"
    file.write_text(text.replace('{fast: words, "claude-sonnet": other}', aliases))
    with pytest.raises(GatewayError) as refused:
        load(file)
    assert message in str(refused.value)


# A conversation stays with one credential of a channel, through all gateways of a store, so that its prompt is cached.
AFFINITY_KEYS = [f"canary-key-{name}" for name in ("zero", "one", "two", "three")]
AFFINITY_FILE = """
channels: {{one: {{base_url: "{url}", api_keys: {keys}, session_header: x-session-affinity}}}}
models:
  words: {{input: 1, cached_input: 0.1, output: 2, max_output_tokens: 100, channels: [one]}}
  plain: {{input: 1, output: 2, max_output_tokens: 100, channels: [one]}}
groups: {{default: {{}}}}
plugins: [{{use: usage-logger}}, {{use: auth}}, {{use: quota}}, {{use: model-routing}}]
"""
CONVERSATIONS, TURNS = 12, 5


def by_conversation(requests: list[ReceivedRequest]) -> dict[str, set[str]]:
    """Return the credentials that were used, by the digest of the conversation that the upstream was told."""
    used = defaultdict(set)
    for request in requests:
        used[request.headers.get("x-session-affinity", "")].add(
            request.headers["Authorization"].removeprefix("Bearer ")
        )
    return dict(used)


async def talk(gateways: list[Running], token: str, model: str) -> None:
    """Send the turns of conversations, each through another gateway than the one before."""
    for turn in range(TURNS):
        for number in range(CONVERSATIONS):
            said = [{"role": "user", "content": f"conversation {number}, turn {each}"} for each in range(turn + 1)]
            body = {"model": model, "prompt_cache_key": f"conversation {number}", "messages": said}
            answer = await ask(gateways[(turn + number) % len(gateways)].port, chat(token, body))
            assert answer.status == 200, answer.body


async def test_conversations_keep_their_credentials_and_only_those_of_a_refused_one_move_and_come_back(
    store_url: str, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(FakeUpstream(pace_s=0, caches=True))
        folders = pepper_in([tmp_path / "one", tmp_path / "two"])
        text = AFFINITY_FILE.format(url=upstream.base_url, keys=AFFINITY_KEYS)
        gateways = [await stack.enter_async_context(running(text, folder, store_url)) for folder in folders]
        token = await gateways[0].token()
        await talk(gateways, token, "words")
        before = by_conversation(upstream.requests)
        assert len(before) == CONVERSATIONS, "each is told by a digest of its own"
        assert "conversation" not in "".join(before)
        assert all(len(used) == 1 for used in before.values())
        record = await last_end_record(gateways[0])
        assert record.cached_tokens == 16, "all turns but the last"

        (bad,) = min(before.values(), key=lambda used: AFFINITY_KEYS.index(next(iter(used))))
        upstream.refused.add(bad)
        upstream.requests.clear()
        await talk(gateways, token, "words")
        moved = by_conversation([each for each in upstream.requests if bad not in each.headers["Authorization"]])
        assert all(moved[session] == used for session, used in before.items() if used != {bad})
        assert all(len(moved[session]) == 1 for session in before)

        upstream.refused.clear()
        store = gateways[0].store.channels

        async def refused() -> bool:
            (shown,) = await store.show(["one"])
            return any(
                status.state is CredentialState.REFUSED for _, status in store.credentials_of(shown, AFFINITY_KEYS)
            )

        await reasons_until(refused)

        async def in_use() -> bool:
            """Let it be tried until no gateway has it aside: the report of one may come after the first time."""
            await store.switch_credential("one", bad, "try")
            await asyncio.sleep(1)  # both have looked
            return not any(gateway.gateway.services.store.channels.credentials.aside for gateway in gateways)

        await reasons_until(in_use)
        upstream.requests.clear()
        await talk(gateways, token, "words")
        back = by_conversation(upstream.requests)
        assert back == before


@pytest.mark.parametrize("model", ["plain"])
async def test_without_affinity_credentials_are_used_in_turn_and_nothing_is_told(place: Place, model: str) -> None:
    async with (
        FakeUpstream(pace_s=0) as upstream,
        running(AFFINITY_FILE.format(url=upstream.base_url, keys=AFFINITY_KEYS), *place) as gateway,
    ):
        await talk([gateway], await gateway.token(), model)
        assert by_conversation(upstream.requests) == {"": set(AFFINITY_KEYS)}
