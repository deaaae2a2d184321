"""What settling costs the store: time, and the memory of one account's keys, over many requests.

`python -m tests.bench.settles [COUNT]` holds and settles COUNT requests (a million by default) of one account, on a server of
its own, over a day that is shortened to `KEEP_S`, so that the memory of ended requests is trimmed as it would be.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

from uuid_utils import uuid7

from gateway.store.accounts import Accounts
from gateway.store.client import Client
from gateway.store.embedded import EmbeddedStore
from gateway.store.scripts import KEYS
from gateway.store.wallet import Wallet

AT_ONCE = 200
KEEP_S, SKEW_S = 4.0, 0.5
ROWS = 10


async def measure(url: str, count: int) -> None:
    """Print a table, one row for each part of the run."""
    client = Client.connect(url, timeout_s=10)
    await Accounts(client).create("bench")
    wallet = Wallet(client, keep_s=KEEP_S, skew_s=SKEW_S)
    await wallet.credit("bench", "opening", 10 * count)
    print("| settles | us each | ended kept | KiB but for the ledger | ledger bytes a settle | used MiB |")
    print("|---|---|---|---|---|---|")
    for row in range(1, ROWS + 1):
        began = time.perf_counter()
        for _ in range(count // ROWS // AT_ONCE):
            await asyncio.gather(*(request(wallet) for _ in range(AT_ONCE)))
        each_us = (time.perf_counter() - began) / (count // ROWS) * 1e6
        sizes = {name: await client.call("MEMORY", "USAGE", f"gw:{{bench}}:{name}") or 0 for name in KEYS}
        ledger = sizes.pop("ledger")
        lines = await client.call("XLEN", "gw:{bench}:ledger")
        ended = await client.call("ZCARD", "gw:{bench}:ended_at")
        used = (await client.call("INFO", "memory"))["used_memory"] / 2**20
        done = row * (count // ROWS)
        print(
            f"| {done} | {each_us:.0f} | {ended} | {sum(sizes.values()) / 1024:.0f} | {ledger / lines:.0f} | {used:.0f} |"
        )
    began = time.perf_counter()
    wrong = await wallet.verify("bench")
    print(f"\nverify: {'; '.join(wrong) or 'all is right'}, in {time.perf_counter() - began:.1f} s")
    await client.close()


async def request(wallet: Wallet) -> None:
    """One hold and its settlement: two of the store's round trips, shared with those beside it."""
    rid = str(uuid7())
    await wallet.hold("bench", rid, amount=10, floor=0, lease_ms=1000, fingerprint="a", max_holds=2 * AT_ONCE)
    await wallet.settle("bench", rid, 7)


if __name__ == "__main__":
    total = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        store = EmbeddedStore.start(Path(folder))
        try:
            asyncio.run(measure(store.url, total))
        finally:
            store.stop()
