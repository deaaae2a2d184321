"""What is counted, and under which names.

1. **Labels come from the configuration.** A model, a channel or a plugin is a label only if the file names it; any other name
   is `other`, and a missing one is `none`. So callers cannot create series.
2. **A request is counted once**, at its end, after its plugins; nothing is done for an event.
3. **No number is lost with a worker**: all processes count in shared memory, see `gateway.metrics.shared`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gateway.catalogue import Catalogue
from gateway.errors import StoreAway
from gateway.exchange import Exchange, Outcome
from gateway.metrics.channels import CONDITIONS, ChannelMetrics
from gateway.metrics.family import OTHER, WAIT_BOUNDS, Family
from gateway.metrics.own import OwnMetrics
from gateway.metrics.shared import Histogram, Key, Numbers, SharedNumbers
from gateway.store.client.connection import CALLS

PREFIX: Final = "sluicegate_"
NONE: Final = "none"
MAX_CODES: Final = 64
"""Error codes that are labels, at most: plugins may bring any number of their own."""
MAX_CODE: Final = 128
"""Characters of an error code that are kept."""

DURATION_BOUNDS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
STORE_CALL_BOUNDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)

SERVED_BY: Final = ("model", "channel")
CONDITION: Final = ("channel", "condition")

SeriesKey = tuple[Outcome | None, str, str]
Observe = Callable[[float], None]
Series = tuple[
    tuple[Numbers, Numbers, Numbers, Numbers, Numbers, Numbers, Numbers, Numbers, Numbers, Numbers],
    tuple[Observe, Observe, Observe],
]
"""Ten numbers, each a view of one, and three histograms."""


FAMILIES: Final[dict[str, Family]] = {
    "requests": Family("counter", "Requests that ended.", ("outcome", *SERVED_BY)),
    "errors": Family("counter", "Requests that ended in an error: its code, and the plugin that refused.", ("code", "plugin")),
    "tokens": Family("counter", "Tokens used, of prompts and completions.", ("kind", *SERVED_BY)),
    "charge_micros": Family("counter", "Charges, in millionths of a currency unit.", SERVED_BY),
    "cost_micros": Family("counter", "What channels bill, in millionths of a currency unit, where that is known.", SERVED_BY),
    "margin_micros": Family("gauge", "Charges less costs since the start, of requests whose cost is known.", SERVED_BY),
    "unknown_costs": Family("counter", "Requests whose cost is not known.", SERVED_BY),
    "cache_tokens": Family("counter", "Prompt tokens that upstreams read from a cache or wrote to one.", ("kind", *SERVED_BY)),
    "attempts": Family("counter", "Calls of upstreams that have ended.", ("channel",)),
    "attempt_failures": Family("counter", "Calls of upstreams that failed, by the error's code.", ("channel", "code")),
    "channel_condition": Family("gauge", "1 for the channel's present condition, else 0.", CONDITION, (), max, CONDITIONS),
    "credentials_refused": Family("counter", "Calls of upstreams that refused the channel's credential.", ("channel",)),
    "first_byte_seconds": Family("histogram", "Seconds from arrival to the response's first byte.", ("channel",), WAIT_BOUNDS),
    "duration_seconds": Family("histogram", "Seconds from arrival to the end.", ("channel",), DURATION_BOUNDS),
    "longest_gap_seconds": Family("histogram", "The longest pause within a response, in seconds.", ("channel",), WAIT_BOUNDS),
    "open_requests": Family("gauge", "Requests in progress."),
    "open_streams": Family("gauge", "Upstream responses in progress."),
    "store_call_seconds": Family("histogram", "Seconds until the store replied to a call.", (), STORE_CALL_BOUNDS),
    "store_errors": Family("counter", "Calls that the store did not reply to (away) or refused (error).", ("kind",)),
    "loop_lag_seconds": Family("histogram", "Seconds by which the event loop was late, sampled.", (), STORE_CALL_BOUNDS),
    "usage_log_waiting": Family("gauge", "Entries of the usage log's stream: those that a gateway has not written yet.", merge=max),
    "usage_log_spooled": Family("gauge", "Files of the usage log's spool.", merge=max),
    "config_generation": Family("gauge", "The generation of the configuration in use.", ("process",), merge=None),
    "reloads": Family("counter", "Reloads of the configuration, taken up or refused.", ("result",)),
    "last_reload_success": Family("gauge", "1 if every process took up the last reload, or there was none.", merge=min),
    "alerts": Family("counter", "Attempts to send an alert by how they ended, and alerts dropped for want of room.", ("result",)),
    "alerts_pending": Family("gauge", "Alerts in the store that the webhook has not accepted yet.", merge=max),
    "admin_tokens_refused": Family("counter", "Requests to the operator's port with a wrong token."),
    "children_died": Family("counter", "Child processes that ended unexpectedly and were started again.", ("kind",)),
}  # fmt: skip


class Metrics:
    """What one process counts. `catalogue` holds the names that may be labels, and changes with a reload."""

    def __init__(self, shared: SharedNumbers, catalogue: Catalogue | None = None) -> None:
        self.catalogue = catalogue
        self.shared = shared
        self.own = OwnMetrics(shared)
        """What plugins count of their own."""
        self._codes: set[str] = set()
        self._series: dict[SeriesKey, Series] = {}
        self.channels = ChannelMetrics(shared)
        if catalogue is not None:
            self.use(catalogue)
        self.loop_lag = self.histogram("loop_lag_seconds")
        self.set("last_reload_success", 1)

    def use(self, catalogue: Catalogue) -> None:
        """Count under the names of `catalogue` from now on, and forget the series of other names."""
        self.catalogue = catalogue
        names = {"model": {*catalogue.models, OTHER, NONE}, "channel": {*catalogue.channels, OTHER, NONE}}

        def keep(key: Key) -> bool:
            family = FAMILIES.get(key[0])
            labels = zip(family.labels, key[1:], strict=False) if family is not None else ()
            return all(value in names[label] for label, value in labels if label in names)

        self.channels.forget(catalogue.channels)
        self.shared.keep(keep)
        self.channels.use(catalogue.channels)
        self._series = {
            key: series
            for key, series in self._series.items()
            if key[1] in names["model"] and key[2] in names["channel"]
        }

    def ended(self, exchange: Exchange) -> None:
        """Count a request at its end."""
        model, channel, catalogue = exchange.model, exchange.channel, self.catalogue
        if catalogue is None or model not in catalogue.models:
            model = OTHER if model else NONE
        if catalogue is None or channel not in catalogue.channels:
            channel = OTHER if channel else NONE
        key = (exchange.outcome, model, channel)
        counters, (duration, first_byte, longest_gap) = self._series.get(key) or self._add(key)
        requests, attempts, prompt, completion, read, written, charge, cost, margin, unknown = counters
        requests[0] += 1.0
        attempts[0] += 1.0
        started = exchange.started
        duration((exchange.ended or started) - started)
        if exchange.first_byte is not None:
            first_byte(exchange.first_byte - started)
            longest_gap(exchange.longest_gap_s)
        for attempt in exchange.attempts:
            usage = attempt.usage
            prompt[0] += usage.prompt_tokens
            completion[0] += usage.completion_tokens
            if usage.cached_tokens or usage.cache_write_tokens:
                read[0] += usage.cached_tokens
                written[0] += usage.cache_write_tokens
        if exchange.charge_micros:
            charge[0] += exchange.charge_micros
        if (cost_micros := exchange.cost_micros) is None:
            unknown[0] += 1.0
        elif cost_micros or exchange.charge_micros:
            cost[0] += cost_micros
            margin[0] += exchange.charge_micros - cost_micros
        if exchange.outcome is not Outcome.COMPLETED or len(exchange.attempts) > 1:
            self.channels.failed(exchange)
        if exchange.error is not None:
            self._count_error(exchange.error.code, exchange.refused_by)

    def count(self, name: str, *labels: str) -> None:
        """Add one to a counter."""
        self._numbers(name, *labels)[0] += 1.0

    def set(self, name: str, value: float, *labels: str) -> None:
        """Set a gauge."""
        self._numbers(name, *labels)[0] = value

    def reloaded(self, *, taken_up: bool) -> None:
        """Count a reload at its end."""
        self.count("reloads", "taken_up" if taken_up else "refused")
        self.set("last_reload_success", float(taken_up))

    def count_store_calls(self) -> None:
        """Count from now on the calls that this process makes to the store."""

        def failed(error: Exception) -> None:
            self.count("store_errors", "away" if isinstance(error, StoreAway) else "error")

        CALLS.answered = self.histogram("store_call_seconds").observe
        CALLS.failed = failed

    def histogram(self, name: str, *labels: str) -> Histogram:
        """Return a series whose values are observed."""
        return Histogram(self._numbers(name, *labels), FAMILIES[name].bounds)

    def _numbers(self, name: str, *labels: str) -> Numbers:
        return self.shared.at((name, *map(_text, labels)), FAMILIES[name].width)

    def _count_error(self, code: str, plugin: str) -> None:
        code = _text(code)[:MAX_CODE]
        if code not in self._codes:
            if len(self._codes) >= MAX_CODES:
                code = OTHER
            self._codes.add(code)
        self.count("errors", code, plugin or NONE)

    def _add(self, key: SeriesKey) -> Series:
        """Return what is counted for an outcome, a model and a channel; the times are those of the channel."""
        outcome, model, channel = key
        place = model, channel
        counters = (
            self._numbers("requests", str(outcome), *place),
            self.channels.attempts(channel),
            self._numbers("tokens", "prompt", *place),
            self._numbers("tokens", "completion", *place),
            self._numbers("cache_tokens", "read", *place),
            self._numbers("cache_tokens", "written", *place),
            self._numbers("charge_micros", *place),
            self._numbers("cost_micros", *place),
            self._numbers("margin_micros", *place),
            self._numbers("unknown_costs", *place),
        )
        times = (
            self.histogram("duration_seconds", channel).observe,
            self.histogram("first_byte_seconds", channel).observe,
            self.histogram("longest_gap_seconds", channel).observe,
        )
        series = self._series[key] = counters, times
        return series


def _text(label: object) -> str:
    """Return a label that can be encoded. A plugin may have set a value of another type."""
    return label.encode(errors="replace").decode() if isinstance(label, str) else OTHER
