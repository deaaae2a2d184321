"""Running loads: each run starts its gateway anew, rounds alternate between the compared runs, and medians are returned."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec

from tests.bench.gateways import OURS, Gateway, Ours, Upstream, python_of
from tests.bench.process import PATIENCE_S, ROOT, listens, pinned, running
from tests.cli.processes import free_port

Row = dict[str, float]
Rows = dict[str, Row]

BEFORE: Final = "before"
PROGRESS: Final = (
    *("requests_per_s", "cpu_us_per_request", "cpu_us_per_event", "first_ms_p50", "first_ms_p99", "kib_per_stream"),
    *("opened_s", "answers_s", "instructions_request", "instructions_event", "instructions_burst", "wrong", "cut"),
)
INSTRUCTIONS: Final = Path(__file__).with_name("instructions.py")


class Run(msgspec.Struct):
    """A gateway, the cores that it runs on, and its load, whose keys are the fields of `load.LoadSettings`.

    `rounds`: at most so many, for a run that takes long.
    """

    gateway: Gateway
    load: dict[str, Any]
    cores: str = "0"
    rounds: int = 100


class Bench:
    """A benchmark's folder, number of rounds and seconds for each load. `scale` reduces the crowds, for a quick trial.

    `before` is another checkout of this project, with a `.venv` of its own, to compare with.
    """

    def __init__(self, folder: Path, rounds: int, seconds: float, scale: float, before: Path | None = None) -> None:
        self.folder, self.rounds, self.seconds, self.scale = folder, rounds, seconds, scale
        self.checkouts = {OURS: ROOT} | ({BEFORE: before} if before else {})
        self.port = free_port()
        self.log = folder / "upstream.log"
        self.versions: dict[str, str] = {}

    def create(self, kind: type[Gateway], label: str = "", **settings: Any) -> Gateway:
        """Return a gateway with its own folder, and record its version."""
        gateway = kind(self.folder / (label or kind.name).replace(" ", "-"), self.port, **settings)
        if kind is not Upstream:
            self.versions[gateway.name] = f"{gateway.version} ({kind.description})"
        return gateway

    def ours(self, label: str = "", **settings: Any) -> list[Gateway]:
        """Return this gateway as it is in each of the compared checkouts."""
        return [
            self.create(Ours, f"{label}{name}", name=name, checkout=checkout, **settings)
            for name, checkout in self.checkouts.items()
        ]

    def measure(self, label: str, run: Run) -> Row:
        """Start the gateway, put it under its load, and return the measured figures."""
        gateway = run.gateway
        with self.upstream(gateway), gateway.serving(run.cores) as pids:
            settings = {
                "port": gateway.port,
                "folder": str(gateway.folder) if gateway.tls else "",
                "token": gateway.token,
                "headers": dict(gateway.headers),
                "seconds": self.seconds,
                "pids": pids,
            }
            row: Row = json.loads(self.run_load(settings | run.load))
        self.tell(label, row)
        return row

    def time_start(self, gateway: Gateway) -> Row:
        """Return how long the gateway takes from its start to its first answer."""
        with self.upstream(gateway), gateway.serving():
            row = {"answers_s": gateway.answered_s}
        self.tell(gateway.name, row)
        return row

    def count_instructions(self, name: str, checkout: Path) -> Row:
        """Return the instructions of a checkout's worker for a request, an event and a burst, counted by this checkout's tool."""
        command = [python_of(checkout), "-P", str(INSTRUCTIONS), "--json"]
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            text=True,
            cwd=checkout,
            env=os.environ | {"PYTHONPATH": str(checkout)},
            timeout=600,
            check=False,  # more than the budget is an exit code, too
        )
        counted = json.loads(done.stdout)["figures"]
        row = {f"instructions_{what}": float(counted[what]) for what in ("request", "event", "burst")}
        self.tell(name, row)
        return row

    def compare(self, runs: Mapping[str, Run]) -> Rows:
        """Return a row for each run: medians of the rounds."""
        return self.alternate({label: (run.rounds, partial(self.measure, label, run)) for label, run in runs.items()})

    def alternate(self, measures: Mapping[str, tuple[int, Callable[[], Row]]]) -> Rows:
        """Return a row for each measure: medians of the rounds. Each is called in turn, in at most so many rounds."""
        rows: dict[str, list[Row]] = {label: [] for label in measures}
        for number in range(self.rounds):
            for label, (rounds, measure) in measures.items():
                if number < rounds:
                    rows[label].append(measure())
        return {label: {key: median(row[key] for row in each) for key in each[0]} for label, each in rows.items()}

    def tell(self, label: str, row: Row) -> None:
        """Print the main figures of a row as progress."""
        figures = {key: row[key] for key in PROGRESS if row.get(key)}
        print(f"  {label:34} {json.dumps(figures)[1:-1]}", file=sys.stderr, flush=True)

    def upstream(self, gateway: Gateway | None = None) -> AbstractContextManager[int]:
        """Run the upstream of a gateway on the core of the load, from when it listens."""
        command = [sys.executable, "-m", "tests.bench.upstream", str(self.port)]
        command += [str(gateway.folder)] if gateway and gateway.tls else []
        return running(command, "1", self.log, lambda: listens(self.port))

    def run_load(self, settings: dict[str, Any]) -> str:
        """Run the load on its core and return what it prints. Raise `subprocess.TimeoutExpired` if it hangs."""
        command = [*pinned("1"), sys.executable, "-m", "tests.bench.load", json.dumps(settings)]
        longest_s = 3 * settings["seconds"] + 2 * PATIENCE_S
        return subprocess.run(
            command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT, timeout=longest_s
        ).stdout
