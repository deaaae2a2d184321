"""The capacity of one sink with the records of three gateways: `python -m tests.bench.shared_log [REQUESTS]`, 180,000 by default.

Requests of three gateways, each with an arrival and an end, are written to the stream in turns; then a sink in a process of its own
reads them into its files, so that only the sink is measured: requests a second, and what of the processor it takes for it.

Then three sinks read the same at once. The figures depend on the machine; nothing here is a test.
"""

from __future__ import annotations

import asyncio
import os
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from gateway.store.client.client import Client
from gateway.store.embedded import EmbeddedStore
from gateway.usage.log import FIELD, UsageLog
from gateway.usage.record import encode
from gateway.usage.replication import position_of
from gateway.usage.stream import STREAM
from tests.bench.usage_log import MODELS, start_sink, stop, tell
from tests.records import arrival, end

AT_ONCE = 500
ROUND = 60_000
"""Requests that are written at a time: the stream has room for 100,000."""
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def lines(number: int, gateway: str) -> tuple[bytes, bytes]:
    """Return an arrival and its end, of one of 500 accounts and one of four models."""
    opened = msgspec.structs.replace(arrival(), gateway=gateway)
    account = f"account{number % 500}"
    ended = end(opened, account=account, token_id=f"{account}-k3f9x2ab", model=MODELS[number % len(MODELS)])
    return encode(opened), encode(ended)


async def write_requests(client: Client, count: int) -> None:
    """Write requests of three gateways in turns: each ends while 500 others run."""
    under_way: list[bytes] = []
    for start in range(0, count, AT_ONCE):
        written = [lines(number, f"gateway{number % 3}") for number in range(start, start + AT_ONCE)]
        page = [*(opened for opened, _ in written), *under_way]
        under_way = [ended for _, ended in written]
        await asyncio.gather(*(client.submit("XADD", STREAM, "*", FIELD, line) for line in page))
    await asyncio.gather(*(client.submit("XADD", STREAM, "*", FIELD, line) for line in under_way))


def processor_s(pid: int) -> float:
    """Return the processor time that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


async def read_all(logs: Sequence[UsageLog], url: str, count: int, store_pid: int) -> None:
    """Start a sink for each log, stop it before it reads, write requests, let all sinks go on, and measure them."""
    sinks = [await start_sink(log.folder.parent, url) for log in logs]
    for log in logs:
        while not [each for each in await groups(log.client) if each == log.installation]:
            await asyncio.sleep(0.05)
    took_s = processor = store_s = 0.0
    for start in range(0, count, ROUND):
        await paused(sinks, logs[0].client, min(ROUND, count - start))
        began, before, store = time.perf_counter(), [processor_s(each.pid) for each in sinks], processor_s(store_pid)
        for each in sinks:
            each.send_signal(18)  # SIGCONT
        while not await all_read(logs):
            await asyncio.sleep(0.02)
        took_s += time.perf_counter() - began
        processor += sum(processor_s(each.pid) for each in sinks) - sum(before)
        store_s += processor_s(store_pid) - store
    name = f"{len(logs)} sink{'s' if len(logs) > 1 else ''}"
    tell(f"{name}: requests/s that each writes", count / took_s)
    tell(f"{name}: processor of a sink, microseconds for a request", processor / len(logs) / count * 1e6)
    tell(f"{name}: requests/s of a sink with a core of its own", count * len(logs) / processor)
    tell(f"{name}: processor of the store, microseconds for a request", store_s / count * 1e6)
    for each in sinks:
        await stop(each)


async def paused(sinks: Sequence[asyncio.subprocess.Process], client: Client, count: int) -> None:
    for each in sinks:
        each.send_signal(19)  # SIGSTOP
    await write_requests(client, count)


async def all_read(logs: Sequence[UsageLog]) -> bool:
    """Return whether each gateway has said that it has written the last entry."""
    stream = await logs[0].client.call("XINFO", "STREAM", STREAM)
    positions = await asyncio.gather(*(position_of(log.client, log.installation) for log in logs))
    return set(positions) == {stream[b"last-generated-id"].decode()}


async def groups(client: Client) -> list[str]:
    if not await client.call("EXISTS", STREAM):
        return []
    return [group[b"name"].decode() for group in await client.call("XINFO", "GROUPS", STREAM)]


async def measure(folder: Path, count: int) -> None:
    store = EmbeddedStore.start(folder / "store")
    client = Client.connect(store.url, timeout_s=10)
    try:
        for number in (1, 3):
            logs = [UsageLog(client, folder / f"{number}-{each}" / "usage") for each in range(number)]
            await read_all(logs, store.url, count, store.pid)
    finally:
        await client.close()
        store.stop()


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 180_000
    print(f"Python {platform.python_version()}, {platform.machine()}, {count:,} requests of three gateways")
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(Path(folder), count))


if __name__ == "__main__":
    main()
