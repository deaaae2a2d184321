"""Print the fairness table: `python -m tests.bench.fairness --help`."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Final

import msgspec

from tests.bench.fairness.measure import Measured, measure
from tests.bench.fairness.rows import ROWS, Row
from tests.bench.fairness.stage import prepare, staged, upstreams
from tests.bench.machine import busy, commit, machine
from tests.bench.process import raise_descriptors

PHASE_S: Final = 1.0
DESCRIPTION: Final = """\
Show what one caller can do to others. For each thing that callers share, a first caller does its worst, and a second
caller, with another account and another address, sends a short streaming request every 25 ms and must not notice.

Each row has a gateway of its own (`gateway serve`, one worker, the shipped chain, the embedded store); gateway, upstream
and the two callers are processes of their own, on loopback. Quiet and hostile phases of a second take turns, so that the
noise of the machine is in both. The row `nothing` shows how large that noise is.
"""
EPILOG: Final = """\
columns:
  served      requests of the second caller beside the first that were answered whole, of all that it sent
  p50, p99    time to the first event, quiet and beside the first caller, over all phases
  p50 x, p99 x  the median over the rounds of: beside, divided by the quiet phase before. Below 2 is the aim for p99.
  ans/s       how often a request of the first caller ended, in whatever way
  KiB/s       what the data folder and the log grew by
  MiB         what the memory of the worker grew by, at most
  entries     entries that waited in the usage log's stream, at most
  lines/s     log lines

examples:
  python -m tests.bench.fairness                             all rows, some ten minutes
  python -m tests.bench.fairness --only flagged,idle         two rows
  python -m tests.bench.fairness --seconds 20 --json > f.jsonl
"""


def main() -> None:
    """Run the rows that the command line names."""
    parser = argparse.ArgumentParser(
        "python -m tests.bench.fairness",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=5, help="hostile seconds of each row, as many are quiet (5)")
    parser.add_argument("--only", default="", metavar="NAMES", help="rows to run, with commas; --list shows them")
    parser.add_argument("--json", action="store_true", help="print a JSON object for each row instead of the table")
    parser.add_argument("--list", action="store_true", help="list the rows and exit")
    options = parser.parse_args()
    names = [name for name in options.only.split(",") if name]
    if unknown := set(names) - {row.name for row in ROWS}:
        parser.error(f"no row is called {', '.join(sorted(unknown))}; --list shows them")
    if options.seconds < PHASE_S:
        parser.error(f"--seconds must be {PHASE_S:g} or more")
    chosen = [row for row in ROWS if not names or row.name in names]
    if options.list:
        print("\n".join(f"{row.name:24} {row.shared}" for row in chosen))
        return
    raise_descriptors()
    with tempfile.TemporaryDirectory(prefix="fairness-") as name:
        tokens = prepare(Path(name) / "template")
        asyncio.run(run(chosen, Path(name), tokens, round(options.seconds / PHASE_S), as_json=options.json))


async def run(rows: list[Row], folder: Path, tokens: dict[str, str], rounds: int, *, as_json: bool) -> None:
    """Measure the rows, one after the other, and print each when it is measured."""
    if not as_json:
        print(f"{machine()}; commit {commit()}; load average {busy()}\n\n{HEADER}", flush=True)
    async with upstreams() as ports:
        for number, row in enumerate(rows):
            print(f"{number + 1}/{len(rows)} {row.name}", file=sys.stderr, flush=True)
            async with staged(row, folder / str(number), folder / "template", tokens, ports) as stage:
                measured = await measure(stage, rounds=rounds, phase_s=PHASE_S)
            print(msgspec.json.encode(measured).decode() if as_json else line(measured), flush=True)


HEADER: Final = (
    f"{'row':24} {'served':>9}  {'p50 ms':>11} {'p99 ms':>13} {'p50 x':>6} {'p99 x':>6}"
    f" {'ans/s':>7} {'KiB/s':>7} {'MiB':>6} {'entries':>7} {'lines/s':>7}"
)


def line(row: Measured) -> str:
    """Return a line of the table, and below it what the second caller got where it was not served."""
    quiet, beside, taken = row.quiet, row.beside, row.taken
    text = (
        f"{row.name:24} {beside.served:>4}/{beside.served + beside.refused:<4}"
        f"  {quiet.p50_ms:5.1f}/{beside.p50_ms:<5.1f} {quiet.p99_ms:6.1f}/{beside.p99_ms:<6.1f}"
        f" {row.ratio_p50:6.1f} {row.ratio_p99:6.1f}"
        f" {taken.answers_per_s:7.0f} {taken.disk_kib_per_s:7.0f} {taken.memory_mib:6.0f}"
        f" {taken.stream_entries:7} {taken.log_lines_per_s:7.1f}"
    )
    refusals = "".join(f"\n    not served, {count} times: {said}" for said, count in row.said.items())
    early = f"\n    {quiet.refused} not served in quiet phases" if quiet.refused else ""
    return f"{text}{refusals}{early}\n    first caller: {row.taken.tally}"


if __name__ == "__main__":
    main()
