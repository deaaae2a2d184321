"""Metrics: each request is counted once, under names of the configuration; a scrape adds up all processes."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.base.errors import Refused, StoreAway, StoreError
from gateway.chat.usage import Usage
from gateway.config.channel import Channel
from gateway.config.model import Model
from gateway.config.schema import Config
from gateway.domain.catalogue import Catalogue
from gateway.domain.exchange import Attempt, Exchange, Outcome
from gateway.domain.prices import Price
from gateway.fake_upstream import FakeUpstream
from gateway.metrics.exporter import Exporter
from gateway.metrics.own import MAX_METRICS, MAX_SERIES, OwnMetrics
from gateway.metrics.registry import FAMILIES, Metrics
from gateway.metrics.shared import SharedNumbers
from gateway.proxy.failure import of_answer
from gateway.store.channels import AccountCoolDown, ChannelStatus, Condition
from gateway.store.client.client import Client
from gateway.testing import exchange, running
from tests.metrics.scrape import Samples, scrape, value
from tests.whole.conftest import configuration
from tests.whole.raw import ask, chat, get

# Every request is counted once, under names of the configuration only.
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


def test_a_thousand_invented_models_make_no_series() -> None:
    shared = SharedNumbers()
    metrics = Metrics(shared, CATALOGUE)
    metrics.ended(served("invented", "invented"))
    series = scrape(shared).keys()
    one = served()
    for number in range(1000):
        one.model = one.channel = f"invented {number}"
        metrics.ended(one)
    samples = scrape(shared)
    assert samples.keys() == series
    assert value(samples, "requests_total", outcome="completed", model="other", channel="other") == 1001


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
    assert value(samples, "requests_total", outcome="refused", model="none", channel="none") == 142
    assert value(samples, "first_byte_seconds_count", channel="none") == 0
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
    charged = value(samples, "charge_micros_total", **place) or 0
    assert charged > 0, "the charge is known before it is counted"
    assert [value(samples, "group_requests_total", group=name) for name in ("default", "none", "other")] == [2, 1, 0]
    assert value(samples, "group_charge_micros_total", group="default") == charged
    assert (value(samples, "store_call_seconds_count") or 0) > 4


async def test_store_calls_and_those_that_failed_are_counted(client: Client, tmp_path: Path) -> None:
    shared = SharedNumbers()
    Metrics(shared).count_store_calls()
    await client.call("SET", "a", "text")
    with pytest.raises(StoreError):
        await client.call("INCR", "a")
    assert value(scrape(shared), "store_call_seconds_count") == 2
    away = Client.connect(f"unix://{tmp_path}/none.sock", timeout_s=0.05)
    for _ in range(3):
        with pytest.raises(StoreAway):
            await away.call("PING")
    await away.close()
    assert [value(scrape(shared), "store_errors_total", kind=kind) for kind in ("error", "away")] == [1, 3]


# Each channel of the configuration has its series, whoever answered the caller.
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
    async with FakeUpstream(key="another-key") as refusing, FakeUpstream(pace_s=0) as good:
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


# A scrape adds up all processes, and describes every metric.
def test_a_scrape_merges_what_processes_share_and_keeps_the_rest_apart() -> None:
    processes = SharedNumbers(), SharedNumbers()
    for number, shared in enumerate(processes, 1):
        metrics = Metrics(shared)
        metrics.count("reloads", "refused")
        metrics.histogram("duration_seconds", "fake").observe(0.3 * number)
        metrics.set("open_streams", number)
        metrics.set("usage_log_waiting", number)
        metrics.set("config_generation", number)
        metrics.set("last_reload_success", number - 1)
    samples = scrape(*processes)
    assert value(samples, "reloads_total", result="refused") == 2
    assert value(samples, "duration_seconds_count", channel="fake") == 2
    assert value(samples, "open_streams") == 3
    assert value(samples, "usage_log_waiting") == 2
    assert value(samples, "last_reload_success") == 0
    assert value(samples, "config_generation", process="worker 1") == 1
    assert value(samples, "config_generation", process="worker 2") == 2


def test_a_bucket_counts_all_values_up_to_its_bound() -> None:
    shared = SharedNumbers()
    histogram = Metrics(shared).histogram("duration_seconds", "fake")
    for seconds in (0.05, 0.25, 0.3, 1000.0):
        histogram.observe(seconds)
    samples = scrape(shared)
    expected = {"0.1": 1, "0.25": 2, "0.5": 3, "600.0": 3, "+Inf": 4}
    assert {
        bound: value(samples, "duration_seconds_bucket", channel="fake", le=bound) for bound in expected
    } == expected
    assert value(samples, "duration_seconds_sum", channel="fake") == 1000.6


def test_every_metric_says_what_it_is() -> None:
    text = Exporter({}).exposition().decode()
    for name, family in FAMILIES.items():
        suffix = "_total" if family.kind == "counter" else ""
        assert (
            f"# HELP sluicegate_{name}{suffix} {family.help}\n# TYPE sluicegate_{name}{suffix} {family.kind}\n" in text
        )


# Plugins count under names of their own, which are exported; their number and that of their series are bounded.
PREFIX = "plugin_office_hours_officehours_"


def test_what_processes_count_is_added_up_and_exported_with_the_rest() -> None:
    processes = SharedNumbers(), SharedNumbers()
    for shared in processes:
        metrics = OwnMetrics(shared).of("office_hours:OfficeHours")
        metrics.counter("refused", "Requests refused.", "reason").add("closed", by=2)
        metrics.histogram("wait_seconds", "Seconds waited.", bounds=(1, 5)).observe(3)
        Metrics(shared).count("reloads", "refused")
    samples = scrape(*processes)
    assert value(samples, f"{PREFIX}refused_total", reason="closed") == 4
    assert value(samples, f"{PREFIX}wait_seconds_bucket", le="1.0") == 0
    assert value(samples, f"{PREFIX}wait_seconds_bucket", le="5.0") == 2
    assert value(samples, f"{PREFIX}wait_seconds_sum") == 6
    assert value(samples, "reloads_total", result="refused") == 2


def test_a_successor_and_another_instance_go_on_counting() -> None:
    shared = SharedNumbers()
    for metrics in (OwnMetrics(shared), OwnMetrics(shared)):
        for _ in range(2):
            metrics.of("x").counter("seen", "Seen.").add()
    assert value(scrape(shared), "plugin_x_seen_total") == 4


def test_too_many_values_of_a_label_are_counted_as_other() -> None:
    shared = SharedNumbers()
    counter = OwnMetrics(shared).of("x").counter("seen", "Seen.", "account")
    for number in range(MAX_SERIES + 5):
        counter.add(f"account{number}")
    counter.add("account1", by=3)
    samples = scrape(shared)
    assert value(samples, "plugin_x_seen_total", account="other") == 5
    assert value(samples, "plugin_x_seen_total", account="account1") == 4


def test_the_series_of_all_plugins_have_room() -> None:
    shared = SharedNumbers()
    metrics = OwnMetrics(shared)
    for plugin in range(20):
        for number in range(3):
            histogram = metrics.of(f"plugin{plugin}").histogram(f"m{number}", "x" * 200, "a", "b", "c")
            for series in range(MAX_SERIES):
                histogram.observe(1, f"{series}" * 30, "y" * 64, "z" * 64)
    samples = scrape(shared)
    assert metrics.count == 500
    assert value(samples, "plugin_plugin19_m2_count", a="other", b="other", c="other") == MAX_SERIES
    Metrics(shared).count("reloads", "refused")
    assert value(scrape(shared), "reloads_total", result="refused") == 1


def test_a_metric_that_is_described_otherwise_after_a_reload_replaces_the_other() -> None:
    shared = SharedNumbers()
    OwnMetrics(shared).of("x").counter("seen", "Seen.").add()
    OwnMetrics(shared).of("x").counter("seen", "Seen.", "model").add("m")
    samples = scrape(shared)
    assert value(samples, "plugin_x_seen_total", model="m") == 1


def test_what_prometheus_would_not_accept_is_refused() -> None:
    metrics = OwnMetrics(SharedNumbers()).of("x")
    for name, labels in (("Seen", ()), ("9", ()), ("seen", ("le-x",)), ("", ())):
        with pytest.raises(ValueError, match="must be 1 to 40 of a-z, 0-9 and _"):
            metrics.counter(name, "Seen.", *labels)
    with pytest.raises(ValueError, match="3 different labels at most"):
        metrics.counter("seen", "Seen.", "a", "a")
    with pytest.raises(ValueError, match="say what it counts"):
        metrics.counter("seen", "")
    with pytest.raises(ValueError, match="each above the one before"):
        metrics.histogram("seen", "Seen.", bounds=(2, 1))
    counter = metrics.counter("seen", "Seen.", "model")
    with pytest.raises(ValueError, match="has 1 labels, and got 0 values"):
        counter.add()
    with pytest.raises(ValueError, match="a counter only grows"):
        counter.add("m", by=-1)
    with pytest.raises(ValueError, match="no number"):
        metrics.histogram("wait", "Waited.").observe(float("nan"))
    for number in range(MAX_METRICS - 2):
        metrics.counter(f"m{number}", "Seen.")
    with pytest.raises(ValueError, match="16 metrics at most"):
        metrics.counter("more", "Seen.")


def test_one_name_is_one_metric_of_one_plugin() -> None:
    of_all = OwnMetrics(SharedNumbers())
    metrics = of_all.of("office-hours")
    metrics.counter("seen", "Seen.", "reason")
    metrics.counter("seen", "Seen.", "reason")
    with pytest.raises(ValueError, match="`seen` is described twice, in another way"):
        metrics.counter("seen", "Seen.", "why")
    with pytest.raises(
        ValueError, match="`sluicegate_plugin_office_hours_seen` is a counter already: give the histogram"
    ):
        metrics.histogram("seen", "Seen.")
    of_all.of("office-hours").counter("seen", "Seen again.")  # a successor, with other settings
    with pytest.raises(ValueError, match="is that of the plugin `office-hours`, too: give one of them another `name`"):
        of_all.of("office_hours").counter("seen", "Seen.")


# Numbers are shared with child processes, outlive the process that wrote them, and stay within their memory.
def forked(work: object) -> None:
    """Run `work` in a child process and wait for it."""
    pid = os.fork()
    if pid == 0:
        try:
            work()  # type: ignore[operator]
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def test_a_parent_reads_what_a_child_counted_and_the_next_child_continues() -> None:
    shared = SharedNumbers()

    def count() -> None:
        shared.at(("requests", "a"))[0] += 1
        shared.at(("waits",), 3)[2] += 0.5

    forked(count)
    assert dict(shared) == {("requests", "a"): [1.0], ("waits",): [0.0, 0.0, 0.5]}
    forked(count)
    assert dict(shared) == {("requests", "a"): [2.0], ("waits",): [0.0, 0.0, 1.0]}


def test_a_key_has_the_same_numbers_each_time() -> None:
    shared = SharedNumbers()
    shared.at(("a",))[0] = 1
    shared.at(("ä", "\n", '"'))[0] = 2
    shared.at(("a",))[0] += 1
    assert list(shared) == [(("a",), [2.0]), (("ä", "\n", '"'), [2.0])]


def test_series_beyond_the_memory_are_not_shared_and_that_is_logged_once() -> None:
    shared = SharedNumbers(size=4096)
    with capture_logs() as lines:
        for number in range(1000):
            shared.at((f"series {number}",))[0] += number
    stored = dict(shared)
    assert 50 < len(stored) < 1000
    assert all(numbers == [float(key[0].split()[1])] for key, numbers in stored.items())
    assert [line["event"] for line in lines] == ["metrics_full"]


def test_an_entry_that_cannot_be_read_is_skipped() -> None:
    shared = SharedNumbers()
    shared.at(("errors", None))  # type: ignore[arg-type]
    shared.at(("errors", "none"))[0] = 1
    assert dict(shared) == {("errors", "none"): [1.0]}
