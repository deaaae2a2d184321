"""Each channel of the configuration has its series, whoever answered the caller."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.base.errors import Refused
from gateway.config.channel import Channel
from gateway.config.model import Model
from gateway.config.schema import Config
from gateway.domain.catalogue import Catalogue
from gateway.domain.exchange import Attempt, Exchange, Outcome
from gateway.fake_upstream import FakeUpstream
from gateway.metrics.registry import Metrics
from gateway.metrics.shared import SharedNumbers
from gateway.store.channels import AccountCoolDown, ChannelStatus, Condition
from gateway.store.client.client import Client
from gateway.testing import exchange, running
from tests.metrics.scrape import Samples, scrape, value
from tests.whole.raw import ask, chat

STATES = ("healthy", "failing", "cooling", "starting", "disabled", "no credential")


def catalogue(*channels: str) -> Catalogue:
    return Catalogue(
        Config(
            channels={name: Channel(base_url="http://127.0.0.1:1/v1") for name in channels},
            models={"words": Model(channels=list(channels), free=True)},
        )
    )


def ended(outcome: Outcome, *attempts: Attempt, code: str = "") -> Exchange:
    one = exchange()
    one.outcome, one.ended, one.attempts[:] = outcome, one.started, attempts
    one.channel = attempts[-1].channel
    one.error = Refused(502, code, "no") if code else None
    return one


def condition(samples: Samples, channel: str) -> dict[str, float | None]:
    return {state: value(samples, "channel_condition", channel=channel, condition=state) for state in STATES}


def only(state: str) -> dict[str, float]:
    return {each: float(each == state) for each in STATES}


def test_every_channel_of_the_configuration_has_series_from_the_start() -> None:
    shared = SharedNumbers()
    Metrics(shared, catalogue("east", "west"))
    samples = scrape(shared)
    for channel in ("east", "west"):
        assert value(samples, "attempts_total", channel=channel) == 0
        assert value(samples, "credentials_refused_total", channel=channel) == 0


def test_a_dead_channel_is_seen_although_a_spare_serves() -> None:
    shared = SharedNumbers()
    metrics = Metrics(shared, catalogue("east", "west"))
    for _ in range(3):
        dead = Attempt("east", "words", error="upstream_unreachable")
        metrics.ended(ended(Outcome.COMPLETED, dead, Attempt("west", "words", 200)))
    samples = scrape(shared)
    assert [value(samples, "attempts_total", channel=channel) for channel in ("east", "west")] == [3, 3]
    assert value(samples, "attempt_failures_total", channel="east", code="upstream_unreachable") == 3
    assert value(samples, "attempt_failures_total", channel="west", code="upstream_unreachable") is None
    assert value(samples, "requests_total", outcome="completed", model="none", channel="east") is None


@pytest.mark.parametrize(
    ("outcome", "code", "counted"),
    [
        (Outcome.UPSTREAM_TRUNCATED, "upstream_truncated", "upstream_truncated"),
        (Outcome.UPSTREAM_STALLED, "upstream_timeout", "upstream_timeout"),
        (Outcome.UPSTREAM_ERROR_IN_STREAM, "", "upstream_error"),
        (Outcome.CALLER_GONE, "", ""),
        (Outcome.STOPPED, "service_unavailable", ""),
    ],
)
def test_an_answer_that_the_upstream_breaks_off_is_a_failure(outcome: Outcome, code: str, counted: str) -> None:
    shared = SharedNumbers()
    Metrics(shared, catalogue("east")).ended(ended(outcome, Attempt("east", "words", 200), code=code))
    failures = {
        dict(labels)["code"]: n for (name, labels), n in scrape(shared).items() if name == "attempt_failures_total"
    }
    assert failures == ({counted: 1} if counted else {})


def test_codes_and_channels_that_upstreams_or_reloads_bring_make_no_series() -> None:
    shared = SharedNumbers()
    metrics = Metrics(shared, catalogue("east"))
    for number in range(200):
        metrics.ended(ended(Outcome.UPSTREAM_FAILED, Attempt("east", "words", 400, error=f"code_{number}")))
        metrics.ended(ended(Outcome.COMPLETED, Attempt(f"channel {number}", "words", 200)))
        metrics.channels.credential_refused(f"channel {number}")
    samples = {key: n for key, n in scrape(shared).items() if key[0].startswith(("attempt", "credentials"))}
    assert len(samples) == 3
    assert value(samples, "attempt_failures_total", channel="east", code="upstream_refused") == 200


@pytest.mark.parametrize(
    ("status", "state"),
    [
        (ChannelStatus(Condition.HEALTHY, 0), "healthy"),
        (ChannelStatus(Condition.COOLING, 900), "cooling"),
        (ChannelStatus(Condition.HEALTHY, 0, accounts={"one": AccountCoolDown(0, failing=True)}), "failing"),
        (ChannelStatus(Condition.HEALTHY, 0, accounts={"one": AccountCoolDown(900)}), "healthy"),
        (ChannelStatus(Condition.COOLING, 0, firm=True), "cooling"),
        (ChannelStatus(Condition.STARTING, 0), "starting"),
        (ChannelStatus(Condition.NO_CREDENTIAL, 0), "no credential"),
        (ChannelStatus(Condition.COOLING, 900, refused=True), "no credential"),
        (ChannelStatus(Condition.DISABLED, 0, firm=True), "disabled"),
    ],
)
def test_a_channel_has_one_condition(status: ChannelStatus, state: str) -> None:
    processes = SharedNumbers(), SharedNumbers()
    for shared in processes:
        metrics = Metrics(shared, catalogue("east", "west"))
        metrics.channels.states({"east": status, "gone": status})
    samples = scrape(*processes)
    assert condition(samples, "east") == only(state)
    assert condition(samples, "west") == dict.fromkeys(STATES), "it is not known yet"
    assert condition(samples, "gone") == dict.fromkeys(STATES)


def test_a_channel_that_left_the_configuration_has_no_condition_also_after_a_worker_was_replaced() -> None:
    shared = SharedNumbers()
    down = {"east": ChannelStatus(Condition.COOLING, 900, firm=True)}
    metrics = Metrics(shared, catalogue("east", "west"))
    metrics.channels.states(down)
    metrics.use(catalogue("west"))
    metrics.channels.states(down)  # a chain of the earlier configuration still serves
    assert condition(scrape(shared), "east") == dict.fromkeys(STATES)
    metrics.use(catalogue("east", "west"))
    metrics.channels.states(down)
    Metrics(shared, catalogue("west"))
    assert condition(scrape(shared), "east") == dict.fromkeys(STATES)


async def test_a_worker_counts_refused_credentials_and_follows_the_condition(
    store_url: str, client: Client, tmp_path: Path
) -> None:
    async with (
        FakeUpstream(key="another-key") as refusing,
        FakeUpstream(pace_s=0) as good,
    ):
        text = f"""
channels:
  east: {{base_url: "{refusing.base_url}", api_key: refused-key-1}}
  west: {{base_url: "{good.base_url}", api_key: good-key-1}}
models:
  words: {{free: true, channels: [east, {{use: west, priority: 1}}]}}
groups: {{default: {{models: ["*"]}}}}
plugins: [{{use: auth}}, {{use: model-routing}}]
"""
        async with running(text, tmp_path, store_url) as gateway:
            shared = gateway.gateway.runner.metrics.shared
            answer = await ask(gateway.port, chat(await gateway.token()))
            assert answer.status == 200
            samples = scrape(shared)
            assert value(samples, "credentials_refused_total", channel="east") == 1
            assert value(samples, "attempt_failures_total", channel="east", code="upstream_auth_failed") == 1
            while condition(scrape(shared), "east") != only("failing"):
                await asyncio.sleep(0.02)
            await gateway.gateway.services.store.channels.set_enabled("west", False)
            while condition(scrape(shared), "west") != only("disabled"):
                await asyncio.sleep(0.02)
