"""Compare this gateway with an earlier commit of it and with others, and write REPORT.md and its plots.

    python -m tests.bench.run [--before CHECKOUT] [--quick] [--json] [--only PARTS]

Needs Linux, two cores and a C compiler. The gateway under test and its store share core 0, upstream and load core 1. CPU is what
the kernel counted for the gateway's processes, without the store. Other gateways are measured if they are installed: `peers`
says how. CHECKOUT is a folder with another commit of this project, in which `make .venv/.serve` was run; its gateway runs
under the same loads in the same minutes.

Without `--only` all parts that the targets need are measured. A part may be run alone: results are stored in results/, and the
report is written from all of them; `--only ''` writes it again. Progress is printed to standard error, the targets to standard
output. `--quick` is a trial of one short round: its figures mean little, and they are stored only where `--results` says.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import msgspec

from tests.bench.bench import Bench, Rows
from tests.bench.estimate import Estimate
from tests.bench.gateways import python_of
from tests.bench.machine import busy, commit, machine, now_utc, python_version, versions
from tests.bench.parts import PARTS, TABLE
from tests.bench.process import raise_descriptors
from tests.bench.report import write
from tests.bench.results import FOLDER, Result, load_results, save_result
from tests.bench.targets import table, targets

QUICK: tuple[int, float, float] = (1, 0.5, 0.1)
"""Rounds, seconds and scale of a quick trial."""


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="an earlier commit to compare with")
    parser.add_argument("--only", default=",".join(TABLE), metavar="PARTS", help=f"some of {','.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2, help="how long each load is measured")
    parser.add_argument("--scale", type=float, default=1, help="scale of the crowds, for a quick trial")
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--json", action="store_true", help="print the targets and all rows as JSON")
    parser.add_argument("--results", type=Path, help=f"the folder of results; default: {FOLDER}")
    given = parser.parse_args()
    if given.quick:
        given.rounds, given.seconds, given.scale = QUICK
    given.parts = list(filter(None, given.only.split(",")))
    if unknown := [part for part in given.parts if part not in PARTS]:
        parser.error(f"there is no part {unknown[0]!r}: name some of {','.join(PARTS)}")
    if given.before:
        given.before = given.before.resolve()
        if not Path(python_of(given.before)).exists():
            parser.error(f"{given.before} has no .venv: run `make .venv/.serve` there")
        if (other := python_version(python_of(given.before))) != python_version(sys.executable):
            parser.error(
                f"{given.before} runs Python {other}, not the one that runs this: the commits would not be compared"
            )
    return given


def measure(given: argparse.Namespace, folder: Path) -> None:
    """Run the parts and store their results in the folder."""
    settings = (given.rounds, given.seconds, given.scale, given.before)
    with tempfile.TemporaryDirectory(prefix="bench") as temporary:
        estimate = Estimate(Path(temporary), *settings)
        for part in given.parts:
            PARTS[part](estimate)
    tell(f"{len(given.parts)} parts take about {estimate.total_s / 60:.0f} minutes")
    began = time.monotonic()
    for part in given.parts:
        tell(f"{part}, after {(time.monotonic() - began) / 60:.1f} minutes")
        with tempfile.TemporaryDirectory(prefix="bench") as temporary:
            bench = Bench(Path(temporary), *settings)
            rows = PARTS[part](bench)
        about = (commit(), now_utc(), machine(), versions(), bench.versions, busy())
        save_result(folder, part, Result(*about, given.rounds, given.seconds, given.scale, rows))
    tell(f"measured in {(time.monotonic() - began) / 60:.1f} minutes")


def tell(text: str) -> None:
    """Print a line of progress."""
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    given = options()
    raise_descriptors()
    trial = given.quick and not given.results
    with tempfile.TemporaryDirectory(prefix="bench") if trial else nullcontext(given.results or FOLDER) as place:
        folder = Path(place)
        if given.parts:
            measure(given, folder)
        measured: dict[str, Rows] = {part: result.rows for part, result in load_results(folder).items()}
        found = targets(measured)
        if given.json:
            sys.stdout.buffer.write(msgspec.json.encode({"targets": found, "rows": measured}) + b"\n")
        else:
            print(table(found), end="")
        if not trial:
            tell(f"written: {write(folder)}")


if __name__ == "__main__":
    main()
