"""Every request is counted once, under names of the configuration only, and scrapes add up all processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.catalogue import Catalogue
from gateway.chat.usage import Usage
from gateway.config.channel import Channel
from gateway.config.schema import Config, Model
from gateway.errors import Refused, StoreAway, StoreError
from gateway.exchange import Attempt, Exchange, Outcome
from gateway.fake_upstream import FakeUpstream
from gateway.metrics.registry import FAMILIES, Exporter, Metrics
from gateway.metrics.shared import SharedNumbers
from gateway.store.client.client import Client
from gateway.testing import exchange, running
from tests.whole.conftest import configuration
from tests.whole.raw import ask, chat, get

CATALOGUE = Catalogue(
    Config(
        channels={"fake": Channel(base_url="http://127.0.0.1:1/v1")},
        models={"words": Model(channels=["fake"], free=True)},
    )
)

Labels = frozenset[tuple[str, str]]


def told(*processes: SharedNumbers) -> dict[tuple[str, Labels], float]:
    """A scrape of these processes."""
    text = Exporter({f"worker {number}": shared for number, shared in enumerate(processes, 1)}).text().decode()
    return {
        (sample.name.removeprefix("sluicegate_"), frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(scrape: dict[tuple[str, Labels], float], name: str, **labels: str) -> float | None:
    return scrape.get((name, frozenset(labels.items())))


def served(model: str = "words", channel: str = "fake") -> Exchange:
    """An exchange that was streamed: 0.2 s to the first byte, 3 s in all, no pause longer than 0.07 s."""
    one = exchange()
    one.model, one.channel, one.outcome = model, channel, Outcome.COMPLETED
    one.first_byte, one.ended, one.longest_gap_s = one.started + 0.2, one.started + 3, 0.07
    one.attempts.append(Attempt(channel, model, 200, usage=Usage(11, 5, "upstream")))
    one.charge_micros = 21
    return one


def refused(code: str, plugin: str = "") -> Exchange:
    one = exchange()
    one.outcome, one.error, one.refused_by = Outcome.REFUSED, Refused(429, code, "no"), plugin
    one.ended = one.started
    return one


def test_a_served_request_is_counted_with_all_that_it_used() -> None:
    shared = SharedNumbers()
    Metrics(shared, CATALOGUE).ended(served())
    scrape = told(shared)
    place = {"model": "words", "channel": "fake"}
    assert value(scrape, "requests_total", outcome="completed", **place) == 1
    assert value(scrape, "tokens_total", kind="prompt", **place) == 11
    assert value(scrape, "tokens_total", kind="completion", **place) == 5
    assert value(scrape, "charge_micros_total", **place) == 21
    assert value(scrape, "first_byte_seconds_bucket", channel="fake", le="0.1") == 0
    assert value(scrape, "first_byte_seconds_bucket", channel="fake", le="0.25") == 1
    assert value(scrape, "first_byte_seconds_count", channel="fake") == 1
    assert value(scrape, "duration_seconds_sum", channel="fake") == pytest.approx(3)
    assert value(scrape, "longest_gap_seconds_bucket", channel="fake", le="0.05") == 0
    assert value(scrape, "longest_gap_seconds_bucket", channel="fake", le="0.1") == 1
    assert value(scrape, "errors_total", code="rate_limited", plugin="rate-limit") is None


def test_a_refusal_is_counted_by_its_code_and_who_refused() -> None:
    shared = SharedNumbers()
    metrics = Metrics(shared, CATALOGUE)
    metrics.ended(refused("rate_limited", "rate-limit"))
    metrics.ended(refused("service_unavailable"))
    scrape = told(shared)
    assert value(scrape, "errors_total", code="rate_limited", plugin="rate-limit") == 1
    assert value(scrape, "errors_total", code="service_unavailable", plugin="none") == 1
    assert value(scrape, "requests_total", outcome="refused", model="none", channel="none") == 2
    assert value(scrape, "first_byte_seconds_count", channel="none") == 0


def test_a_hundred_thousand_invented_models_make_no_series() -> None:
    shared = SharedNumbers()
    metrics = Metrics(shared, CATALOGUE)
    metrics.ended(served("invented", "invented"))
    series = told(shared).keys()
    one = served()
    for number in range(100_000):
        one.model = one.channel = f"invented {number}"
        metrics.ended(one)
    scrape = told(shared)
    assert scrape.keys() == series
    assert value(scrape, "requests_total", outcome="completed", model="other", channel="other") == 100_001


def test_invented_error_codes_are_bounded() -> None:
    shared = SharedNumbers()
    metrics = Metrics(shared, CATALOGUE)
    for number in range(1000):
        metrics.ended(refused(f"code_{number}", "mine"))
    scrape = told(shared)
    errors = [count for (name, _), count in scrape.items() if name == "errors_total"]
    assert (len(errors), sum(errors)) == (65, 1000)


def test_a_scrape_adds_counters_and_keeps_what_is_one_process_own() -> None:
    processes = SharedNumbers(), SharedNumbers()
    for number, shared in enumerate(processes, 1):
        metrics = Metrics(shared, CATALOGUE)
        metrics.ended(served())
        metrics.set("open_streams", number)
        metrics.set("usage_log_waiting", number)
        metrics.set("config_generation", number)
        metrics.set("last_reload_success", number - 1)
    scrape = told(*processes)
    assert value(scrape, "requests_total", outcome="completed", model="words", channel="fake") == 2
    assert value(scrape, "duration_seconds_count", channel="fake") == 2
    assert value(scrape, "open_streams") == 3
    assert value(scrape, "usage_log_waiting") == 2
    assert value(scrape, "last_reload_success") == 0
    assert value(scrape, "config_generation", process="worker 1") == 1
    assert value(scrape, "config_generation", process="worker 2") == 2


def test_a_reload_is_counted_and_its_result_kept() -> None:
    shared = SharedNumbers()
    metrics = Metrics(shared)
    assert value(told(shared), "last_reload_success") == 1
    metrics.reloaded(taken_up=False)
    assert value(told(shared), "last_reload_success") == 0
    metrics.reloaded(taken_up=True)
    scrape = told(shared)
    assert value(scrape, "last_reload_success") == 1
    assert value(scrape, "reloads_total", result="refused") == value(scrape, "reloads_total", result="taken_up") == 1


async def test_a_gateway_counts_what_it_answered(store_url: str, client: Client, tmp_path: Path) -> None:
    async with FakeUpstream(pace_s=0, key="channel-credential-4711") as upstream:
        async with running(configuration(upstream.base_url), tmp_path, store_url) as gateway:
            token = await gateway.token()
            await ask(gateway.port, chat(token))
            await ask(gateway.port, chat("wrong"))
            await ask(gateway.port, get("/v1/models", token))
        metrics = gateway.gateway.runner.metrics
    scrape = told(metrics.shared)
    place = {"model": "words", "channel": "fake"}
    assert value(scrape, "requests_total", outcome="completed", **place) == 1
    assert value(scrape, "requests_total", outcome="completed", model="none", channel="none") == 1
    assert value(scrape, "errors_total", code="token_invalid", plugin="auth") == 1
    assert (value(scrape, "charge_micros_total", **place) or 0) > 0, "the charge is known before it is counted"
    assert (value(scrape, "store_call_seconds_count") or 0) > 4


def test_every_metric_says_what_it_is() -> None:
    text = Exporter({}).text().decode()
    for name, family in FAMILIES.items():
        suffix = "_total" if family.kind == "counter" else ""
        assert (
            f"# HELP sluicegate_{name}{suffix} {family.help}\n# TYPE sluicegate_{name}{suffix} {family.kind}\n" in text
        )


async def test_a_store_that_is_away_shows(tmp_path: Path) -> None:
    shared = SharedNumbers()
    Metrics(shared).count_store_calls()
    client = Client.connect(f"unix://{tmp_path}/nobody.sock", timeout_s=0.05)
    for _ in range(3):
        with pytest.raises(StoreAway):
            await client.call("PING")
    await client.close()
    assert value(told(shared), "store_errors_total", kind="away") == 3


async def test_a_call_that_the_store_refused_shows_and_one_that_it_answered(client: Client) -> None:
    shared = SharedNumbers()
    Metrics(shared).count_store_calls()
    await client.call("SET", "a", "text")
    with pytest.raises(StoreError):
        await client.call("INCR", "a")
    scrape = told(shared)
    assert value(scrape, "store_errors_total", kind="error") == 1
    assert value(scrape, "store_call_seconds_count") == 2
