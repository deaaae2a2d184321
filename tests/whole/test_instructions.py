"""The count of instructions finds what is above its budget. `make test` runs the count itself, alone on the machine."""

from __future__ import annotations

import subprocess
import sys

from tests.bench.instructions import SLACK, exceeded, table
from tests.bench.process import ROOT


def test_a_figure_above_the_budget_is_found_beyond_the_slack() -> None:
    allowed = {"request": 100_000, "event": 1000}
    within = {"request": int(100_000 * SLACK), "event": 1}
    assert exceeded(within, allowed) == []
    beyond = within | {"event": 1051}
    assert exceeded(beyond, allowed) == ["event"]
    assert "event: more than 5 % above the budget" in table(beyond, allowed)
    assert exceeded(beyond, None) == []
    assert "none" in table(beyond, None)


def test_help_says_what_is_counted() -> None:
    command = [sys.executable, "-m", "tests.bench.instructions", "--help"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "--json" in shown
    assert "budget" in shown
