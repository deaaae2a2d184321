"""The metrics of the gateway: which numbers are counted, under which names, for requests and for channels.

1. **Labels come from the configuration.** A model, a channel, a group or a plugin is a label only if the file names it; any other
   name is `other`, and a missing one is `none`. So callers cannot create series.
2. **A request is counted once**, at its end, after its plugins; nothing is done for an event.
3. **No number is lost with a worker**: all processes count in shared memory, see `gateway.metrics.shared`.
4. **Requests are counted under the channel that served them.** That a channel fails while another one serves is seen only in the
   calls of channels (`ChannelMetrics`), so each channel of the configuration has its series from the start. A channel that the
   configuration no longer has is not counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Final

from gateway.base.errors import StoreAway
from gateway.domain.catalogue import Catalogue
from gateway.domain.exchange import COMPLETED, Exchange, Outcome
from gateway.metrics.own import OwnMetrics
from gateway.metrics.series import Numbers, RequestSeries, SharedHistogram
from gateway.metrics.shared import OTHER, WAIT_BOUNDS, Family, Key, SharedNumbers
from gateway.store.channels import ChannelStatus, Condition
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

SeriesKey = tuple[Outcome | None, str, str, str]
"""Outcome, model, channel and group, of which a missing one is empty."""

CONDITIONS: Final = tuple(Condition)
"""The states of `channel_condition`; its number is the position from 1 on, 0 while it is not known."""
_STATES: Final = {condition: float(number) for number, condition in enumerate(CONDITIONS, 1)}
WHY_NOT: Final = (*(str(condition) for condition in CONDITIONS), "full", "not open")
"""How the reasons begin for which a channel is not called, see `Refused.unavailable`."""

REFUSED: Final = "upstream_refused"
FAILURES: Final = frozenset(
    {
        "upstream_auth_failed",
        "upstream_error",
        "upstream_rate_limited",
        "upstream_timeout",
        "upstream_truncated",
        "upstream_unreachable",
    }
)
"""Codes of failures that are the upstream's. Any other one is the upstream's own, for what a request contains: `REFUSED`."""
_UNSEEN: Final[Numbers] = memoryview(bytearray(8)).cast("d")
_IN_STREAM: Final = (Outcome.UPSTREAM_TRUNCATED, Outcome.UPSTREAM_STALLED, Outcome.UPSTREAM_ERROR_IN_STREAM)

FAMILIES: Final[dict[str, Family]] = {
    "requests": Family("counter", "Requests that ended.", ("outcome", *SERVED_BY)),
    "internal_errors": Family("counter", "Requests that ended in an internal error."),
    "errors": Family("counter", "Requests that ended in an error: its code, and the plugin that refused.", ("code", "plugin")),
    "tokens": Family("counter", "Tokens used, of prompts and completions.", ("kind", *SERVED_BY)),
    "group_requests": Family("counter", "Requests that ended, by the group of the account.", ("group",)),
    "group_charge_micros": Family("counter", "Charges of a group, in millionths of a currency unit.", ("group",)),
    "charge_micros": Family("counter", "Charges, in millionths of a currency unit.", SERVED_BY),
    "cost_micros": Family("counter", "What channels bill, in millionths of a currency unit, where that is known.", SERVED_BY),
    "margin_micros": Family("gauge", "Charges less costs since the start, of requests whose cost is known.", SERVED_BY),
    "unknown_costs": Family("counter", "Requests whose cost is not known.", SERVED_BY),
    "cache_tokens": Family("counter", "Prompt tokens that upstreams read from a cache or wrote to one.", ("kind", *SERVED_BY)),
    "attempts": Family("counter", "Calls of upstreams that have ended.", ("channel",)),
    "attempt_failures": Family("counter", "Calls of upstreams that failed, by the error's code.", ("channel", "code")),
    "channel_unavailable": Family("counter", "Requests that no channel could serve, for each one.", ("channel", "reason")),
    "channel_condition": Family("gauge", "1 for the channel's present condition, else 0.", CONDITION, (), max, CONDITIONS),
    "credentials_refused": Family("counter", "Calls of upstreams that refused the channel's credential.", ("channel",)),
    "first_byte_seconds": Family("histogram", "Seconds from arrival to the response's first byte.", ("channel",), WAIT_BOUNDS),
    "duration_seconds": Family("histogram", "Seconds from arrival to the end.", ("channel",), DURATION_BOUNDS),
    "longest_gap_seconds": Family("histogram", "The longest pause within a response, in seconds.", ("channel",), WAIT_BOUNDS),
    "open_requests": Family("gauge", "Requests in progress."),
    "open_streams": Family("gauge", "Upstream responses in progress."),
    "store_call_seconds": Family("histogram", "Seconds until the store replied to a call.", (), STORE_CALL_BOUNDS),
    "store_errors": Family("counter", "Calls that the store did not reply to (away) or refused (error).", ("kind",)),
    "clock_difference_seconds": Family("gauge", "Seconds between the clocks of gateway and store, 0 below 60.", merge=max),
    "loop_lag_seconds": Family("histogram", "Seconds by which the event loop was late, sampled.", (), STORE_CALL_BOUNDS),
    "usage_log_waiting": Family("gauge", "Entries of the usage log's stream: those that no sink has written yet.", merge=max),
    "usage_log_behind_seconds": Family("gauge", "Age of the oldest entry of the usage log's stream.", merge=max),
    "usage_log_spooled": Family("gauge", "Files of the usage log's spool.", merge=max),
    "config_generation": Family("gauge", "The generation of the configuration in use.", ("process",), merge=None),
    "reloads": Family("counter", "Reloads of the configuration, taken up or refused.", ("result",)),
    "last_reload_success": Family("gauge", "1 if every process took up the last reload, or there was none.", merge=min),
    "alerts": Family("counter", "Attempts to send an alert by how they ended, and alerts dropped for want of room.", ("result",)),
    "alerts_pending": Family("gauge", "Alerts in the store that the webhook has not accepted yet.", merge=max),
    "admin_tokens_refused": Family("counter", "Requests to the operator's port with a wrong token."),
    "children_died": Family("counter", "Child processes that ended unexpectedly and were started again.", ("kind",)),
}  # fmt: skip

STARTED: Final[tuple[Key, ...]] = (
    ("internal_errors",),
    ("admin_tokens_refused",),
    *(("store_errors", kind) for kind in ("away", "error")),
    *(("alerts", result) for result in ("sent", "failed", "given_up", "dropped")),
    *(("children_died", kind) for kind in ("worker", "sink", "admin", "portal", "alerts", "clickhouse")),
)
"""Series that are there from the start as 0, so that alerts see the first event as an increase."""


class Metrics:
    """What one process counts. `catalogue` holds the names that may be labels, and changes with a reload."""

    def __init__(self, shared: SharedNumbers, catalogue: Catalogue | None = None) -> None:
        self.catalogue = catalogue
        self.shared = shared
        self.own = OwnMetrics(shared)
        """What plugins count of their own."""
        self._codes: defaultdict[str, set[str]] = defaultdict(set)
        """The codes that are labels, by the plugin that refused: none of them takes the place of another's, or of the gateway's."""
        self._series: dict[SeriesKey, RequestSeries] = {}
        self.channels = ChannelMetrics(shared)
        if catalogue is not None:
            self.use(catalogue)
        for key in STARTED:
            shared.at(key)
        self.loop_lag = self.histogram("loop_lag_seconds")
        self.set("last_reload_success", 1)

    def use(self, catalogue: Catalogue) -> None:
        """Count under the names of `catalogue` from now on, and forget the series of other names."""
        self.catalogue = catalogue
        self.channels.use(catalogue.channels)
        self._series = {}
        for group in (*catalogue.groups, OTHER, NONE):
            self._group(group)

    def ended(self, exchange: Exchange) -> None:
        """Count a request at its end."""
        outcome = exchange.outcome
        key = outcome, exchange.model, exchange.channel, exchange.group
        series = self._series.get(key) or self._find(*key)
        started, begun = exchange.started, exchange.first_byte
        charge, cost = exchange.charged, exchange.cost_micros
        charged = 0 if charge is None else charge.micros
        series.count((exchange.ended or started) - started, charged)
        if begun is not None:
            series.count_answer(begun - started, exchange.longest_gap_s)
        if cost is None:
            series.count_unknown_cost()
        else:
            series.count_cost(cost, charged - cost)
        attempts = exchange.calls
        for attempt in attempts:
            usage = attempt.usage
            series.count_tokens(
                usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, usage.cache_write_tokens
            )
        if outcome is not COMPLETED or len(attempts) > 1:
            self.channels.failed(exchange)
            if outcome is Outcome.INTERNAL_ERROR:
                self.count("internal_errors")
        if exchange.error is not None:
            if exchange.error.unavailable:
                self.channels.unavailable(exchange.error.unavailable)
            self._count_error(exchange.error.counted_as or exchange.error.code, exchange.refused_by)

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

    def histogram(self, name: str, *labels: str) -> SharedHistogram:
        """Return a series whose values are observed."""
        return SharedHistogram(self._numbers(name, *labels), FAMILIES[name].bounds)

    def _group(self, group: str) -> tuple[Numbers, Numbers]:
        return self._numbers("group_requests", group), self._numbers("group_charge_micros", group)

    def _numbers(self, name: str, *labels: str) -> Numbers:
        return self.shared.at((name, *map(_text, labels)), FAMILIES[name].width)

    def _count_error(self, code: str, plugin: str) -> None:
        code = _text(code)[:MAX_CODE]
        codes = self._codes[plugin]
        if code not in codes:
            if len(codes) >= MAX_CODES:
                code = OTHER
            codes.add(code)
        self.count("errors", code, plugin or NONE)

    def _find(self, outcome: Outcome | None, model: str, channel: str, group: str) -> RequestSeries:
        """Return the series of a request, under names of the catalogue. Its times are counted by channel alone."""
        if (catalogue := self.catalogue) is not None:
            model = model if model in catalogue.models else model and OTHER
            channel = channel if channel in catalogue.channels else channel and OTHER
            group = group if group in catalogue.groups else group and OTHER
        key = outcome, model, channel, group
        if (series := self._series.get(key)) is not None:
            return series
        model, channel = place = model or NONE, channel or NONE
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
            *self._group(group or NONE),
        )
        times = [self.histogram(f"{name}_seconds", channel) for name in ("duration", "first_byte", "longest_gap")]
        series = self._series[key] = RequestSeries(counters, times)
        return series


def _text(label: object) -> str:
    """Return a label that can be encoded. A plugin may have set a value of another type."""
    return label.encode(errors="replace").decode() if isinstance(label, str) else OTHER


class ChannelMetrics:
    """What one process counts of the channels that `use` names."""

    def __init__(self, shared: SharedNumbers) -> None:
        self._shared = shared
        self._attempts: dict[str, Numbers] = {}
        self._conditions: dict[str, Numbers] = {}

    def use(self, channels: Collection[str]) -> None:
        """Count under these names from now on, and let all other channels have no condition any more."""
        for key, _ in self._shared:
            if key[0] == "channel_condition" and key[1] not in channels:
                self._shared.at(key)[0] = 0.0
        self._attempts = {name: self._shared.at(("attempts", name)) for name in channels}
        self._conditions = {name: self._shared.at(("channel_condition", name)) for name in channels}
        for name in channels:
            self._shared.at(("credentials_refused", name))

    def attempts(self, channel: str) -> Numbers:
        """Return the counters of a channel's calls. Calls of unknown channels go to counters that are not exported."""
        return self._attempts.get(channel, _UNSEEN)

    def failed(self, exchange: Exchange) -> None:
        """Count what failed of the calls of a request, and all calls but the last one."""
        for attempt in exchange.attempts[:-1]:
            self.attempts(attempt.channel)[0] += 1.0
        for attempt in exchange.attempts:
            if attempt.error:
                self._failed(attempt.channel, attempt.error)
        if exchange.outcome in _IN_STREAM:
            self._failed(exchange.channel, exchange.error.code if exchange.error is not None else "upstream_error")

    def unavailable(self, reasons: Mapping[str, str]) -> None:
        """Count a request that no channel served, with why each was not called."""
        for name, text in reasons.items():
            if name in self._attempts:
                reason = next((each for each in WHY_NOT if text.startswith(each)), OTHER)
                self._shared.at(("channel_unavailable", name, reason))[0] += 1.0

    def credential_refused(self, channel: str) -> None:
        """Count a call whose credential the upstream refused."""
        if channel in self._attempts:
            self._shared.at(("credentials_refused", channel))[0] += 1.0

    def states(self, statuses: Mapping[str, ChannelStatus]) -> None:
        """Set the condition of the channels."""
        for name, status in statuses.items():
            if (numbers := self._conditions.get(name)) is not None:
                numbers[0] = _STATES[status.shown]

    def _failed(self, channel: str, code: str) -> None:
        if channel in self._attempts:
            self._shared.at(("attempt_failures", channel, code if code in FAILURES else REFUSED))[0] += 1.0
