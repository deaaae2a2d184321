"""The parts of the benchmark. Each is a function that returns a row of figures for each case; the report has its docstring."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from tests.bench.bench import Bench, Rows, Run, medians
from tests.bench.gateways import Gateway, Ours, Upstream
from tests.bench.peers import Nginx, peers

SHORT: Final = {"plan": "20 0 22", "streams": 16}
PACED: Final = "50 20000 22"
TEXTS: Final = (22, 256, 1024, 4096, 16384, 65536)
BODIES: Final = tuple(1024 * kib for kib in (1, 16, 128, 1024, 8191))
NOOPS: Final = (0, 1, 2, 5, 10, 50)
MANY_S: Final = 30
"""Seconds that the streams of a crowd last."""


def all_gateways() -> list[type[Gateway]]:
    return [Ours, *peers()]


def reference_gateways() -> list[type[Gateway]]:
    """This gateway and, where it is installed, nginx."""
    return [Ours, *(peer for peer in peers() if peer is Nginx)]


def short(bench: Bench) -> Rows:
    """16 connections ask for 20 events, as fast as they go."""
    return bench.compare({kind.name: Run(bench.create(kind), SHORT) for kind in all_gateways()})


def paced(bench: Bench) -> Rows:
    """Streams of 50 events, one each 20 ms: each crosses alone, as tokens do. A fiftieth of a request's cost is in it."""
    gateways = [bench.create(kind) for kind in all_gateways()]
    rows = bench.compare({each.name: Run(each, {"plan": PACED, "streams": each.streams}) for each in gateways})
    return {each.name: {"streams": each.streams, **rows[each.name]} for each in gateways}


def first(bench: Bench) -> Rows:
    """Requests at random moments, half as many as this gateway carries; asked through a gateway and directly."""
    carried = bench.measure("all it carries", Run(bench.create(Ours, "full"), SHORT))["requests_per_s"]
    load = {"plan": SHORT["plan"], "streams": 32, "rate": carried / 2}
    kinds: list[type[Gateway]] = [Upstream, *reference_gateways()]
    return bench.compare({kind.name: Run(bench.create(kind), load) for kind in kinds})


def events(bench: Bench) -> Rows:
    """20 streams of 200 events, one each 10 ms, of growing size."""
    gateways = [bench.create(kind) for kind in reference_gateways()]
    return bench.compare(
        {
            f"{size} {each.name}": Run(each, {"plan": f"200 10000 {size}", "streams": 20})
            for size in TEXTS
            for each in gateways
        }
    )


def bodies(bench: Bench) -> Rows:
    """Four connections with prompts of growing size."""
    gateways = [bench.create(kind) for kind in reference_gateways()]
    return bench.compare(
        {
            f"{size // 1024} {each.name}": Run(each, SHORT | {"streams": 4, "body": size})
            for size in BODIES
            for each in gateways
        }
    )


def chain(bench: Bench) -> Rows:
    """The five plugins, and so many that do nothing."""
    made = {str(noops): bench.create(Ours, f"noops {noops}", noops=noops) for noops in NOOPS}
    return bench.compare({label: Run(gateway, SHORT) for label, gateway in made.items()})


def workers(bench: Bench) -> Rows:
    """One worker on one core, and two on two, of which the load needs its share."""
    runs = {}
    for kind in reference_gateways():
        for number, cores in ((1, "0"), (2, "0,1")):
            label = f"{number} {kind.name}"
            runs[label] = Run(bench.create(kind, label, workers=number), SHORT | {"streams": 32}, cores)
    return bench.compare(runs)


def many(bench: Bench) -> Rows:
    """5,000 streams of ten events a second, all asked for at once, on one worker; and what the load alone needs."""
    return _crowd(bench, 5000, 10, workers=1, cores="0")


def most(bench: Bench) -> Rows:
    """10,000 streams over two workers, of three events a second each: what two cores carry, the load included."""
    return _crowd(bench, 10_000, 3, workers=2, cores="0,1")


def start(bench: Bench) -> Rows:
    """From the command to the first answer, an embedded store's start included."""

    def timed(gateway: Gateway) -> dict[str, float]:
        with bench.upstream():
            began = time.perf_counter()
            with gateway.serving():
                took = round(time.perf_counter() - began, 3)
        print(f"  {gateway.name:16} {took} s", flush=True)
        return {"answers_s": took}

    gateways = [bench.create(kind) for kind in all_gateways()]
    return medians([{each.name: timed(each) for each in gateways} for _ in range(bench.rounds)])


def _crowd(bench: Bench, streams: int, each_s: int, *, workers: int, cores: str) -> Rows:
    streams, lasting_s = round(streams * bench.scale), MANY_S * bench.scale
    plan = f"{round(lasting_s * each_s)} {1_000_000 // each_s} 22"
    load = {"plan": plan, "streams": streams, "seconds": lasting_s, "once": True}
    gateways = [bench.create(kind, workers=workers) for kind in reference_gateways()]
    rows = bench.compare({each.name: Run(each, load, cores) for each in gateways})
    rows[Upstream.name] = bench.measure(Upstream.name, Run(bench.create(Upstream), load))
    return {
        name: {"streams": streams, "whole": round((row["opened_s"] + row["seconds"]) / lasting_s, 3), **row}
        for name, row in rows.items()
    }


PARTS: Final[dict[str, Callable[[Bench], Rows]]] = {
    part.__name__: part for part in (start, short, paced, first, events, bodies, chain, workers, many, most)
}
