"""The parts of the benchmark. Each is a function that returns a row of figures for each case; the report has its docstring."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from tests.bench.bench import Bench, Rows, Run
from tests.bench.gateways import OURS, Gateway, Upstream
from tests.bench.peers import Nginx, Peer, peers

SHORT: Final = {"plan": "20 0 22", "streams": 16}
PACED: Final = "50 20000 22"
TEXTS: Final = (22, 256, 1024, 4096, 16384, 65536)
BODIES: Final = tuple(1024 * kib for kib in (1, 16, 128, 1024, 8191))
NOOPS: Final = (0, 1, 2, 5, 10, 50)
DISTANT: Final = "store 1 ms away"
VARIANTS: Final[dict[str, dict[str, Any]]] = {
    "two budgets": {
        "more": [
            "{use: rate-limit, name: second, with: {requests_per_minute: 9000000, tokens_per_minute: 90000000, concurrent: 20000}}"
        ]
    },
    "on_chunk": {"more": ["{use: 'noop:Watch', name: watch}"]},
    "TLS": {"tls": True},
    DISTANT: {"distant": True},
}
"""What a chain may have besides the usual."""
EACH_EVENT: Final = ("on_chunk", "TLS")
"""Those that cost something for each event."""
MANY_S: Final = 30
"""Seconds that the streams of a crowd last."""
LONG_ROUNDS: Final = 2
"""Rounds of the runs that take half a minute."""


def installed(bench: Bench, *, only: type[Peer] | None = None, **settings: Any) -> list[Gateway]:
    """Return the gateways of others that are installed, or the one of them."""
    return [bench.create(peer, **settings) for peer in peers() if only in (None, peer)]


def short(bench: Bench) -> Rows:
    """16 connections ask for 20 events, as fast as they go."""
    return bench.compare({each.name: Run(each, SHORT) for each in [*bench.ours(), *installed(bench)]})


def paced(bench: Bench) -> Rows:
    """Streams of 50 events, one each 20 ms: each crosses alone, as tokens do. A fiftieth of a request's cost is in it."""
    gateways = [*bench.ours(), *installed(bench)]
    rows = bench.compare({each.name: _paced(each, each.rounds) for each in gateways})
    return {each.name: {"streams": each.streams, **rows[each.name]} for each in gateways}


def first(bench: Bench) -> Rows:
    """Requests at random moments, half as many as this gateway carries, through it and directly; with the store beside it and
    one millisecond away (half a millisecond in each direction).
    """
    ours = {each.name: each for each in bench.ours()}
    ours |= {f"{DISTANT}, {each.name}": each for each in bench.ours(f"{DISTANT} ", distant=True)}
    half = {
        label: bench.measure(f"all: {label}", Run(each, SHORT))["requests_per_s"] / 2 for label, each in ours.items()
    }
    others = {each.name: each for each in [bench.create(Upstream), *installed(bench, only=Nginx)]}
    load = {"plan": SHORT["plan"], "streams": 32}
    return bench.compare(
        {label: Run(each, load | {"rate": half.get(label, half[OURS])}) for label, each in (ours | others).items()}
    )


def variants(bench: Bench) -> Rows:
    """Short answers with more in the chain: a second rate-limit with limits of its own; a plugin that gets every event; TLS for
    callers and the upstream; and the store one millisecond away (half a millisecond in each direction). The CPU of an event is
    that of paced answers.
    """
    gateways = {
        f"{variant}, {each.name}": each
        for variant, settings in VARIANTS.items()
        for each in bench.ours(f"{variant} ", **settings)
    }
    rows = bench.compare({label: Run(each, SHORT) for label, each in gateways.items()})
    looking = {label: each for label, each in gateways.items() if label.startswith(EACH_EVENT)}
    per_event = bench.compare({label: _paced(each, LONG_ROUNDS) for label, each in looking.items()})
    for label, row in rows.items():
        row.pop("cpu_us_per_event", None)
        row.update({key: value for key, value in per_event.get(label, {}).items() if key == "cpu_us_per_event"})
    return rows


def memory(bench: Bench) -> Rows:
    """2,000 streams of ten events a second: memory of the gateway's processes while they run, above idle."""
    streams = round(2000 * bench.scale)
    load = {"plan": "60 100000 22", "streams": streams, "seconds": 6, "once": True}
    runs = {each.name: Run(each, load, rounds=LONG_ROUNDS) for each in bench.ours()}
    runs |= {each.name: Run(each, load, rounds=1) for each in installed(bench, only=Nginx)}
    rows = bench.compare(runs)
    return {name: {"streams": streams, **row} for name, row in rows.items()}


def instructions(bench: Bench) -> Rows:
    """Instructions of a worker in user space, counted by callgrind (`tests.bench.instructions`).

    Of this commit alone: an earlier one may wait longer than the tool does, where valgrind slows its timers.
    """
    if not shutil.which("valgrind"):
        print("  not counted: apt-get install valgrind", file=sys.stderr)
        return {}
    return bench.alternate({OURS: (1, partial(bench.count_instructions, OURS, bench.checkouts[OURS]))})


def events(bench: Bench) -> Rows:
    """20 streams of 200 events, one each 10 ms, of growing size."""
    gateways = [*bench.ours(), *installed(bench, only=Nginx)]
    return bench.compare(
        {
            f"{size} {each.name}": Run(each, {"plan": f"200 10000 {size}", "streams": 20})
            for size in TEXTS
            for each in gateways
        }
    )


def bodies(bench: Bench) -> Rows:
    """Four connections with prompts of growing size."""
    gateways = [*bench.ours(), *installed(bench, only=Nginx)]
    return bench.compare(
        {
            f"{size // 1024} {each.name}": Run(each, SHORT | {"streams": 4, "body": size})
            for size in BODIES
            for each in gateways
        }
    )


def chain(bench: Bench) -> Rows:
    """The five plugins, and so many that do nothing."""
    gateways = {f"{noops} {each.name}": each for noops in NOOPS for each in bench.ours(f"{noops} ", noops=noops)}
    return bench.compare({label: Run(each, SHORT) for label, each in gateways.items()})


def workers(bench: Bench) -> Rows:
    """One worker on one core, and two on two, of which the load needs its share."""
    runs = {}
    for number, cores in ((1, "0"), (2, "0,1")):
        ours = bench.ours(f"{number} ", workers=number)
        for each in [*ours, *installed(bench, only=Nginx, label=f"{number} nginx", workers=number)]:
            runs[f"{number} {each.name}"] = Run(each, SHORT | {"streams": 32}, cores)
    return bench.compare(runs)


def many(bench: Bench) -> Rows:
    """5,000 streams of ten events a second, all asked for at once, on one worker; and what the load alone needs."""
    return _crowd(bench, 5000, 10, workers=1, cores="0")


def most(bench: Bench) -> Rows:
    """10,000 streams over two workers, of three events a second each: what two cores carry, the load included."""
    return _crowd(bench, 10_000, 3, workers=2, cores="0,1")


def start(bench: Bench) -> Rows:
    """From the command to the first answer, an embedded store's start included."""
    gateways = [*bench.ours(), *installed(bench)]
    return bench.alternate({each.name: (bench.rounds, partial(bench.time_start, each)) for each in gateways})


def _paced(gateway: Gateway, rounds: int) -> Run:
    return Run(gateway, {"plan": PACED, "streams": gateway.streams}, rounds=rounds)


def _crowd(bench: Bench, streams: int, each_s: int, *, workers: int, cores: str) -> Rows:
    streams, lasting_s = round(streams * bench.scale), MANY_S * bench.scale
    plan = f"{round(lasting_s * each_s)} {1_000_000 // each_s} 22"
    load = {"plan": plan, "streams": streams, "seconds": lasting_s, "once": True}
    runs = {each.name: Run(each, load, cores, LONG_ROUNDS) for each in bench.ours(workers=workers)}
    runs |= {
        each.name: Run(each, load, cores, 1)
        for each in [*installed(bench, only=Nginx, workers=workers), bench.create(Upstream)]
    }
    rows = bench.compare(runs)
    return {
        name: {"streams": streams, "whole": round((row["opened_s"] + row["seconds"]) / lasting_s, 3), **row}
        for name, row in rows.items()
    }


Part = Callable[[Bench], Rows]
TABLE: Final[dict[str, Part]] = {
    part.__name__: part for part in (instructions, short, paced, first, variants, memory, many)
}
"""The parts that are measured unless others are named."""
PARTS: Final[dict[str, Part]] = TABLE | {part.__name__: part for part in (start, events, bodies, chain, workers, most)}
