"""Measure this gateway beside nginx, and write REPORT.md and its plots: `python -m tests.bench.run [--rounds 3]`.

Needs Linux and uvloop; nginx where it is on PATH. The gateway under test has core 0 for itself and its store; upstream and
load share core 1. CPU is what the kernel counted for the gateway's processes, without the store. Rounds alternate between
the gateways and medians are reported: on a machine that others use, only ratios within one run mean anything.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from shutil import which
from statistics import median
from typing import Any

from tests.bench.gateways import ROOT, Nginx, Ours, free_port, pinned, running
from tests.bench.plot import lines

HERE = Path(__file__).parent
Result = dict[str, float]
SIZES = (20, 256, 1024, 4096, 16384, 65536)
LENGTHS = (0, 1, 2, 5, 10)
PACED = {"short": "20 0 150", "paced": "50 20000 150"}


class Bench:
    """One run's gateways and results."""

    def __init__(self, folder: Path, rounds: int, seconds: float, streams: int) -> None:
        self.rounds, self.seconds, self.streams = rounds, seconds, streams
        self.upstream = free_port()
        self.gateways: dict[str, Ours | Nginx] = {"sluicegate": Ours(folder / "ours", self.upstream)}
        if which("nginx"):
            self.gateways["nginx"] = Nginx(folder / "nginx", self.upstream)
        self.longer = {number: Ours(folder / f"noops-{number}", self.upstream, noops=number) for number in LENGTHS}

    def measure(self, gateway: Ours | Nginx, plan: str, streams: int, warm_s: float = 1) -> Result:
        """One start of the gateway under one load."""
        with (
            running([sys.executable, "-m", "tests.bench.upstream", str(self.upstream)], self.upstream, 1, cwd=ROOT),
            gateway.serving() as pids,
        ):
            given = {"port": gateway.port, "token": gateway.token, "streams": streams, "plan": plan}
            given |= {"warm_s": warm_s, "seconds": self.seconds, "pids": pids}
            command = [*pinned(1), sys.executable, "-m", "tests.bench.load", json.dumps(given)]
            told = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, timeout=120)
        result: Result = json.loads(told.stdout)
        print(f"  {type(gateway).__name__:6} {plan:16} {streams:5} streams: {told.stdout.strip()}", flush=True)
        return result

    def compare(self, plan: str, streams: int, warm_s: float = 1) -> dict[str, Result]:
        """The medians of alternating rounds of each gateway."""
        return _medians(
            {name: self.measure(gateway, plan, streams, warm_s) for name, gateway in self.gateways.items()}
            for _ in range(self.rounds)
        )

    def chain(self) -> dict[str, Result]:
        """What each plugin that does nothing costs a request."""
        return _medians(
            {str(number): self.measure(gateway, PACED["short"], 16) for number, gateway in self.longer.items()}
            for _ in range(self.rounds)
        )


def _medians(rounds: Iterable[dict[str, Result]]) -> dict[str, Result]:
    done = list(rounds)
    return {name: {key: median(one[name][key] for one in done) for key in done[0][name]} for name in done[0]}


def _table(first: str, rows: dict[str, Result], columns: dict[str, str]) -> str:
    head = f"| {first} | {' | '.join(columns.values())} |\n|---|{'---|' * len(columns)}\n"
    return head + "".join(
        f"| {name} | {' | '.join(str(row[key]) for key in columns)} |\n" for name, row in rows.items()
    )


def _ratio(rows: dict[str, Result], key: str) -> str:
    if "nginx" not in rows:
        return ""
    return f"\nThe ratio to nginx: **{rows['sluicegate'][key] / rows['nginx'][key]:.2f}**.\n"


def _machine() -> str:
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        "",
    )
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT, check=False
    ).stdout
    nginx = (
        subprocess.run(["nginx", "-v"], capture_output=True, text=True, check=False).stderr if which("nginx") else ""
    )
    packages = ", ".join(f"{name} {version(name)}" for name in ("aiohttp", "uvloop", "httptools", "hiredis", "msgspec"))
    load = os.getloadavg()
    return (
        f"- {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, commit {commit.strip()}\n"
        f"- {cpu}, {os.cpu_count()} cores, Linux {platform.release()}; load average {load[0]:.1f} at the end\n"
        f"- Python {platform.python_version()}, {packages}{', ' if nginx else ''}{nginx.strip().removeprefix('nginx version: ')}\n"
    )


def report(bench: Bench) -> str:
    """Run everything, draw the plots, and return the text."""
    both = {
        "requests_per_s": "requests/s",
        "cpu_us_per_request": "CPU µs/request",
        "first_ms_p50": "first byte p50, ms",
    }
    events = {"cpu_us_per_event": "CPU µs/event", "event_ms_p50": "transit p50, ms", "event_ms_p99": "transit p99, ms"}
    short = bench.compare(PACED["short"], 16)
    paced = bench.compare(PACED["paced"], 200)
    many = bench.compare("1000 500000 150", bench.streams, warm_s=3)
    sizes = {size: bench.compare(f"{max(5, 100000 // (size + 150))} 5000 {size}", 20) for size in SIZES}
    longer = bench.chain()
    cost = {name: [(size, rows[name]["cpu_us_per_event"]) for size, rows in sizes.items()] for name in short}
    (HERE / "event-size.svg").write_text(lines("CPU µs per event", "bytes of an event", cost, logarithmic=True))
    each: dict[str, list[tuple[float, float]]] = {
        "sluicegate": [(int(name), row["cpu_us_per_request"]) for name, row in longer.items()]
    }
    (HERE / "chain-length.svg").write_text(lines("CPU µs per request", "plugins that do nothing", each))
    flat = {f"{size} B, {name}": row for size, rows in sizes.items() for name, row in rows.items()}
    return f"""# What it costs

Written by `python -m tests.bench.run`; medians of {bench.rounds} alternating rounds of {bench.seconds:g} s. The whole chain
is on, with a real store: usage-logger, auth, rate-limit, quota, model-routing. nginx passes the same bytes on, with
buffering off. On a machine that others use, only ratios within one run mean anything.

{_machine()}
## Short answers: 16 connections, 20 events as fast as they go

{_table("", short, both)}{_ratio(short, "cpu_us_per_request")}
## Paced answers: 200 streams, 50 events each, one each 20 ms

{_table("", paced, events)}{_ratio(paced, "cpu_us_per_event")}
A fiftieth of a request's own cost is in each event.

## {bench.streams} open streams, two events a second each

{_table("", many, {"kib_per_stream": "KiB a stream", **events})}
## Size of an event: 20 streams, one each 5 ms

{_table("", flat, events)}
![CPU by event size](event-size.svg)

## Length of the chain: short answers, the five plugins and so many that do nothing

{_table("more plugins", longer, both)}
![CPU by chain length](chain-length.svg)
"""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--seconds", type=float, default=4)
    options.add_argument("--streams", type=int, default=1000)
    options.add_argument("--report", type=Path, default=HERE / "REPORT.md")
    given: Any = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench") as folder:
        given.report.write_text(report(Bench(Path(folder), given.rounds, given.seconds, given.streams)))
    print(f"written: {given.report}")


if __name__ == "__main__":
    main()
