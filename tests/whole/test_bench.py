"""The benchmark carries its load, estimates every part, and judges targets; the count of instructions finds what is too much.

Nothing here measures: figures of a short load on a busy machine mean nothing.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gateway.store.client.client import Client
from tests.bench.bench import BEFORE, Bench, Run
from tests.bench.distant_store import distant_store
from tests.bench.estimate import Estimate
from tests.bench.gateways import API_KEY, OURS, Ours
from tests.bench.instructions import SLACK, exceeded, table
from tests.bench.parts import PARTS, SHORT, TABLE, VARIANTS
from tests.bench.process import ROOT
from tests.bench.report import write
from tests.bench.results import Result, save_result
from tests.bench.targets import targets

COMPILES = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


@COMPILES
async def test_the_store_at_a_distance_answers_as_it_does_nearby_but_later(tmp_path: Path) -> None:
    """The delay is two hundred times the usual one: more than what a busy machine adds."""
    large = "x" * 3_000_000
    with distant_store(tmp_path, "0,1", delay_us=100_000) as url:
        client, other = Client.connect(url, timeout_s=30), Client.connect(url, timeout_s=30)
        await client.call("PING")
        began = time.perf_counter()
        for _ in range(5):
            await client.call("PING")
        assert time.perf_counter() - began >= 5 * 2 * 0.1
        await client.call("SET", "large", large)
        assert await other.call("GET", "large") in (large, large.encode())
        await client.close()
        assert await other.call("STRLEN", "large") == len(large)
        await other.close()


@COMPILES
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_gateway_with_more_in_its_chain_carries_the_load(variant: str, tmp_path: Path) -> None:
    bench = Bench(tmp_path, rounds=1, seconds=0.5, scale=1)
    (gateway,) = bench.ours(**VARIANTS[variant])
    assert isinstance(gateway, Ours)
    row = bench.measure(variant, Run(gateway, SHORT | {"warm_s": 0.2}))
    assert f"api_key: {API_KEY}" in gateway.configuration.read_text()
    assert row["completed"] > 0
    assert (row["wrong"], row["cut"]) == (0, 0)


def test_the_table_is_estimated_without_starting_anything_and_takes_minutes(tmp_path: Path) -> None:
    estimate = Estimate(tmp_path, 3, 2.0, 1, before=ROOT)
    for part in PARTS.values():
        before = estimate.total_s
        rows = part(estimate)
        assert not rows or estimate.total_s > before
    table = Estimate(tmp_path, 3, 2.0, 1, before=ROOT)
    for part in TABLE.values():
        part(table)
    assert 5 * 60 < table.total_s < 15 * 60
    assert not list(tmp_path.rglob("data"))


def test_a_target_compares_both_commits_in_one_run_and_says_what_was_reached() -> None:
    nginx = {"cpu_us_per_event": 10.0, "cpu_us_per_request": 100.0, "requests_per_s": 6000.0}
    now = {"cpu_us_per_event": 14.0, "cpu_us_per_request": 240.0, "requests_per_s": 2500.0}
    before = {"cpu_us_per_event": 28.0, "cpu_us_per_request": 480.0, "requests_per_s": 1300.0}
    rows = {OURS: now, BEFORE: before, "nginx": nginx}
    found = {each.what: each for each in targets({"paced": rows, "short": rows})}
    event = found["CPU of a paced event, nginx's = 1"]
    assert (event.before, event.now, event.verdict) == (2.8, 1.4, "reached")
    request = found["CPU of a short request, nginx's = 1"]
    assert (request.before, request.now, request.verdict) == (4.8, 2.4, "aim reached")
    assert found["requests/s with the store, before = 1"].verdict == "**missed**"


def test_the_report_has_both_commits_and_leaves_out_what_was_not_measured(tmp_path: Path) -> None:
    counted = {"instructions_request": 500_000.0, "instructions_event": 12_000.0}
    rows = {OURS: counted, BEFORE: {"instructions_request": 1_261_000.0, "instructions_event": 27_900.0}}
    about = ("c0ffee", "2026-11-22 08:00", "a machine", "Python", {OURS: "1 at c0ffee"}, 0.1)
    save_result(tmp_path / "results", "instructions", Result(*about, 1, 1, 1, rows))
    text = write(tmp_path / "results").read_text()
    assert "| instructions of a request | thousand | 1,261 | 500 | ≤ 600 | ≤ 450 | reached |" in text
    assert "| instructions of an event | thousand | 27.9 | 12 | ≤ 11 | ≤ 7 | **missed** |" in text
    assert "2026-11-22 08:00" in text and "nginx's" not in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--only", "short,shrot"), "there is no part 'shrot'"),
        (("--before", "/nowhere"), "/nowhere has no .venv: run `make .venv/.serve` there"),
    ],
)
def test_a_mistake_of_the_user_is_one_line(words: tuple[str, ...], said: str) -> None:
    run = subprocess.run([sys.executable, "-m", "tests.bench.run", *words], capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 2
    assert said in run.stderr.splitlines()[-1]


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
