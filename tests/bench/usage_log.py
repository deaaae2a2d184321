"""The speed of the usage log: `python -m tests.bench.usage_log [REQUESTS]`, 200,000 by default.

Two rounds through a real store and a sink in its own process, each request with an arrival and an end:

- full: the stream is filled first, then the sink drains it, so that only the sink is measured;
- beside: requests are written from this process's event loop, as in a worker, while the sink drains, and the loop's longest
  stall is measured, with the sink and without it.

Then queries on all stored records. The figures depend on the machine; nothing here is a test.
"""

from __future__ import annotations

import asyncio
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path

import msgspec

from gateway.store.client.client import Client
from gateway.store.embedded import EmbeddedStore
from gateway.usage import queries
from gateway.usage.database import UsageFiles, path_of
from gateway.usage.log import UsageLog
from gateway.usage.record import Record
from gateway.usage.sums import Selected, grouped
from tests.records import arrival, end, id_at

MODELS = ("gpt-4o-mini", "llama-3", "words", "other")
AT_ONCE = 200
FULL = 95_000
"""Requests that are written at a time: a full stream would divert further records to the spool."""


def request(number: int) -> tuple[Record, Record]:
    """Return an arrival and its end, of one of 500 accounts and one of four models, on one of 30 days."""
    opened = arrival(id_at(round((time.time() - 86_400 * (number % 30)) * 1000)))
    account = f"account{number % 500}"
    return opened, end(opened, account=account, token_id=f"{account}-k3f9x2ab", model=MODELS[number % 4])


async def write_requests(usage: UsageLog, numbers: Iterable[int]) -> float:
    """Write arrivals and ends, 200 at once, and return the longest stall of the loop in seconds."""
    longest = 0.0
    over = False

    async def watch() -> None:
        nonlocal longest
        while not over:
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            longest = max(longest, time.perf_counter() - before - 0.001)

    async def one(number: int) -> None:
        opened, ended = request(number)
        await usage.submit_arrival(opened)
        await usage.end(ended)

    watching = asyncio.create_task(watch())
    coming = iter(numbers)
    while batch := list(islice(coming, AT_ONCE)):
        await asyncio.gather(*map(one, batch))
    over = True
    await watching
    return longest


async def wait_drained(usage: UsageLog) -> None:
    """Wait until the stream and the spool are empty."""
    while await usage.length() or usage.spool.files():
        await asyncio.sleep(0.02)


async def start_sink(folder: Path, url: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(sys.executable, "-m", "tests.sink_process", str(folder), url)


async def stop(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.terminate()
    await process.wait()


async def rounds(folder: Path, count: int) -> UsageLog:
    """Run both rounds, with half of the requests each."""
    store = EmbeddedStore.start(folder / "store")
    client = Client.connect(store.url, timeout_s=10)
    usage = UsageLog(client, UsageFiles(folder / "usage"))
    half = count // 2
    kept, took_s = 0, 0.0
    while kept < half:
        filling = min(FULL, half - kept)
        alone = await write_requests(usage, range(kept, kept + filling))
        began = time.perf_counter()
        sink = await start_sink(folder, store.url)
        await wait_drained(usage)
        took_s += time.perf_counter() - began
        await stop(sink)
        kept += filling
    tell("full: requests/s that the sink keeps, its start included", kept / took_s)
    tell("full: longest stall of the loop without a sink, ms", alone * 1000)
    sink = await start_sink(folder, store.url)
    began = time.perf_counter()
    stall = await write_requests(usage, range(half, count))
    took_s, waiting = time.perf_counter() - began, await usage.length()
    tell("beside: requests/s that come and go", (count - half) / took_s)
    tell("beside: longest stall of the loop with the sink, ms", stall * 1000)
    tell("beside: entries that wait at the end", waiting)
    await wait_drained(usage)
    tell("beside: requests/s until all are kept", (count - half) / (time.perf_counter() - began))
    await stop(sink)
    await client.close()
    store.stop()
    return usage


def run_queries(folder: Path) -> None:
    some = iter([record.id for record in islice(queries.select(UsageFiles(folder), newest_first=True), 1000)])
    totals = grouped(UsageFiles(folder), [], Selected(), [])[0]
    size = sum(path_of(folder, name).stat().st_size for name in UsageFiles(folder).months())
    tell("kept: requests", totals["requests"])
    tell("kept: bytes for each request", size / totals["requests"])
    timed("summary --by model,day", lambda: grouped(UsageFiles(folder), ["model", "day"], Selected(), []))
    timed(
        "summary --by account,model,day",
        lambda: grouped(UsageFiles(folder), ["account", "model", "day"], Selected(), []),
    )
    timed("show ID", lambda: queries.find(UsageFiles(folder), next(some)))
    timed("list --account A --limit 50", lambda: newest_of(folder, "account7"))


def newest_of(folder: Path, account: str) -> list[Record]:
    return list(islice(queries.select(UsageFiles(folder), account=account, newest_first=True), 50))


def timed(name: str, ask: Callable[[], object]) -> None:
    """Print the median and the longest of twenty calls."""
    times = []
    for _ in range(20):
        began = time.perf_counter()
        ask()
        times.append((time.perf_counter() - began) * 1000)
    tell(f"{name}: ms, median of 20", statistics.median(times))
    tell(f"{name}: ms, longest of 20", max(times))


def tell(name: str, value: float) -> None:
    print(f"{name:<60} {value:>12,.1f}", flush=True)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    print(
        f"Python {platform.python_version()}, {platform.machine()}, msgspec {msgspec.__version__}, {count:,} requests"
    )
    with tempfile.TemporaryDirectory() as folder:
        usage = asyncio.run(rounds(Path(folder), count))
        run_queries(usage.folder)


if __name__ == "__main__":
    main()
