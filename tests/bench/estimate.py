"""How long a benchmark takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from tests.bench.bench import Bench, Row, Run
from tests.bench.gateways import Gateway, Ours
from tests.bench.load import LoadSettings

LOAD_STARTS_S: Final = 0.4
"""Seconds until upstream and load have started and stopped."""
CREATES_S: Final = 1.5
"""Seconds for the commands that create an account and a token."""
OPENS: Final = 1200
"""Streams that are opened in a second."""
COUNTS_S: Final = 20.0
"""Seconds for counting the instructions of one checkout."""


class Estimate(Bench):
    """A benchmark that runs nothing and adds up the seconds that its runs would take."""

    total_s = 0.0

    def create(self, kind: type[Gateway], label: str = "", **settings: Any) -> Gateway:
        """Add the time of the commands that a gateway needs before its first start."""
        self.total_s += CREATES_S if kind is Ours else 0
        return super().create(kind, label, **settings)

    def measure(self, label: str, run: Run) -> Row:
        """Add the time of a run, and return figures that a part may calculate with."""
        load = msgspec.convert({"port": 0, "seconds": self.seconds} | run.load, LoadSettings)
        self.total_s += LOAD_STARTS_S + run.gateway.starts_s + load.seconds
        self.total_s += load.streams / OPENS if load.once else load.warm_s
        return {"requests_per_s": 1.0, "opened_s": 1.0, "seconds": 1.0}

    def time_start(self, gateway: Gateway) -> Row:
        """Add the time of a start."""
        self.total_s += LOAD_STARTS_S + gateway.starts_s
        return {}

    def count_instructions(self, name: str, checkout: Path) -> Row:
        """Add the time of counting."""
        self.total_s += COUNTS_S
        return {}
