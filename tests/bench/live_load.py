"""An open-loop load in slices, for what changes while it runs: `python -m tests.bench.live_load SETTINGS`.

The settings are those of `tests.bench.load`. For each line of its standard input it prints a line of JSON, a `Slice`: what callers
saw since the line before. It never pauses, and ends with its standard input.
"""

from __future__ import annotations

import select
import sys
import time

import msgspec

from tests.bench.load import Load, LoadSettings
from tests.bench.process import PATIENCE_S, cpu_ns, raise_descriptors


class Slice(msgspec.Struct):
    """A part of a load. `first`: milliseconds to the first event of each request; `failed`: requests that were refused or cut.

    `cpu_s`: the CPU time of the processes whose ids are in the settings.
    """

    first: list[float]
    seconds: float
    completed: int
    failed: int
    cpu_s: float


def asked() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


def main() -> None:
    raise_descriptors()
    load = Load(msgspec.json.decode(sys.argv[1], type=LoadSettings))
    load.open()
    began, cpu, completed, failed = time.monotonic(), cpu_ns(load.settings.pids), 0, 0
    while True:
        load.run(asked, PATIENCE_S)
        if not asked():
            continue
        if not sys.stdin.readline():
            break
        found = Slice(
            load.first.tolist(),
            time.monotonic() - began,
            load.completed - completed,
            load.wrong + load.cut - failed,
            (cpu_ns(load.settings.pids) - cpu) / 1e9,
        )
        print(msgspec.json.encode(found).decode(), flush=True)
        del load.first[:], load.transits[:]
        began, cpu, completed = time.monotonic(), cpu_ns(load.settings.pids), load.completed
        failed = load.wrong + load.cut


if __name__ == "__main__":
    main()
