"""Running loads: each run starts its gateway anew, rounds alternate between the compared runs, and medians are returned."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from tests.bench.gateways import Gateway, Upstream
from tests.bench.process import ROOT, free_port, listens, pinned, running

Row = dict[str, float]
Rows = dict[str, Row]


class Run(msgspec.Struct):
    """A gateway, the cores that it runs on, and its load, whose keys are the fields of `load.LoadSettings`."""

    gateway: Gateway
    load: dict[str, Any]
    cores: str = "0"


class Bench:
    """A benchmark's folder, number of rounds and seconds for each load. `scale` reduces the crowds, for a quick trial."""

    def __init__(self, folder: Path, rounds: int, seconds: float, scale: float) -> None:
        self.folder, self.rounds, self.seconds, self.scale = folder, rounds, seconds, scale
        self.port = free_port()
        self.log = folder / "upstream.log"
        self.versions: dict[str, str] = {}

    def create(self, kind: type[Gateway], label: str = "", **settings: int) -> Gateway:
        """Return a gateway with its own folder, and record its version."""
        gateway = kind(self.folder / (label or kind.name).replace(" ", "-"), self.port, **settings)
        if kind is not Upstream:
            self.versions[kind.name] = f"{gateway.version} ({kind.description})"
        return gateway

    def measure(self, label: str, run: Run) -> Row:
        """Start the gateway, put it under its load, and return the measured figures."""
        gateway = run.gateway
        settings = {
            "port": gateway.port,
            "token": gateway.token,
            "headers": dict(gateway.headers),
            "seconds": self.seconds,
        }
        with self.upstream(), gateway.serving(run.cores) as pids:
            output = self.run_load(settings | run.load | {"pids": pids})
        print(f"  {label:16} {output.strip()}", flush=True)
        row: Row = json.loads(output)
        return row

    def compare(self, runs: Mapping[str, Run]) -> Rows:
        """Return a row for each run: medians of the rounds."""
        return medians([{label: self.measure(label, run) for label, run in runs.items()} for _ in range(self.rounds)])

    def upstream(self) -> AbstractContextManager[int]:
        """Run the upstream on the core of the load, from when it listens."""
        command = [sys.executable, "-m", "tests.bench.upstream", str(self.port)]
        return running(command, "1", self.log, lambda: listens(self.port))

    def run_load(self, settings: dict[str, Any]) -> str:
        """Run the load on its core and return what it prints."""
        command = [*pinned("1"), sys.executable, "-m", "tests.bench.load", json.dumps(settings)]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT, timeout=600).stdout


def medians(rounds: list[Rows]) -> Rows:
    return {
        label: {key: median(each[label][key] for each in rounds) for key in row} for label, row in rounds[0].items()
    }
