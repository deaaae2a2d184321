"""The speed of what callers and operators ask about accounts: `python -m tests.bench.own_lists [REQUESTS] [FOLDER]`, 1,000,000.

A tenth of the requests is of one account, the others are of 10,000, on 90 days; a fiftieth has a reference, and one in 10,000 was
refused. Each account has a ledger of 20 lines in the store, the large one a line for each request. A gateway answers over HTTP,
and the longest stall of its event loop is measured while 16 callers ask at once. With FOLDER, the files are kept there, and used
again. The figures depend on the machine; nothing here is a test.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

from redis.asyncio import Redis

from gateway import Outcome, hashed_reference
from gateway.store.embedded import EmbeddedStore
from gateway.testing import Running, running
from gateway.usage import queries
from gateway.usage.database import UsageFiles, path_of
from gateway.usage.record import Record
from gateway.usage.sums import Selected, grouped
from tests.bench.usage_log import tell
from tests.records import COSTED, arrival, end, id_at
from tests.whole.conftest import configuration
from tests.whole.raw import ask, get

ACCOUNTS: Final = 10_000
LARGE: Final = "large"
SMALL: Final = "account7"
MODELS: Final = ("gpt-4o-mini", "llama-3", "words", "other")
DAYS: Final = 90
LINES: Final = 20
TIMES: Final = 50
AT_ONCE: Final = 16
BATCH: Final = 10_000


def records(count: int) -> Iterator[Record]:
    """Yield requests in the order of their arrival."""
    start_ms, step_ms = round(time.time() * 1000) - DAYS * 86_400_000, DAYS * 86_400_000 / count
    for number in range(count):
        account = LARGE if number % 10 == 0 else f"account{number % ACCOUNTS}"
        changes: dict[str, Any] = {"account": account, "token_id": f"{account}-k3f9x2ab", "model": MODELS[number % 4]}
        if number % 10_000 == 0:
            changes |= {"outcome": Outcome.REFUSED, "error_code": "insufficient_balance", "status": 402}
        if number % 50 == 0:
            changes["reference"] = hashed_reference(account, f"reference {number}")
        yield end(arrival(id_at(round(start_ms + number * step_ms))), **COSTED, **changes)


def fill(folder: Path, count: int) -> None:
    began = time.perf_counter()
    database, coming = UsageFiles(folder), records(count)
    while batch := list(islice(coming, BATCH)):
        database.write(batch)
    database.close()
    tell("written: requests/s", count / (time.perf_counter() - began))


async def book(url: str, count: int) -> None:
    """Give every account a ledger."""
    async with Redis.from_url(url, socket_timeout=60) as redis:
        for name, lines in ((LARGE, count // 10), *((f"account{number}", LINES) for number in range(ACCOUNTS))):
            pipe = redis.pipeline(transaction=False)
            for number in range(lines):
                request = id_at(round(time.time() * 1000))
                pipe.xadd(f"gw:{{{name}}}:ledger", {"kind": "settle", "id": request, "amount": -number})
                if number % BATCH == BATCH - 1:
                    await pipe.execute()
            await pipe.execute()


async def timed(name: str, work: Callable[[], Awaitable[object]]) -> None:
    """Print the median and the longest of many calls."""
    times = []
    for _ in range(TIMES):
        began = time.perf_counter()
        await work()
        times.append((time.perf_counter() - began) * 1000)
    tell(f"{name}: ms, median of {TIMES}", statistics.median(times))
    tell(f"{name}: ms, longest of {TIMES}", max(times))


async def stall(gateway: Running, token: str, paths: list[str]) -> tuple[float, int]:
    """Return the longest stall of the event loop in milliseconds while callers ask, and how many answers were 200."""
    longest, over = 0.0, False

    async def watch() -> None:
        nonlocal longest
        while not over:
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            longest = max(longest, time.perf_counter() - before - 0.001)

    watching = asyncio.create_task(watch())
    answered = 0
    for _ in range(10):
        asked = (ask(gateway.port, get(paths[number % len(paths)], token)) for number in range(AT_ONCE))
        answered += sum(answer.status == 200 for answer in await asyncio.gather(*asked))
    over = True
    await watching
    return longest * 1000, answered


async def measure(folder: Path, store_folder: Path, count: int) -> None:
    store = EmbeddedStore.start(store_folder)
    chain = """
plugins:
  - use: usage-logger
  - use: auth
  - use: rate-limit
    with: {requests_per_minute: 1000000}
  - use: quota
  - use: model-routing
"""
    async with running(configuration("http://127.0.0.1:9/v1", chain=chain), folder, store.url) as gateway:
        tokens = {name: await gateway.token(name) for name in (LARGE, SMALL)}
        await book(store.url, count)
        log = gateway.store.usage.folder
        newest = {name: next(queries.select(UsageFiles(log), account=name, newest_first=True)).id for name in tokens}
        oldest = {name: next(queries.select(UsageFiles(log), account=name)).id for name in tokens}
        day = f"{time.strftime('%Y-%m-%d', time.gmtime(time.time() - (DAYS - 1) * 86_400))}"
        paths = {
            "GET /v1/requests": "/v1/requests",
            "GET /v1/requests?limit=100": "/v1/requests?limit=100",
            "GET /v1/requests?outcome= of few": "/v1/requests?outcome=refused&limit=100",
            "GET /v1/requests?model= of none": "/v1/requests?model=none",
            "GET /v1/requests?reference=": "/v1/requests?reference=reference+100",
            "GET /v1/usage": "/v1/usage",
            "GET /v1/usage?by=day,model,token, 90 days": f"/v1/usage?by=day,model,token&from={day}",
            "GET /v1/account/ledger?limit=100": "/v1/account/ledger?limit=100",
            "GET /v1/account": "/v1/account",
        }
        for name, token in tokens.items():
            for title, path in paths.items():
                await timed(f"{name}: {title}", partial(ask, gateway.port, get(path, token)))
            for title, after in (("newest", newest[name]), ("oldest", oldest[name])):
                path = f"/v1/requests?after={after}"
                await timed(f"{name}: after the {title}", partial(ask, gateway.port, get(path, token)))
        for name in tokens:
            wallet = gateway.store.wallet
            await timed(f"account ledger {name}, 50 lines, the store's part", partial(wallet.ledger, name, 50))
            await timed(f"account ledger {name}, 1000 lines", partial(wallet.ledger, name, 1000))
        longest, answered = await stall(gateway, tokens[LARGE], list(paths.values()))
        tell(f"{AT_ONCE} callers at once, one account: longest stall of the loop, ms", longest)
        tell("... of 160 requests, answered 200 (the others 429)", answered)
    store.stop()


def commands(folder: Path) -> None:
    """Time what the commands of operators read."""
    for title, by, wanted in (
        ("summary --by day", ["day"], Selected()),
        ("summary --by account --from 7d", ["account"], Selected(since_ms=round((time.time() - 7 * 86_400) * 1000))),
        ("summary --by hour --account large", ["hour"], Selected(account=LARGE)),
        ("summary --by group,error", ["group", "error_code"], Selected()),
    ):
        began = time.perf_counter()
        grouped(UsageFiles(folder), by, wanted, [])
        tell(f"{title}: ms", (time.perf_counter() - began) * 1000)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as own:
        folder = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(own)
        (folder / "data" / "usage").mkdir(parents=True, exist_ok=True)
        log = folder / "data" / "usage"
        if not UsageFiles(log).months():
            fill(log, count)
        tell(
            "kept: bytes for each request",
            sum(path_of(log, name).stat().st_size for name in UsageFiles(log).months()) / count,
        )
        asyncio.run(measure(folder, Path(own) / "store", count))
        commands(log)


if __name__ == "__main__":
    main()
