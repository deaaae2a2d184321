"""The targets of this gateway, and whether they were reached."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from tests.bench.bench import Rows

OURS: Final = "sluicegate"


class Target(msgspec.Struct):
    """A line of the table. The target is reached if the figure is at most `most`, or at least `least`."""

    what: str
    figure: float
    unit: str = ""
    most: float | None = None
    least: float | None = None
    judged: bool = True

    def line(self) -> str:
        wanted = f"at most {self.most:g}" if self.most is not None else f"at least {self.least:g}"
        reached = self.figure <= self.most if self.most is not None else self.figure >= (self.least or 0)
        verdict = ("reached" if reached else "**missed**") if self.judged else "not judged here"
        return f"| {self.what} | {wanted}{self.unit} | {self.figure:.4g}{self.unit} | {verdict} |\n"


Targets = Iterator[Target]
Measured = Mapping[str, Rows]


def table(measured: Measured) -> str:
    """Return the table of all targets that were measured."""
    lines = [
        target.line() for part, targets in TARGETS.items() if part in measured for target in targets(measured[part])
    ]
    return "| what | target | measured | |\n|---|---|---|---|\n" + "".join(lines)


def _ratios(rows: Rows, key: str, most: Mapping[str, float], what: str) -> Targets:
    for peer, limit in most.items():
        if peer in rows:
            yield Target(f"{what}, {peer}'s = 1", rows[OURS][key] / rows[peer][key], " x", most=limit)


def _short(rows: Rows) -> Targets:
    yield from _ratios(rows, "cpu_us_per_request", {"nginx": 2, "vllm-router": 1.2}, "CPU of a short request")
    for peer, limit in {"Portkey": 7, "LiteLLM": 60}.items():
        if peer in rows:
            ratio = rows[OURS]["requests_per_s"] / rows[peer]["requests_per_s"]
            yield Target(f"short requests/s on one core, {peer}'s = 1", ratio, " x", least=limit)


def _paced(rows: Rows) -> Targets:
    yield from _ratios(rows, "cpu_us_per_event", {"nginx": 1.25, "Envoy": 1, "vllm-router": 1}, "CPU of a paced event")


def _first(rows: Rows) -> Targets:
    for share, most in {"p50": 1, "p99": 5}.items():
        added = rows[OURS][f"first_ms_{share}"] - rows["upstream"][f"first_ms_{share}"]
        yield Target(f"added until the first event at half load, {share}", added, " ms", most=most)


def _chain(rows: Rows) -> Targets:
    lengths = [int(label) for label in rows]
    costs = [row["cpu_us_per_request"] for row in rows.values()]
    middle, mean = sum(lengths) / len(lengths), sum(costs) / len(costs)
    slope = sum((x - middle) * (y - mean) for x, y in zip(lengths, costs, strict=True))
    slope /= sum((x - middle) ** 2 for x in lengths)
    yield Target("one more plugin that does nothing", slope, " µs/request", most=1)


def _workers(rows: Rows) -> Targets:
    one, two = rows[f"1 {OURS}"], rows[f"2 {OURS}"]
    carried = two["requests_per_s"] / one["requests_per_s"]
    yield Target("two workers' requests/s, one's = 1", carried, " x", least=1.8, judged=(os.cpu_count() or 1) > 2)
    cost = 2 * one["cpu_us_per_request"] / two["cpu_us_per_request"]
    yield Target(
        "two workers on two cores by the CPU of a request, the store left out, one on one = 1", cost, " x", least=1.8
    )


def _crowd(rows: Rows) -> Targets:
    row = rows[OURS]
    streams = f"{row['streams']:g} streams"
    yield Target(f"{streams}: not complete", row["streams"] - row["completed"], most=0)
    yield Target(f"{streams}: time of all, the streams' = 1", row["whole"], " x", most=1.1)
    yield Target(f"{streams}: memory each above idle", row["kib_per_stream"], " KiB", most=32)
    yield Target(f"{streams}: transit p50 after the opening burst", row["event_ms_p50"], " ms", most=2)


def _start(rows: Rows) -> Targets:
    yield Target("start until the first answer", rows[OURS]["answers_s"], " s", most=1.5)


TARGETS: Final[dict[str, Callable[[Rows], Targets]]] = {
    "paced": _paced,
    "short": _short,
    "first": _first,
    "many": _crowd,
    "most": _crowd,
    "chain": _chain,
    "start": _start,
    "workers": _workers,
}
