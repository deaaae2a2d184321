"""A search for leaks: many short requests through the whole chain, `python -m tests.bench.endurance [--requests N]`.

A million requests by default, on two workers. After each slice of 50,000 the gateway is idle for `QUIET_S`, and the resources
of the gateway and its store are printed. Each slice has a new load process. The exit code is 1 if memory is more than 5 %
above that after the first slice, if there are more tasks, sockets or keys than then, if a hold is left, if a request failed,
or if the books do not balance. With `--folder` a later run continues with the same store; each run is compared with its own
first slice.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from gateway.store.client.client import Client
from gateway.store.embedded import EmbeddedStore
from tests.bench.bench import Bench
from tests.bench.gateways import Ours
from tests.bench.machine import busy, commit, machine, now_utc, versions
from tests.bench.parts import SHORT
from tests.bench.process import raise_descriptors, resident_kib, sockets

SLICE = 50_000
QUIET_S = 12.0
"""Seconds until idle connections are closed and the usage log is on the disk."""
MAX_GROWTH = 1.05
HOLDS = "gw:{bench}:leases"


class Resources(msgspec.Struct):
    """The resources in use while no request is open. `resident_kib`: of the parent, its workers and the sink together."""

    resident_kib: int
    tasks: int
    sockets: int
    holds: int
    keys: int
    store_kib: int

    @classmethod
    def measure(cls, pids: list[int], folder: Path) -> Resources:
        """Return the resources of a gateway and its store."""
        tasks = sum(int(file.read_text() or 0) for pid in pids for file in folder.glob(f"tasks-{pid}"))
        return cls(resident_kib(pids), tasks, sockets(pids), *asyncio.run(_store_resources(folder / "data")))

    def growth(self, first: Resources) -> list[str]:
        """Describe the resources that are more than allowed."""
        grown = [
            f"{name}: {now} after {before}"
            for name in ("tasks", "sockets", "keys")
            if (now := getattr(self, name)) > (before := getattr(first, name))
        ]
        if self.resident_kib > MAX_GROWTH * first.resident_kib:
            grown.append(f"memory: {self.resident_kib} KiB after {first.resident_kib}")
        if self.holds:
            grown.append(f"holds: {self.holds}")
        return grown


async def _store_resources(data: Path) -> tuple[int, int, int]:
    """Return the number of holds, the number of keys without an expiry, and the KiB of the running store."""
    client = Client.connect(EmbeddedStore.start(data).url, timeout_s=10)
    try:
        memory, spaces = await client.call("INFO", "memory"), await client.call("INFO", "keyspace")
        lasting = spaces["db0"]["keys"] - spaces["db0"]["expires"]
        return await client.call("ZCARD", HOLDS), lasting, memory["used_memory"] // 1024
    finally:
        await client.close()


def endure(folder: Path, requests: int, workers: int) -> list[str]:
    """Send this many requests, and return what is wrong at the end."""
    bench = Bench(folder, 1, 0, 1)
    census = f"{{use: 'tests.bench.census:Census', with: {{folder: {folder / 'ours'}}}}}"
    ours = Ours(folder / "ours", bench.port, workers=workers, more=[census])
    slices = max(2, round(requests / SLICE))
    failed = 0
    slice_ends: list[Resources] = []
    print(
        "| requests | requests/s | failed | resident KiB | tasks | sockets | holds | keys | store KiB |\n|" + "---|" * 9
    )
    with bench.upstream(), ours.serving("0,1") as pids:
        for number in range(1, slices + 1):
            load: dict[str, Any] = {"port": ours.port, "token": ours.token, "pids": pids}
            load |= SHORT | {"requests": requests // slices, "seconds": 600, "streams": 32}
            row = json.loads(bench.run_load(load))
            failed += row["wrong"] + row["cut"] + max(0, requests // slices - row["completed"])
            time.sleep(QUIET_S)
            slice_ends.append(resources := Resources.measure(pids, folder / "ours"))
            cells = (number * (requests // slices), row["requests_per_s"], failed, *msgspec.structs.astuple(resources))
            print(f"| {' | '.join(f'{cell:,}' for cell in cells)} |", flush=True)
        try:
            print(ours.run("verify").strip())
            books = []
        except subprocess.CalledProcessError as error:
            books = [error.stdout.strip()]
    return slice_ends[-1].growth(slice_ends[0]) + books + ([f"failed: {failed}"] if failed else [])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--requests", type=int, default=1_000_000)
    options.add_argument("--workers", type=int, default=2)
    options.add_argument(
        "--folder", type=Path, help="keep the store and the usage log here; default: a temporary folder"
    )
    arguments = options.parse_args()
    raise_descriptors()
    print(f"{machine()}; {versions()}; commit {commit()}, {now_utc()} UTC")
    with tempfile.TemporaryDirectory(prefix="bench") as folder:
        wrong = endure((arguments.folder or Path(folder)).resolve(), arguments.requests, arguments.workers)
    print(f"{'; '.join(wrong) or 'nothing grew'}; load average {busy()}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
