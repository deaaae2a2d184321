"""The counters and histograms of plugins, which are exported with those of the gateway.

Each is described by its key, since the process that exports it knows no plugin. Their number is bounded, and so are the series of
each: what callers choose may be a label, and what comes after the first `MAX_SERIES` values is counted as `other`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from gateway.metrics.series import Numbers, SharedHistogram
from gateway.metrics.shared import OTHER, WAIT_BOUNDS, Family, Key, SharedNumbers

OWN: Final = "plugin"
"""What the keys of these series begin with."""
MAX_METRICS: Final = 16
"""Metrics of one plugin."""
MAX_LABELS: Final = 3
MAX_SERIES: Final = 100
"""Series of one metric, without that of `other`."""
MAX_SERIES_OF_ALL: Final = 500
"""Series of all plugins of a process, without those of `other`."""
MAX_BOUNDS: Final = 20
MAX_HELP: Final = 200
MAX_VALUE: Final = 64
"""Characters of a label's value that are kept."""
NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,39}")


class Described(msgspec.Struct, frozen=True, array_like=True):
    """Description of a plugin's metric, which is a part of its key in shared memory."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()


class OwnMetrics:
    """The metrics of all plugins of one process."""

    def __init__(self, shared: SharedNumbers) -> None:
        self._shared = shared
        self._metrics: dict[Described, _Series] = {}
        self._kinds: dict[str, str] = {}
        self._owners: dict[str, str] = {}
        self.count = 0

    def of(self, plugin: str) -> PluginMetrics:
        """Return the metrics of one plugin."""
        return PluginMetrics(self, plugin)

    def series(self, metric: Described, owner: str) -> _Series:
        """Return the series of a metric, which are the same for each instance of the plugin `owner`.

        Raises `ValueError` for a name that another plugin has, or that this one has for a metric of another kind.
        """
        if (other := self._owners.setdefault(metric.name, owner)) != owner:
            raise ValueError(
                f"metric `sluicegate_{metric.name}` is that of the plugin `{other}`, too: give one of them another `name`"
            )
        if (kind := self._kinds.setdefault(metric.name, metric.kind)) != metric.kind:
            raise ValueError(
                f"metric `sluicegate_{metric.name}` is a {kind} already: give the {metric.kind} another name"
            )
        if metric not in self._metrics:
            self._metrics[metric] = _Series(self, self._shared, metric)
        return self._metrics[metric]


class PluginMetrics:
    """`services.metrics`: counters and histograms of one plugin. Their names get the prefix `sluicegate_plugin_NAME_`."""

    def __init__(self, own: OwnMetrics, plugin: str) -> None:
        self._own = own
        self._owner = plugin
        self._plugin = re.sub(r"[^a-z0-9]+", "_", plugin.lower()).strip("_")
        self._names: dict[str, Described] = {}

    def counter(self, name: str, help: str, *labels: str) -> Counter:  # noqa: A002 - as in Prometheus
        """Return a counter. Raises `ValueError` for a name or a label that Prometheus does not accept, and for too many."""
        return Counter(self._series("counter", name, help, labels, ()))

    def histogram(
        self,
        name: str,
        help: str,  # noqa: A002
        *labels: str,
        bounds: Sequence[float] = WAIT_BOUNDS,
    ) -> Histogram:
        """Return a histogram. `bounds` are the ends of its ranges, ascending. Raises `ValueError`, as `counter` does."""
        if list(bounds) != sorted(set(bounds)) or not 0 < len(bounds) <= MAX_BOUNDS:
            raise ValueError(f"metric `{name}`: give 1 to {MAX_BOUNDS} bounds, each above the one before")
        return Histogram(self._series("histogram", name, help, labels, tuple(map(float, bounds))))

    def _series(self, kind: str, name: str, text: str, labels: tuple[str, ...], bounds: tuple[float, ...]) -> _Series:
        for each in (name, *labels):
            if not NAME.fullmatch(each):
                raise ValueError(
                    f"metric `{name}`: `{each}` must be 1 to 40 of a-z, 0-9 and _, and begin with a letter"
                )
        if not 0 < len(text) <= MAX_HELP:
            raise ValueError(f"metric `{name}`: say what it counts, in {MAX_HELP} characters at most")
        if len(labels) > MAX_LABELS or len(set(labels)) < len(labels):
            raise ValueError(f"metric `{name}`: give {MAX_LABELS} different labels at most")
        metric = Described(f"{OWN}_{self._plugin}_{name}", kind, text, labels, bounds)
        series = self._own.series(metric, self._owner)
        if self._names.setdefault(name, metric) != metric:
            raise ValueError(f"metric `{name}` is described twice, in another way: ask for it once, and keep it")
        if len(self._names) > MAX_METRICS:
            raise ValueError(f"metric `{name}`: a plugin has {MAX_METRICS} metrics at most; use labels")
        return series


class Counter:
    """A counter of a plugin, which only grows."""

    def __init__(self, series: _Series) -> None:
        self._series = series

    def add(self, *labels: str, by: float = 1) -> None:
        """Add `by`, one where it is not given, to the series with these values of the labels. Raises `ValueError`."""
        if not by >= 0:
            raise ValueError(f"a counter only grows: `by` is {by}")
        self._series.at(labels)[0] += by


class Histogram:
    """A histogram of a plugin."""

    def __init__(self, series: _Series) -> None:
        self._series = series

    def observe(self, value: float, *labels: str) -> None:
        """Count a value in the series with these values of the labels. Raises `ValueError` for what is no number."""
        if value != value:  # noqa: PLR0124 - only what is no number differs from itself
            raise ValueError("the value is no number")
        SharedHistogram(self._series.at(labels), self._series.metric.bounds).observe(value)


class _Series:
    """The series of one metric in one process."""

    def __init__(self, own: OwnMetrics, shared: SharedNumbers, metric: Described) -> None:
        self.metric = metric
        self._own = own
        self._shared = shared
        self._width = Family("histogram" if metric.bounds else "counter", "", bounds=metric.bounds).width
        self._prefix = (OWN, msgspec.json.encode(metric).decode())
        self._numbers: dict[Key, Numbers] = {}

    def at(self, labels: tuple[str, ...]) -> Numbers:
        """Return the numbers of one series. Raises `ValueError` where there is not one value for each label."""
        found = self._numbers.get(labels)
        return self._add(labels) if found is None else found

    def _add(self, labels: tuple[str, ...]) -> Numbers:
        names = self.metric.labels
        if len(labels) != len(names):
            raise ValueError(f"metric `{self.metric.name}` has {len(names)} labels, and got {len(labels)} values")
        if len(self._numbers) < MAX_SERIES and self._own.count < MAX_SERIES_OF_ALL:
            self._own.count += 1
            values = tuple(str(value).encode(errors="replace").decode()[:MAX_VALUE] for value in labels)
            numbers = self._numbers[labels] = self._shared.at((*self._prefix, *values), self._width)
            return numbers
        return self._shared.at((*self._prefix, *(OTHER for _ in names)), self._width)


def described(key: Key) -> Described | None:
    """Return the description in the key of a plugin's metric; None for a key of another kind, or one that cannot be read."""
    try:
        return msgspec.json.decode(key[1], type=Described) if key[0] == OWN else None
    except (IndexError, msgspec.MsgspecError):
        return None
