"""What is counted, and how a scrape is told.

1. **Labels come from the configuration.** A model, a channel or a plugin is named only if the file names it; all else is
   `other`, and what never was is `none`. So callers cannot make series.
2. **A request is counted once**, at its end, after its plugins; nothing is done for an event.
3. **No number is lost with a worker**: a scrape adds up memory that all processes share, see `gateway.metrics.shared`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from gateway.catalogue import Catalogue
from gateway.errors import StoreAway
from gateway.exchange import Exchange, Outcome
from gateway.metrics.shared import Histogram, Key, Numbers, SharedNumbers
from gateway.store.client.connection import CALLS

PREFIX: Final = "sluicegate_"
OTHER: Final = "other"
NONE: Final = "none"
MOST_CODES: Final = 64
"""Plugins of others have error codes of their own; so many are told apart."""

WAITS: Final = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
DURATIONS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
STORE_CALLS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)

PLACE: Final = ("model", "channel")

Place = tuple[Outcome | None, str, str]
Observe = Callable[[float], None]
Series = tuple[Numbers, Numbers, Numbers, Numbers, Observe, Observe, Observe]


class Family(msgspec.Struct, frozen=True):
    """One metric. `merge` makes one number of those of several processes; without it each is told, as `process`."""

    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    merge: Callable[[Iterable[float]], float] | None = sum

    @property
    def width(self) -> int:
        """How many numbers one series has."""
        return len(self.bounds) + 2 if self.kind == "histogram" else 1


FAMILIES: Final[dict[str, Family]] = {
    "requests": Family("counter", "Requests that ended.", ("outcome", *PLACE)),
    "errors": Family("counter", "Requests that ended in an error: its code, and the plugin that refused.", ("code", "plugin")),
    "tokens": Family("counter", "Tokens used, of prompts and completions.", ("kind", *PLACE)),
    "charge_micros": Family("counter", "Millionths of a currency unit charged.", PLACE),
    "first_byte_seconds": Family("histogram", "From arrival to the answer's first byte.", ("channel",), WAITS),
    "duration_seconds": Family("histogram", "From arrival to the end.", ("channel",), DURATIONS),
    "longest_gap_seconds": Family("histogram", "The longest pause inside an answer.", ("channel",), WAITS),
    "open_requests": Family("gauge", "Requests under way."),
    "open_streams": Family("gauge", "Upstream answers under way."),
    "store_call_seconds": Family("histogram", "Until the store answered a call.", (), STORE_CALLS),
    "store_errors": Family("counter", "Calls that the store did not answer (away) or refused (error).", ("kind",)),
    "loop_lag_seconds": Family("histogram", "How late the event loop was, sampled.", (), STORE_CALLS),
    "usage_log_waiting": Family("gauge", "Entries of the usage log that are not on the disk yet.", merge=max),
    "usage_log_spooled": Family("gauge", "Files of the usage log's spool.", merge=max),
    "config_generation": Family("gauge", "The configuration that serves.", ("process",), merge=None),
    "reloads": Family("counter", "Configurations taken up, or refused.", ("result",)),
    "last_reload_success": Family("gauge", "1 where the last reload was taken up by every process, or none was.", merge=min),
    "children_died": Family("counter", "Processes that died and were started again.", ("kind",)),
}  # fmt: skip


class Metrics:
    """What one process counts. `catalogue` holds the names that may be labels, and changes with a reload."""

    def __init__(self, shared: SharedNumbers, catalogue: Catalogue | None = None) -> None:
        self.catalogue = catalogue
        self.shared = shared
        self._codes: set[str] = set()
        self._series: dict[Place, Series] = {}
        self.loop_lag = self.histogram("loop_lag_seconds")
        self.set("last_reload_success", 1)

    def ended(self, exchange: Exchange) -> None:
        """Count a request at its end."""
        model, channel, catalogue = exchange.model, exchange.channel, self.catalogue
        if catalogue is None or model not in catalogue.models:
            model = OTHER if model else NONE
        if catalogue is None or channel not in catalogue.channels:
            channel = OTHER if channel else NONE
        place = (exchange.outcome, model, channel)
        requests, prompt, completion, charge, duration, first_byte, longest_gap = self._series.get(place) or self._add(
            place
        )
        requests[0] += 1.0
        started = exchange.started
        duration((exchange.ended or started) - started)
        if exchange.first_byte is not None:
            first_byte(exchange.first_byte - started)
            longest_gap(exchange.longest_gap_s)
        for attempt in exchange.attempts:
            prompt[0] += attempt.usage.prompt_tokens
            completion[0] += attempt.usage.completion_tokens
        if exchange.charge_micros:
            charge[0] += exchange.charge_micros
        if exchange.error is not None:
            self._refused(exchange.error.code, exchange.refused_by)

    def count(self, name: str, *labels: str) -> None:
        """One more of a counter."""
        self._at(name, *labels)[0] += 1.0

    def set(self, name: str, value: float, *labels: str) -> None:
        """A gauge's value."""
        self._at(name, *labels)[0] = value

    def reloaded(self, *, taken_up: bool) -> None:
        """The end of a reload."""
        self.count("reloads", "taken_up" if taken_up else "refused")
        self.set("last_reload_success", float(taken_up))

    def count_store_calls(self) -> None:
        """Count the calls that this process makes of the store."""

        def failed(error: Exception) -> None:
            self.count("store_errors", "away" if isinstance(error, StoreAway) else "error")

        CALLS.answered = self.histogram("store_call_seconds").observe
        CALLS.failed = failed

    def histogram(self, name: str, *labels: str) -> Histogram:
        """A series that is observed."""
        return Histogram(self._at(name, *labels), FAMILIES[name].bounds)

    def _at(self, name: str, *labels: str) -> Numbers:
        return self.shared.at((name, *labels), FAMILIES[name].width)

    def _refused(self, code: str, plugin: str) -> None:
        if code not in self._codes:
            if len(self._codes) >= MOST_CODES:
                code = OTHER
            self._codes.add(code)
        self.count("errors", code, plugin or NONE)

    def _add(self, place: Place) -> Series:
        """What is counted of requests that ended in one way at one place; the times are those of its channel."""
        outcome, model, channel = place
        series = self._series[place] = (
            self._at("requests", str(outcome), model, channel),
            self._at("tokens", "prompt", model, channel),
            self._at("tokens", "completion", model, channel),
            self._at("charge_micros", model, channel),
            self.histogram("duration_seconds", channel).observe,
            self.histogram("first_byte_seconds", channel).observe,
            self.histogram("longest_gap_seconds", channel).observe,
        )
        return series


class Exporter(Collector):
    """What a scrape is told of all processes, each with the name that it has there."""

    def __init__(self, shared: Mapping[str, SharedNumbers]) -> None:
        self._shared = shared
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def text(self) -> bytes:
        """The exposition format, version 0.0.4."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """One family after the other, with what all processes counted."""
        found: dict[str, dict[Key, list[list[float]]]] = {name: defaultdict(list) for name in FAMILIES}
        for process, shared in self._shared.items():
            for (name, *labels), numbers in shared:
                told = labels if FAMILIES[name].merge else [process]
                found[name][tuple(told)].append(numbers)
        for name, family in FAMILIES.items():
            yield _family(PREFIX + name, family, found[name])


def _family(name: str, family: Family, found: Mapping[Key, Sequence[Sequence[float]]]) -> Metric:
    merge = family.merge or max
    merged = {labels: [merge(numbers) for numbers in zip(*several, strict=True)] for labels, several in found.items()}
    if family.kind == "histogram":
        histogram = HistogramMetricFamily(name, family.help, labels=family.labels)
        for labels, numbers in merged.items():
            counts = numbers[:-1]
            upto = [sum(counts[: index + 1]) for index in range(len(counts))]
            bounds = [*map(floatToGoString, family.bounds), "+Inf"]
            histogram.add_metric(labels, list(zip(bounds, upto, strict=True)), sum_value=numbers[-1])
        return histogram
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    simple = kind(name, family.help, labels=family.labels)
    for labels, numbers in merged.items():
        simple.add_metric(labels, numbers[0])
    return simple
