"""Plugins count under names of their own, which are exported; their number and that of their series are bounded."""

from __future__ import annotations

import pytest

from gateway.metrics.own import MAX_METRICS, MAX_SERIES, OwnMetrics
from gateway.metrics.registry import Metrics
from gateway.metrics.shared import SharedNumbers
from tests.metrics.scrape import scrape, value

PREFIX = "plugin_office_hours_officehours_"


def own(shared: SharedNumbers) -> OwnMetrics:
    return OwnMetrics(shared)


def test_what_processes_count_is_added_up_and_exported_with_the_rest() -> None:
    processes = SharedNumbers(), SharedNumbers()
    for shared in processes:
        metrics = own(shared).of("office_hours:OfficeHours")
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
    for metrics in (own(shared), own(shared)):
        for _ in range(2):
            metrics.of("x").counter("seen", "Seen.").add()
    assert value(scrape(shared), "plugin_x_seen_total") == 4


def test_too_many_values_of_a_label_are_counted_as_other() -> None:
    shared = SharedNumbers()
    counter = own(shared).of("x").counter("seen", "Seen.", "account")
    for number in range(MAX_SERIES + 5):
        counter.add(f"account{number}")
    counter.add("account1", by=3)
    samples = scrape(shared)
    assert value(samples, "plugin_x_seen_total", account="other") == 5
    assert value(samples, "plugin_x_seen_total", account="account1") == 4


def test_the_series_of_all_plugins_have_room() -> None:
    shared = SharedNumbers()
    metrics = own(shared)
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
    own(shared).of("x").counter("seen", "Seen.").add()
    own(shared).of("x").counter("seen", "Seen.", "model").add("m")
    samples = scrape(shared)
    assert value(samples, "plugin_x_seen_total", model="m") == 1


def test_what_prometheus_would_not_accept_is_refused() -> None:
    metrics = own(SharedNumbers()).of("x")
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
    of_all = own(SharedNumbers())
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
