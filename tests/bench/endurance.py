"""Whether anything grows: many short requests through the whole chain, `python -m tests.bench.endurance [--requests N]`.

A million by default, on two workers. After each slice of 50,000 the gateway is left alone for a moment, and what it and its
store hold is printed; each slice's load and upstream are new. Exit code 1 when memory is more than 5 % above that after the
first slice, when a task, a socket, a hold or a key is left, when a request failed, or when the books are wrong. With
`--folder` a later run goes on with the same store: each run is judged from its own first slice.
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
from gateway.store.client.embedded import EmbeddedStore
from tests.bench.bench import Bench
from tests.bench.gateways import Ours
from tests.bench.machine import busy, commit, machine, moment, versions
from tests.bench.parts import SHORT
from tests.bench.process import raise_descriptors, resident_kib, sockets

SLICE = 50_000
QUIET_S = 12.0
"""Until unused connections are closed, and the usage log is on the disk."""
LEVEL = 1.05
HOLDS = "gw:{bench}:holds"


class Held(msgspec.Struct):
    """What an idle gateway holds. `resident_kib`: of the parent, its workers and the sink together."""

    resident_kib: int
    tasks: int
    sockets: int
    holds: int
    keys: int
    store_kib: int

    @classmethod
    def by(cls, pids: list[int], folder: Path) -> Held:
        """Return what a gateway and its store hold."""
        tasks = sum(int(file.read_text() or 0) for pid in pids for file in folder.glob(f"tasks-{pid}"))
        return cls(resident_kib(pids), tasks, sockets(pids), *asyncio.run(_stored(folder / "data")))

    def beyond(self, first: Held) -> list[str]:
        """Return in words what is more than it may be."""
        grown = [
            f"{name}: {now} after {before}"
            for name in ("tasks", "sockets", "keys")
            if (now := getattr(self, name)) > (before := getattr(first, name))
        ]
        if self.resident_kib > LEVEL * first.resident_kib:
            grown.append(f"memory: {self.resident_kib} KiB after {first.resident_kib}")
        if self.holds:
            grown.append(f"holds: {self.holds}")
        return grown


async def _stored(data: Path) -> tuple[int, int, int]:
    """Return the holds, the keys without an expiry, and the KiB of the store."""
    client = Client.connect(EmbeddedStore.start(data).url, timeout_s=10)
    try:
        memory, spaces = await client.call("INFO", "memory"), await client.call("INFO", "keyspace")
        lasting = spaces["db0"]["keys"] - spaces["db0"]["expires"]
        return await client.call("HLEN", HOLDS), lasting, memory["used_memory"] // 1024
    finally:
        await client.close()


def endure(folder: Path, requests: int, workers: int) -> list[str]:
    """Send so many requests; return what is wrong at the end."""
    bench = Bench(folder, 1, 0, 1)
    census = f"{{use: 'tests.bench.census:Census', with: {{folder: {folder / 'ours'}}}}}"
    ours = Ours(folder / "ours", bench.port, workers=workers, more=[census])
    slices = max(2, round(requests / SLICE))
    failed = 0
    seen: list[Held] = []
    print(
        "| requests | requests/s | failed | resident KiB | tasks | sockets | holds | keys | store KiB |\n|" + "---|" * 9
    )
    with bench.upstream(), ours.serving("0,1") as pids:
        for number in range(1, slices + 1):
            load: dict[str, Any] = {"port": ours.port, "token": ours.token, "pids": pids}
            load |= SHORT | {"requests": requests // slices, "seconds": 600, "streams": 32}
            row = json.loads(bench.told(load))
            failed += row["wrong"] + row["cut"] + max(0, requests // slices - row["completed"])
            time.sleep(QUIET_S)
            seen.append(held := Held.by(pids, folder / "ours"))
            cells = (number * (requests // slices), row["requests_per_s"], failed, *msgspec.structs.astuple(held))
            print(f"| {' | '.join(f'{cell:,}' for cell in cells)} |", flush=True)
        try:
            print(ours.run("verify").strip())
            books = []
        except subprocess.CalledProcessError as error:
            books = [error.stdout.strip()]
    return seen[-1].beyond(seen[0]) + books + ([f"failed: {failed}"] if failed else [])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--requests", type=int, default=1_000_000)
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--folder", type=Path, help="where the store and the usage log are kept; else nowhere")
    given = options.parse_args()
    raise_descriptors()
    print(f"{machine()}; {versions()}; commit {commit()}, {moment()} UTC")
    with tempfile.TemporaryDirectory(prefix="bench") as folder:
        wrong = endure((given.folder or Path(folder)).resolve(), given.requests, given.workers)
    print(f"{'; '.join(wrong) or 'nothing grew'}; load average {busy()}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
