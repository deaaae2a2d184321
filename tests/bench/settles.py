"""The cost of settling in the store over many requests: time, and the memory of one account's keys.

`python -m tests.bench.settles [COUNT]` holds and settles COUNT requests (a million by default) of one account, on its own
server. Ended requests are remembered for `KEEP_S` instead of a day, so that they are trimmed as in a long run. After each
tenth, the lines of the ledger that may move are archived.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import tempfile
import time
from pathlib import Path

from uuid_utils import uuid7

from gateway.store.accounts import Accounts
from gateway.store.client.client import Client
from gateway.store.embedded import EmbeddedStore
from gateway.store.money.archive import Archive, Archiver
from gateway.store.money.scripts import keys_of
from gateway.store.money.wallet import Wallet

AT_ONCE = 200
KEEP_S, SKEW_S = 4.0, 0.5
ROWS = 10


async def measure(url: str, count: int, folder: Path) -> None:
    """Print a table with a row for each tenth of the run."""
    client = Client.connect(url, timeout_s=10)
    await Accounts(client).create("bench")
    wallet = Wallet(client, keep_s=KEEP_S, skew_s=SKEW_S)
    archive = Archive(folder)
    archiver = Archiver(client, archive, keep_s=KEEP_S, skew_s=SKEW_S)
    await wallet.credit("bench", "opening", 10 * count)
    print(
        "| settles | us each | lines moved | us each | lines left | ends kept | KiB of all keys | store's MiB | file's MiB |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for row in range(1, ROWS + 1):
        began = time.perf_counter()
        for _ in range(count // ROWS // AT_ONCE):
            await asyncio.gather(*(request(wallet) for _ in range(AT_ONCE)))
        each_us = (time.perf_counter() - began) / (count // ROWS) * 1e6
        began = time.perf_counter()
        moved = await archiver.move("bench", int((time.time() - KEEP_S - 2 * SKEW_S) * 1000))
        took_us = (time.perf_counter() - began) * 1e6
        sizes = [await client.call("MEMORY", "USAGE", key, "SAMPLES", 0) or 0 for key in keys_of("bench")]
        lines = await client.call("XLEN", "gw:{bench}:ledger")
        ended = await client.call("HLEN", "gw:{bench}:wallet")
        used = (await client.call("INFO", "memory"))["used_memory"] / 2**20
        file = archive.file("bench").stat().st_size / 2**20 if moved else 0
        cells = (
            row * (count // ROWS),
            f"{each_us:.0f}",
            moved,
            f"{took_us / moved:.0f}" if moved else "-",
            lines,
            ended,
        )
        print(f"| {' | '.join(map(str, cells))} | {sum(sizes) / 1024:.0f} | {used:.0f} | {file:.0f} |", flush=True)
    for read in (None, archive):
        began = time.perf_counter()
        wrong = (await wallet.audit("bench", read)).wrong
        took = f"in {time.perf_counter() - began:.1f} s, with {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB"
        print(f"verify{' with the archive' if read else ''}: {'; '.join(wrong) or 'all is right'}, {took}")
    await client.close()


async def request(wallet: Wallet) -> None:
    """Hold and settle once: two round trips to the store, shared with concurrent requests."""
    request_id = str(uuid7())
    await wallet.hold("bench", request_id, amount=10, floor=0, lease_ms=1000, fingerprint="a", max_holds=2 * AT_ONCE)
    await wallet.settle("bench", request_id, 7)


if __name__ == "__main__":
    total = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        store = EmbeddedStore.start(Path(folder))
        try:
            asyncio.run(measure(store.url, total, Path(folder) / "archive"))
        finally:
            store.stop()
