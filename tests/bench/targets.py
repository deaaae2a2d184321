"""The targets of this gateway, and whether they were reached."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from tests.bench.bench import BEFORE, Rows
from tests.bench.gateways import OURS
from tests.bench.parts import DISTANT


class Target(msgspec.Struct):
    """A figure that must be at most `must` and is wanted to be at most `aim`, or at least, if `least`.

    `before` is the same figure of the checkout that is compared with. It is not judged where `judged` is false.
    """

    what: str
    now: float
    must: float | None = None
    aim: float | None = None
    unit: str = ""
    least: bool = False
    judged: bool = True
    before: float | None = None

    @property
    def verdict(self) -> str:
        """Which of the two was reached; empty for a figure without a target."""
        if self.must is None or not self.judged:
            return "" if self.must is None else "not judged here"
        if not self._reached(self.must):
            return "**missed**"
        return "aim reached" if self.aim is not None and self._reached(self.aim) else "reached"

    def _reached(self, wanted: float) -> bool:
        return self.now >= wanted if self.least else self.now <= wanted


Targets = Iterator[Target]


def targets(measured: Mapping[str, Rows]) -> list[Target]:
    """Return all targets that were measured."""
    found = []
    for part, of in TARGETS.items():
        if part in measured:
            rows = measured[part]
            before = {target.what: target.now for target in of(rows, BEFORE)} if _has(rows, BEFORE) else {}
            now = of(rows, OURS) if _has(rows, OURS) else ()
            found += [msgspec.structs.replace(target, before=before.get(target.what)) for target in now]
    return found


def table(found: list[Target]) -> str:
    """Return the targets as a table."""
    lines = []
    for target in found:
        side = "≥" if target.least else "≤"
        wanted = [f"{side} {limit:,g}" if limit is not None else "" for limit in (target.must, target.aim)]
        figures = ["" if value is None else f"{value:,.4g}" for value in (target.before, target.now)]
        cells = (target.what, target.unit, *figures, *wanted, target.verdict)
        lines.append(f"| {' | '.join(cells)} |\n")
    return "| what | unit | before | now | must | aim | |\n|---|---|---|---|---|---|---|\n" + "".join(lines)


def _ratio(of: Mapping[str, float], to: Mapping[str, float], key: str) -> float:
    return of[key] / to[key] if to[key] else math.inf


def _has(rows: Rows, name: str) -> bool:
    return any(label.endswith(name) for label in rows)


def _short(rows: Rows, name: str) -> Targets:
    row = rows[name]
    if "nginx" in rows:
        ratio = _ratio(row, rows["nginx"], "cpu_us_per_request")
        yield Target("CPU of a short request, nginx's = 1", ratio, 3, 2.5, "x")
    if BEFORE in rows:
        ratio = _ratio(row, rows[BEFORE], "requests_per_s")
        yield Target("requests/s with the store, before = 1", ratio, 2, 3, "x", least=True)
    for peer, must, aim in (("Portkey", 7, 10), ("LiteLLM", 60, 90)):
        if peer in rows:
            ratio = _ratio(row, rows[peer], "requests_per_s")
            yield Target(f"requests/s with the store, {peer}'s = 1", ratio, must, aim, "x", least=True)


def _paced(rows: Rows, name: str) -> Targets:
    if "nginx" in rows:
        ratio = _ratio(rows[name], rows["nginx"], "cpu_us_per_event")
        yield Target("CPU of a paced event, nginx's = 1", ratio, 1.5, 1.25, "x")


def _first(rows: Rows, name: str) -> Targets:
    for share, must, aim in (("p50", 1, 0.5), ("p99", 5, 3)):
        key = f"first_ms_{share}"
        direct = rows["upstream"][key]
        yield Target(f"first event added at half load, {share}", rows[name][key] - direct, must, aim, "ms")
        if distant := rows.get(f"{DISTANT}, {name}"):
            yield Target(f"first event added at half load, {DISTANT}, {share}", distant[key] - direct, unit="ms")


def _variants(rows: Rows, name: str) -> Targets:
    for label in rows:
        variant, _, version = label.rpartition(", ")
        if version == name and (before := rows.get(f"{variant}, {BEFORE}")):
            ratio = _ratio(rows[label], before, "requests_per_s")
            yield Target(f"requests/s, {variant}, before = 1", ratio, unit="x", least=True)
            if "cpu_us_per_event" in before:
                ratio = _ratio(rows[label], before, "cpu_us_per_event")
                yield Target(f"CPU of a paced event, {variant}, before = 1", ratio, unit="x")


def _instructions(rows: Rows, name: str) -> Targets:
    yield Target("instructions of a request", rows[name]["instructions_request"] / 1000, 600, 450, "thousand")
    yield Target("instructions of an event", rows[name]["instructions_event"] / 1000, 11, 7, "thousand")


def _memory(rows: Rows, name: str) -> Targets:
    yield Target("memory a stream", rows[name]["kib_per_stream"], 28, 20, "KiB")


def _crowd(rows: Rows, name: str) -> Targets:
    row = rows[name]
    streams = f"{row['streams']:,g} streams"
    yield Target(f"{streams}: not complete", row["streams"] - row["completed"], 0)
    yield Target(f"{streams}: time of all, the streams' = 1", row["whole"], 1.05, 1.01, "x")


def _chain(rows: Rows, name: str) -> Targets:
    lengths = [int(label.split()[0]) for label in rows if label.endswith(name)]
    costs = [row["cpu_us_per_request"] for label, row in rows.items() if label.endswith(name)]
    middle, mean = sum(lengths) / len(lengths), sum(costs) / len(costs)
    slope = sum((x - middle) * (y - mean) for x, y in zip(lengths, costs, strict=True))
    slope /= sum((x - middle) ** 2 for x in lengths)
    yield Target("one more plugin that does nothing", slope, 1, unit="µs/request")


def _workers(rows: Rows, name: str) -> Targets:
    one, two = rows[f"1 {name}"], rows[f"2 {name}"]
    carried = two["requests_per_s"] / one["requests_per_s"]
    judged = (os.cpu_count() or 1) > 2
    yield Target("two workers' requests/s, one's = 1", carried, 1.8, unit="x", least=True, judged=judged)
    cost = 2 * one["cpu_us_per_request"] / two["cpu_us_per_request"]
    what = "two workers on two cores by the CPU of a request, the store left out, one on one = 1"
    yield Target(what, cost, 1.8, unit="x", least=True)


def _start(rows: Rows, name: str) -> Targets:
    yield Target("start until the first answer", rows[name]["answers_s"], 1.5, unit="s")


TARGETS: Final[dict[str, Callable[[Rows, str], Targets]]] = {
    "paced": _paced,
    "short": _short,
    "first": _first,
    "instructions": _instructions,
    "memory": _memory,
    "many": _crowd,
    "variants": _variants,
    "most": _crowd,
    "chain": _chain,
    "start": _start,
    "workers": _workers,
}
