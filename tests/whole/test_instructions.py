"""A worker executes no more instructions for a request and for an event than the budget allows."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.bench.instructions import SLACK, budget, exceeded, measure, missing, table
from tests.bench.process import ROOT


@pytest.mark.skipif(bool(missing()), reason=f"this machine lacks {missing()}")
def test_requests_and_events_are_within_the_budget() -> None:
    allowed = budget()
    figures = measure()
    assert not exceeded(figures, allowed), f"\n{table(figures, allowed)}"
    assert all(count > 0 for count in figures.values())


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
