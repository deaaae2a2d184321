"""The speed of what the operator's port shows: `python -m tests.bench.admin_views [REQUESTS] [FOLDER]`, 1,000,000.

The requests are of 10,000 accounts on 30 days, so that each account has some on each day; of four models on three channels, in
turns, so that hardly two have the same day, account, model and channel. A tenth is of one account. What the operator's port adds
up at its start is added up first. Each operation is asked for once, with the log's files out of the system's memory, and then many
times, while records go on to be written. With FOLDER, the files are kept there, and used again. The figures depend on the machine;
nothing here is a test. ADMIN_VIEWS.md has some.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

from gateway.admin.actions import channels, requests, usage
from gateway.admin.actions.action import Actor
from gateway.admin.actions.local import LocalClient
from gateway.admin.actions.requests import Filters, Requests
from gateway.admin.actions.usage import SumsQuery
from gateway.chain.services import Store
from gateway.config.schema import load
from gateway.domain.exchange import Outcome
from gateway.store.embedded import EmbeddedStore
from gateway.usage.database import UsageFiles, path_of
from gateway.usage.record import Record
from tests.bench.usage_log import tell
from tests.records import COSTED, arrival, end, id_at

ACCOUNTS: Final = 10_000
LARGE: Final = "large"
MODELS: Final = ("gpt-4o-mini", "llama-3", "words", "other")
CHANNELS: Final = ("openai", "azure", "own")
DAYS: Final = 30
DAY_MS: Final = 86_400_000
TIMES: Final = 40
BATCH: Final = 10_000
TROUBLE: Final = (
    (Outcome.REFUSED, "insufficient_balance", 402),
    (Outcome.REFUSED, "rate_limited", 429),
    (Outcome.UPSTREAM_FAILED, "upstream_overloaded", 503),
    (Outcome.CALLER_GONE, "caller_gone", 200),
)


def records(count: int, start_ms: int, step_ms: float) -> Iterator[Record]:
    """Yield requests in the order of their arrival."""
    for number in range(count):
        account = LARGE if number % 10 == 0 else f"account{number % ACCOUNTS}"
        turn = number // ACCOUNTS + number
        changes: dict[str, Any] = {
            "account": account,
            "token_id": f"{account}-k3f9x2ab",
            "model": MODELS[turn % 4],
            "channel": CHANNELS[turn // 4 % 3],
        }
        if number % 50 == 0:
            outcome, code, status = TROUBLE[number // 50 % 4]
            changes |= {"outcome": outcome, "error_code": code, "status": status}
        if number == count // 2:
            changes |= {"outcome": Outcome.INTERNAL_ERROR, "error_code": "internal_error", "status": 500}
        yield end(arrival(id_at(round(start_ms + number * step_ms))), **COSTED, **changes)


def fill(folder: Path, count: int) -> None:
    began = time.perf_counter()
    start_ms = round(time.time() * 1000) - DAYS * DAY_MS
    database, coming = UsageFiles(folder), records(count, start_ms, DAYS * DAY_MS / count)
    while batch := list(islice(coming, BATCH)):
        database.write(batch)
    database.close()
    tell("written: requests/s", count / (time.perf_counter() - began))


def forget(folder: Path) -> None:
    """Let the system have nothing of the log's files in memory, so that the next read is from the disk."""
    for file in folder.glob("*.sqlite"):
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


async def timed(name: str, work: Callable[[], Awaitable[object]], database: UsageFiles, folder: Path) -> None:
    """Print how long the first call takes, and how long the others do. Some records are written between."""
    times = []
    forget(folder)
    for number in range(TIMES + 1):
        if number:
            now_ms = round(time.time() * 1000)
            database.write(records(20, now_ms, 1))
        began = time.perf_counter()
        await work()
        times.append((time.perf_counter() - began) * 1000)
    first, *others = times
    middle, most = statistics.median(others), statistics.quantiles(others, n=20)[-1]
    print(f"| {name} | {first:.0f} | {middle:.0f} | {most:.0f} | {max(others):.0f} |", flush=True)


def heading(what: str) -> None:
    """Print the head of a table of `timed`."""
    print(f"| {what} | first, ms | median, ms | p95, ms | longest, ms |\n|---|---:|---:|---:|---:|", flush=True)


def day(ago: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(time.time() - ago * 86_400))


async def measure(local_client: LocalClient) -> None:
    database = UsageFiles(local_client.store.usage.folder)

    async def ask(title: str, work: Callable[[], Awaitable[object]]) -> None:
        await timed(title, work, database, local_client.store.usage.folder)

    heading("operation")
    newest = (await requests.list_(local_client, query=Requests(limit=1))).data[0]
    lists = {
        "requests, 50": Requests(limit=50),
        "requests, 1000": Requests(limit=1000),
        "requests of an account": Requests(limit=50, account="account7"),
        "requests of a large account, refused": Requests(limit=50, account=LARGE, outcome=Outcome.REFUSED),
        "requests of a model on a channel": Requests(limit=50, model="words", channel="own"),
        "requests of a model that is not there": Requests(limit=50, model="none"),
        "requests with an error that is rare": Requests(limit=50, error_code="internal_error"),
        "requests of one day, 20 days ago": Requests(limit=50, since=day(20), until=day(20)),
        "requests of a token": Requests(limit=50, token="account7-k3f9x2ab"),
        "requests by the begin of an id": Requests(limit=50, id=newest.id[:13]),
        "requests by a reference": Requests(limit=50, account=LARGE, reference="none"),
    }
    for title, query in lists.items():
        await ask(title, partial(requests.list_, local_client, query=query))
    await ask("one request", partial(requests.read, local_client, newest.id))
    await ask("the story of one request", partial(requests.trace, local_client, newest.id))
    month = day(DAYS - 1)
    sums = {
        "by day": SumsQuery(),
        "by day, 30 days": SumsQuery(since=month),
        "by account, the first 1000": SumsQuery(by="account", since=month),
        "by account, the 200 largest": SumsQuery(by="account", since=month, sort="charge_micros", limit=200),
        "by account, since 30d": SumsQuery(by="account", since="30d", sort="charge_micros", limit=200),
        "by model": SumsQuery(by="model", since=month),
        "by channel": SumsQuery(by="channel", since=month),
        "by outcome, error": SumsQuery(by="outcome,error", since=month),
        "by hour": SumsQuery(by="hour", since=day(7)),
        "by hour, error, 24h": SumsQuery(by="hour,error", since="24h"),
        "by group": SumsQuery(by="group", since=month),
        "by model, outcome of an account": SumsQuery(by="model,outcome", since=month, account="account7"),
        "by day of a large account": SumsQuery(by="day", since=month, account=LARGE),
        "by token of an account": SumsQuery(by="token", since=month, account=LARGE),
        "by account, model, channel": SumsQuery(
            by="account,model,channel", since=month, sort="charge_micros", limit=200
        ),
        "by day, account, model, channel, 200": SumsQuery(by="day,account,model,channel", since=month, limit=200),
        "... the 200 largest": SumsQuery(by="day,account,model,channel", since=month, sort="margin_micros", limit=200),
        "... 10,000": SumsQuery(by="day,account,model,channel", since=month, limit=10_000),
        "... of one day": SumsQuery(by="day,account,model,channel", since=day(3), until=day(3), limit=10_000),
    }
    for title, wanted in sums.items():
        await ask(f"sums {title}", partial(usage.summary, local_client, query=wanted))
    await ask("channels", partial(channels.list_, local_client))
    database.close()


async def first_lines(local_client: LocalClient) -> None:
    began = time.perf_counter()
    file, lines = await usage.export(local_client, query=Filters()), 0
    async for piece in file.pieces:
        lines += piece.count("\n")
    tell("export.csv: lines/s", lines / (time.perf_counter() - began))


async def run(folder: Path, store_folder: Path) -> None:
    store = EmbeddedStore.start(store_folder)
    file = folder / "gateway.yaml"
    file.write_text(
        f"redis: {store.url}\ndata: {folder}/data\nchannels: {{one: {{base_url: 'http://127.0.0.1:9/v1'}}}}\n"
    )
    loaded = load(file)
    try:
        async with Store.open(loaded.config, store.url) as opened:
            local_client = LocalClient(loaded, opened, Actor("bench"))
            await measure(local_client)
            await first_lines(local_client)
    finally:
        store.stop()


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as own:
        folder = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(own)
        log = folder / "data" / "usage"
        log.mkdir(parents=True, exist_ok=True)
        if not UsageFiles(log).months():
            fill(log, count)
        tell(
            "kept: bytes for each request",
            sum(path_of(log, name).stat().st_size for name in UsageFiles(log).months()) / count,
        )
        asyncio.run(run(folder, Path(own) / "store"))


if __name__ == "__main__":
    main()
