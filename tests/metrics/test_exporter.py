"""A scrape adds up all processes, and describes every metric."""

from __future__ import annotations

from gateway.metrics.exporter import Exporter
from gateway.metrics.registry import FAMILIES, Metrics
from gateway.metrics.shared import SharedNumbers
from tests.metrics.scrape import scrape, value


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
