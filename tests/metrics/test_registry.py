"""Every request is counted once, under names of the configuration only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.base.errors import Refused, StoreAway, StoreError
from gateway.chat.usage import Usage
from gateway.config.channel import Channel
from gateway.config.model import Model
from gateway.config.schema import Config
from gateway.domain.catalogue import Catalogue
from gateway.domain.exchange import Attempt, Exchange, Outcome
from gateway.domain.prices import Price
from gateway.fake_upstream import FakeUpstream
from gateway.metrics.registry import Metrics
from gateway.metrics.shared import SharedNumbers
from gateway.proxy.failure import of_answer
from gateway.store.client.client import Client
from gateway.testing import exchange, running
from tests.metrics.scrape import scrape, value
from tests.whole.conftest import configuration
from tests.whole.raw import ask, chat, get

CATALOGUE = Catalogue(
    Config(
        channels={"fake": Channel(base_url="http://127.0.0.1:1/v1")},
        models={"words": Model(channels=["fake"], free=True)},
    )
)


def served(model: str = "words", channel: str = "fake") -> Exchange:
    """An exchange that was streamed: 0.2 s to the first byte, 3 s in all, no pause longer than 0.07 s."""
    one = exchange()
    one.model, one.channel, one.outcome = model, channel, Outcome.COMPLETED
    one.first_byte, one.ended, one.longest_gap_s = one.started + 0.2, one.started + 3, 0.07
    one.attempts.append(Attempt(channel, model, 200, usage=Usage(11, 5, "upstream")))
    one.charge("quota", 21)
    return one


def refused(code: str, plugin: str = "") -> Exchange:
    one = exchange()
    one.outcome, one.error, one.refused_by = Outcome.REFUSED, Refused(429, code, "no"), plugin
    one.ended = one.started
    return one


@pytest.mark.parametrize("code", [None, 7, ["a"], "\ud800", "long" * 50_000], ids=lambda code: repr(code)[:20])
def test_an_error_code_that_is_no_text_stops_neither_this_process_nor_its_successor(code: Any) -> None:
    shared = SharedNumbers(size=8192)
    one = refused("replaced")
    assert one.error is not None
    one.error.code = code
    Metrics(shared, CATALOGUE).ended(one)
    successor = Metrics(shared, CATALOGUE)
    for number in range(200):  # more than fit, so that it looks for entries to use again
        successor.count("errors", f"code {number}", "none")
    assert value(scrape(shared), "errors_total", code=_counted(code), plugin="none") == 1


def _counted(code: object) -> str:
    return {"\ud800": "?"}.get(code, code[:128]) if isinstance(code, str) else "other"


def test_a_served_request_is_counted_with_all_that_it_used() -> None:
    shared = SharedNumbers()
    Metrics(shared, CATALOGUE).ended(served())
    samples = scrape(shared)
    place = {"model": "words", "channel": "fake"}
    assert value(samples, "requests_total", outcome="completed", **place) == 1
    assert value(samples, "tokens_total", kind="prompt", **place) == 11
    assert value(samples, "tokens_total", kind="completion", **place) == 5
    assert value(samples, "charge_micros_total", **place) == 21
    assert value(samples, "first_byte_seconds_bucket", channel="fake", le="0.1") == 0
    assert value(samples, "first_byte_seconds_bucket", channel="fake", le="0.25") == 1
    assert value(samples, "first_byte_seconds_count", channel="fake") == 1
    assert value(samples, "duration_seconds_sum", channel="fake") == pytest.approx(3)
    assert value(samples, "longest_gap_seconds_bucket", channel="fake", le="0.05") == 0
    assert value(samples, "longest_gap_seconds_bucket", channel="fake", le="0.1") == 1
    assert value(samples, "errors_total", code="rate_limited", plugin="rate-limit") is None


def test_costs_and_margins_are_counted_where_they_are_known() -> None:
    shared = SharedNumbers()
    metrics = Metrics(shared, CATALOGUE)
    for cost, charge in ((Price(1_000_000, 2_000_000), 30), (Price(1_000_000, 8_000_000), 30), (None, 30)):
        one = served()
        one.attempts[0].cost = cost
        one.charge("quota", charge)
        one.attempts[0].usage = Usage(11, 5, "upstream", 7, 2, answers=1)
        metrics.ended(one)
    metrics.ended(refused("rate_limited"))
    samples = scrape(shared)
    place = {"model": "words", "channel": "fake"}
    assert value(samples, "charge_micros_total", **place) == 90
    assert value(samples, "cost_micros_total", **place) == 21 + 51
    assert value(samples, "margin_micros", **place) == 9 - 21
    assert value(samples, "unknown_costs_total", **place) == 1
    assert value(samples, "cache_tokens_total", kind="read", **place) == 21
    assert value(samples, "cache_tokens_total", kind="written", **place) == 6
    assert value(samples, "unknown_costs_total", model="none", channel="none") == 0


def test_a_refusal_is_counted_by_its_code_and_its_plugin() -> None:
    shared = SharedNumbers()
    metrics = Metrics(shared, CATALOGUE)
    metrics.ended(refused("rate_limited", "rate-limit"))
    metrics.ended(refused("service_unavailable"))
    samples = scrape(shared)
    assert value(samples, "errors_total", code="rate_limited", plugin="rate-limit") == 1
    assert value(samples, "errors_total", code="service_unavailable", plugin="none") == 1
    assert value(samples, "requests_total", outcome="refused", model="none", channel="none") == 2
    assert value(samples, "first_byte_seconds_count", channel="none") == 0


def test_a_hundred_thousand_invented_models_make_no_series() -> None:
    shared = SharedNumbers()
    metrics = Metrics(shared, CATALOGUE)
    metrics.ended(served("invented", "invented"))
    series = scrape(shared).keys()
    one = served()
    for number in range(100_000):
        one.model = one.channel = f"invented {number}"
        metrics.ended(one)
    samples = scrape(shared)
    assert samples.keys() == series
    assert value(samples, "requests_total", outcome="completed", model="other", channel="other") == 100_001


def test_invented_error_codes_are_bounded() -> None:
    shared = SharedNumbers()
    metrics = Metrics(shared, CATALOGUE)
    for number in range(1000):
        metrics.ended(refused(f"code_{number}", "mine"))
    samples = scrape(shared)
    errors = [count for (name, _), count in samples.items() if name == "errors_total"]
    assert (len(errors), sum(errors)) == (65, 1000)


def test_codes_of_upstreams_and_of_plugins_take_no_place_of_the_gateways_own() -> None:
    shared = SharedNumbers()
    metrics = Metrics(shared, CATALOGUE)
    for number in range(70):
        one = refused("", "")
        one.error = of_answer(400, {}, b'{"error":{"message":"no","code":"code_%d"}}' % number, ()).error
        assert one.error.code == f"code_{number}"
        metrics.ended(one)
        metrics.ended(refused(f"code_{number}", "mine"))
    metrics.ended(refused("insufficient_balance", "quota"))
    metrics.ended(refused("unknown_path"))
    samples = scrape(shared)
    assert value(samples, "errors_total", code="upstream_refused", plugin="none") == 70
    assert value(samples, "errors_total", code="other", plugin="mine") == 6
    assert value(samples, "errors_total", code="insufficient_balance", plugin="quota") == 1
    assert value(samples, "errors_total", code="unknown_path", plugin="none") == 1


def test_a_reload_is_counted_and_its_result_kept() -> None:
    shared = SharedNumbers()
    metrics = Metrics(shared)
    assert value(scrape(shared), "last_reload_success") == 1
    metrics.reloaded(taken_up=False)
    assert value(scrape(shared), "last_reload_success") == 0
    metrics.reloaded(taken_up=True)
    samples = scrape(shared)
    assert value(samples, "last_reload_success") == 1
    assert value(samples, "reloads_total", result="refused") == value(samples, "reloads_total", result="taken_up") == 1


async def test_a_gateway_counts_what_it_answered(store_url: str, client: Client, tmp_path: Path) -> None:
    async with FakeUpstream(pace_s=0, key="channel-credential-4711") as upstream:
        async with running(configuration(upstream.base_url), tmp_path, store_url) as gateway:
            token = await gateway.token()
            await ask(gateway.port, chat(token))
            await ask(gateway.port, chat("wrong"))
            await ask(gateway.port, get("/v1/models", token))
        metrics = gateway.gateway.runner.metrics
    samples = scrape(metrics.shared)
    place = {"model": "words", "channel": "fake"}
    assert value(samples, "requests_total", outcome="completed", **place) == 1
    assert value(samples, "requests_total", outcome="completed", model="none", channel="none") == 1
    assert value(samples, "errors_total", code="token_invalid", plugin="auth") == 1
    assert (value(samples, "charge_micros_total", **place) or 0) > 0, "the charge is known before it is counted"
    assert (value(samples, "store_call_seconds_count") or 0) > 4


async def test_calls_that_the_store_did_not_answer_are_counted(tmp_path: Path) -> None:
    shared = SharedNumbers()
    Metrics(shared).count_store_calls()
    client = Client.connect(f"unix://{tmp_path}/none.sock", timeout_s=0.05)
    for _ in range(3):
        with pytest.raises(StoreAway):
            await client.call("PING")
    await client.close()
    assert value(scrape(shared), "store_errors_total", kind="away") == 3


async def test_store_calls_and_those_that_the_store_refused_are_counted(client: Client) -> None:
    shared = SharedNumbers()
    Metrics(shared).count_store_calls()
    await client.call("SET", "a", "text")
    with pytest.raises(StoreError):
        await client.call("INCR", "a")
    samples = scrape(shared)
    assert value(samples, "store_errors_total", kind="error") == 1
    assert value(samples, "store_call_seconds_count") == 2
