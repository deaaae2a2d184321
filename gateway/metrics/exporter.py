"""The answer to a scrape: what all processes of a gateway counted, merged, in the text format of Prometheus."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from gateway.metrics.own import Described, described
from gateway.metrics.registry import FAMILIES, PREFIX
from gateway.metrics.shared import Family, Key, SharedNumbers


class Exporter(Collector):
    """Exports the numbers of several processes. `shared` has those of each, by the process's name."""

    def __init__(self, shared: Mapping[str, SharedNumbers]) -> None:
        self._shared = shared
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def exposition(self) -> bytes:
        """Return all metrics in the exposition format, version 0.0.4."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield one family after the other, with what all processes counted."""
        series: dict[str, dict[Key, list[list[float]]]] = {name: defaultdict(list) for name in FAMILIES}
        own: dict[Described, dict[Key, list[list[float]]]] = defaultdict(lambda: defaultdict(list))
        for process, shared in self._shared.items():
            for (name, *labels), numbers in shared:
                if name not in FAMILIES:
                    if (metric := described((name, *labels))) is not None:
                        own[metric][tuple(labels[1:])].append(numbers)
                    continue
                key = tuple(labels) if FAMILIES[name].merge else (process,)
                series[name][key].append(numbers)
        for name, family in FAMILIES.items():
            yield _metric(PREFIX + name, family, series[name])
        # A plugin that was reloaded may describe a metric otherwise: the last one is exported.
        for metric in {metric.name: metric for metric in own}.values():
            family = Family("histogram" if metric.bounds else "counter", metric.help, metric.labels, metric.bounds)
            yield _metric(PREFIX + metric.name, family, own[metric])


def _metric(name: str, family: Family, series: Mapping[Key, Sequence[Sequence[float]]]) -> Metric:
    merge = family.merge or max
    merged = {labels: [merge(numbers) for numbers in zip(*several, strict=True)] for labels, several in series.items()}
    if family.kind == "histogram":
        histogram = HistogramMetricFamily(name, family.help, labels=family.labels)
        bounds = [*map(floatToGoString, family.bounds), "+Inf"]
        for labels, (*counts, total) in merged.items():
            histogram.add_metric(labels, list(zip(bounds, accumulate(counts), strict=True)), sum_value=total)
        return histogram
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    simple = kind(name, family.help, labels=family.labels)
    for labels, (value,) in merged.items():
        if not family.states:
            simple.add_metric(labels, value)
        elif value:
            for number, state in enumerate(family.states, 1):
                simple.add_metric((*labels, state), float(value == number))
    return simple
