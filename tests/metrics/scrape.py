"""A scrape, parsed as Prometheus does."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from gateway.metrics.exporter import Exporter
from gateway.metrics.shared import SharedNumbers

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(*processes: SharedNumbers) -> Samples:
    """Return the samples of these processes, by name and labels."""
    shared = {f"worker {number}": numbers for number, numbers in enumerate(processes, 1)}
    return {
        (sample.name.removeprefix("sluicegate_"), frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(Exporter(shared).exposition().decode())
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get((name, frozenset(labels.items())))
