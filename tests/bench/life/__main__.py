"""An hour of randomized life: `python -m tests.bench.life --seconds 3600 --seed N`.

A real gateway (two workers, an embedded store, the whole shipped chain) on loopback, in a temporary folder. Callers of many
kinds come at random, hostile ones among them; upstreams answer and fail in many ways; meanwhile the configuration is edited,
well and wrongly, accounts and tokens are changed, workers, sink and store are killed or frozen, the network between gateway
and upstreams fails, the disk is full for a while, and in a run of more than ten minutes the clock steps. All of that is
planned from the seed, so a plan can be repeated; how the events of a run interleave cannot.

At the end every request is judged: its answer by what was done at the time, its record by what its caller saw, its charge by
the upstream's own account. The books must balance, memory, tasks and sockets must be level, and neither a traceback nor a
secret may be in any log. The report names each violation with its request and what was done around it; the exit code is 1
if there is one that `known.py` does not tolerate.

The full disk needs the right to mount a small tmpfs; without it, that part is left out, and a line says so.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
from pathlib import Path

from tests.bench.life.disk import SmallDisk
from tests.bench.life.plan import plan
from tests.bench.life.report import as_json, as_text
from tests.bench.life.run import Run
from tests.bench.machine import busy, commit, machine, now_utc, versions
from tests.bench.process import raise_descriptors

NOT_KEPT = shutil.ignore_patterns("*.sock", "pepper", "admin.token")


def say(line: str) -> None:
    """Print a line of progress."""
    print(line, file=sys.stderr, flush=True)


def small_disk(folder: Path, seconds: float) -> SmallDisk | None:
    """Return a small disk at `folder`, or None where that is not allowed."""
    try:
        return SmallDisk(folder, mib=128 + round(0.4 * seconds))
    except OSError as error:
        print(f"skipped: the full disk ({error})", file=sys.stderr)
        return None


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=3600, help="how long callers come (default: an hour)")
    options.add_argument("--seed", type=int, help="the seed of the plan (default: a random one, which is printed)")
    options.add_argument("--rate", type=float, default=20, help="visits of callers a second (default: 20)")
    options.add_argument(
        "--external-store",
        action="store_true",
        help="a store outside, behind a network that fails, in place of the embedded one",
    )
    options.add_argument("--json", action="store_true", help="print the report as one JSON object")
    options.add_argument("--keep", type=Path, help="copy the gateway's log and data to this folder at the end")
    arguments = options.parse_args()
    seed = random.randrange(1 << 32) if arguments.seed is None else arguments.seed
    raise_descriptors()
    print(f"seed {seed}; {machine()}; {versions()}; commit {commit()}, {now_utc()} UTC", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="life") as name:
        folder = Path(name)
        (folder / "data").mkdir()
        disk = small_disk(folder / "data", arguments.seconds)
        planned = plan(seed, arguments.seconds, arguments.rate)
        try:
            result = asyncio.run(Run(planned, folder, disk, say, external=arguments.external_store).run())
        finally:
            if arguments.keep:
                shutil.copytree(folder, arguments.keep, dirs_exist_ok=True, ignore=NOT_KEPT)
            if disk is not None:
                disk.leave()
    wrong = [each for each in result.violations if not each.tolerated]
    if arguments.json:
        print(as_json({"seed": seed, **result.summary}, result.violations))
    else:
        print("\n".join(result.table))
        for name, value in result.summary.items():
            print(f"{name}: {value}")
        print("\n".join(as_text(result.violations)))
        print(
            f"{len(wrong)} violations, {len(result.violations) - len(wrong)} tolerated; seed {seed}; load average {busy()}"
        )
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
