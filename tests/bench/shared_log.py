"""The capacity of one, two and four sinks that share a database: `python -m tests.bench.shared_log [REQUESTS]`, 120,000 by default.

Arrivals of requests of several gateways, and then their ends, are written to the stream; then the sinks, each in a process
of its own, write them to PostgreSQL, so that only these are measured: requests a second, and the processor time of a request that
a sink, the store and the database take. The figures depend on the machine; nothing here is a test.
"""

from __future__ import annotations

import asyncio
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from gateway.store.client.client import Client
from gateway.store.embedded import EmbeddedStore
from gateway.usage.home import postgres
from gateway.usage.log import FIELD, UsageLog
from gateway.usage.record import encode
from gateway.usage.stream import STREAM
from tests.bench.usage_log import MODELS, stop, tell
from tests.postgres import PostgresServer
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


async def write(client: Client, page: Sequence[bytes]) -> None:
    for start in range(0, len(page), AT_ONCE):
        lines = page[start : start + AT_ONCE]
        await asyncio.gather(*(client.submit("XADD", STREAM, "*", FIELD, line) for line in lines))


def processor_s(pid: int) -> float:
    """Return the processor time that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def of_group(parent: int) -> list[int]:
    """Return a process and its children."""
    found = subprocess.run(("pgrep", "-P", str(parent)), capture_output=True, text=True).stdout
    return [parent, *map(int, found.split())]


def total_s(pids: Iterable[int]) -> float:
    return sum(processor_s(pid) for pid in pids if Path(f"/proc/{pid}").exists())


async def read_all(log: UsageLog, sinks: Sequence[asyncio.subprocess.Process], count: int, others: list[int]) -> None:
    """Stop the sinks, write requests, let the sinks go on, and measure them, the store and the database."""
    store, database = others
    took_s, used = 0.0, [0.0, 0.0, 0.0]
    for start in range(0, count, ROUND):
        made = [lines(number, f"gateway{number % 3}") for number in range(start, min(start + ROUND, count))]
        for page in zip(*made, strict=True):  # arrivals, and later ends: each request is written twice
            for each in sinks:
                each.send_signal(19)  # SIGSTOP
            await write(log.client, page)
            groups = [[each.pid for each in sinks], [store], of_group(database)]
            began, before = time.perf_counter(), [*map(total_s, groups)]
            for each in sinks:
                each.send_signal(18)  # SIGCONT
            while await log.length():
                await asyncio.sleep(0.02)
            took_s += time.perf_counter() - began
            used = [each + total_s(pids) - first for each, pids, first in zip(used, groups, before, strict=True)]
    name = f"{len(sinks)} sink{'s' if len(sinks) > 1 else ''}"
    tell(f"{name}: requests/s that are written", count / took_s)
    for what, seconds in zip(("the sinks", "the store", "the database"), used, strict=True):
        tell(f"{name}: processor of {what}, microseconds for a request", seconds / count * 1e6)


async def measure(folder: Path, count: int) -> None:
    store = EmbeddedStore.start(folder / "store")
    server = PostgresServer(durable=True)
    client = Client.connect(store.url, timeout_s=10)
    try:
        for number in (1, 2, 4):
            server.empty()
            await client.call("FLUSHALL")
            database = postgres(server.url, folder / f"{number}")
            log = UsageLog(client, database)
            sinks = [
                await asyncio.create_subprocess_exec(
                    *(
                        sys.executable,
                        "-m",
                        "tests.sink_process",
                        str(folder / f"{number}-{each}"),
                        store.url,
                        server.url,
                    )
                )
                for each in range(number)
            ]
            await write(client, [line for number in range(AT_ONCE) for line in lines(number, "gateway0")])
            while await log.length():
                await asyncio.sleep(0.05)
            await read_all(log, sinks, count, [store.pid, server.process.pid])
            for each in sinks:
                await stop(each)
        size = "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace "
        with database._ran(f"{size} WHERE nspname = 'sluicegate' AND relkind = 'r'") as found:
            tell("bytes of a request in the database", next(found)[0] / (count + AT_ONCE))
        database.close()
    finally:
        await client.close()
        server.stop()
        store.stop()


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 120_000
    print(f"Python {platform.python_version()}, {platform.machine()}, {count:,} requests")
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(Path(folder), count))


if __name__ == "__main__":
    main()
