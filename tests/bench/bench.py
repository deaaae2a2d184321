"""Runs loads: each starts its gateway anew, rounds alternate between the gateways compared, and medians are reported."""

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
    """A gateway, its cores, and its load: see `load.Given`."""

    gateway: Gateway
    load: dict[str, Any]
    cores: str = "0"


class Bench:
    """Where and how long to measure. `scale` shortens what has a length of its own, to try it out."""

    def __init__(self, folder: Path, rounds: int, seconds: float, scale: float) -> None:
        self.folder, self.rounds, self.seconds, self.scale = folder, rounds, seconds, scale
        self.port = free_port()
        self.log = folder / "upstream.log"
        self.versions: dict[str, str] = {}

    def made(self, kind: type[Gateway], label: str = "", **given: int) -> Gateway:
        """Return a gateway with a folder of its own."""
        gateway = kind(self.folder / (label or kind.name).replace(" ", "-"), self.port, **given)
        if kind is not Upstream:
            self.versions[kind.name] = f"{gateway.version} ({kind.does})"
        return gateway

    def measure(self, label: str, run: Run) -> Row:
        """Start the gateway, put it under its load, and return what that cost."""
        gateway = run.gateway
        given = {
            "port": gateway.port,
            "token": gateway.token,
            "headers": dict(gateway.headers),
            "seconds": self.seconds,
        }
        with self.upstream(), gateway.serving(run.cores) as pids:
            told = self.told(given | run.load | {"pids": pids})
        print(f"  {label:16} {told.strip()}", flush=True)
        row: Row = json.loads(told)
        return row

    def compare(self, runs: Mapping[str, Run]) -> Rows:
        """Return a row for each run: medians of the rounds."""
        return medians([{label: self.measure(label, run) for label, run in runs.items()} for _ in range(self.rounds)])

    def upstream(self) -> AbstractContextManager[int]:
        """Run the upstream on the core of the load."""
        command = [sys.executable, "-m", "tests.bench.upstream", str(self.port)]
        return running(command, "1", self.log, lambda: listens(self.port))

    def told(self, given: dict[str, Any]) -> str:
        """Run the load on its core, and return what it prints."""
        command = [*pinned("1"), sys.executable, "-m", "tests.bench.load", json.dumps(given)]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT, timeout=600).stdout


def medians(rounds: list[Rows]) -> Rows:
    return {
        label: {key: median(each[label][key] for each in rounds) for key in row} for label, row in rounds[0].items()
    }
