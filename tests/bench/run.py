"""Compare this gateway with others, and write REPORT.md and its plots: `python -m tests.bench.run [--only short,paced]`.

Needs Linux, and two cores. The gateway under test and its store share core 0, upstream and load core 1. CPU is what the kernel
counted for the gateway's processes, without the store. Other gateways are measured if they are installed: `peers` says how.
A part may be run alone: results are stored in results/, and the report is written from all of them.
`--rounds 1 --seconds 1 --scale 0.01` is a quick trial; `--only ''` writes the report again.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.bench.bench import Bench
from tests.bench.machine import busy, commit, machine, now_utc, versions
from tests.bench.parts import PARTS
from tests.bench.process import raise_descriptors
from tests.bench.report import write
from tests.bench.results import FOLDER, Result, save_result


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas: %(default)s")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--seconds", type=float, default=4, help="how long each load is measured")
    options.add_argument("--scale", type=float, default=1, help="scale of the crowds, for a quick trial")
    options.add_argument("--results", type=Path, default=FOLDER)
    arguments = options.parse_args()
    raise_descriptors()
    for name in filter(None, arguments.only.split(",")):
        print(name, flush=True)
        with tempfile.TemporaryDirectory(prefix="bench") as folder:
            bench = Bench(Path(folder), arguments.rounds, arguments.seconds, arguments.scale)
            rows = PARTS[name](bench)
            about = (commit(), now_utc(), machine(), versions(), bench.versions, busy())
            save_result(
                arguments.results, name, Result(*about, arguments.rounds, arguments.seconds, arguments.scale, rows)
            )
    print(f"written: {write(arguments.results)}")


if __name__ == "__main__":
    main()
