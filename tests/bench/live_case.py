"""One load on a gateway while somebody looks at its pages, or nobody does: what `live_page` measures again and again."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from pathlib import Path
from typing import Final

import msgspec
from aiohttp import ClientSession
from playwright.async_api import BrowserContext, Page

from tests.bench.gateways import Ours
from tests.bench.live_load import Slice
from tests.bench.process import PATIENCE_S, ROOT, family
from tests.cli.processes import children, free_port

PLAN: Final = "20 0 22"
SETTLE_S: Final = 0.4
CORES: Final = os.cpu_count() or 1

NOBODY, AGAIN, FEED = "nobody looks", "nobody looks, again", "a client follows the feed"
STILL, NOW = "a page that stands still", "the page Now"
ELSEWHERE: Final = "the page Now, as if elsewhere"
"""The browser has only the time that nothing else on this machine wants, since an operator's is usually on another one."""
CASES: Final = (NOBODY, FEED, AGAIN, STILL, NOW, ELSEWHERE)
ADDRESSES: Final = {STILL: "/configuration", NOW: "/", ELSEWHERE: "/"}
"""Pages that are looked at. Otherwise the browser is there and shows none."""

RECORD: Final = """() => {
  const body = document.querySelector('#live tbody');
  const seen = window.seen = {frames: [], ages: [], long: []};
  let [last, id] = [0, ''];
  new PerformanceObserver((list) => seen.long.push(...list.getEntries().map((each) => each.duration)))
    .observe({type: 'longtask'});
  const frame = (now) => {
    if (last) seen.frames.push(now - last);
    last = now;
    const newest = body?.rows[0]?.cells[0].firstChild.title ?? '';
    if (id && newest !== id) seen.ages.push(Date.now() - parseInt(newest.replace('-', '').slice(0, 12), 16));
    id = newest;
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
}"""
"""Keeps the intervals of frames, the lengths of long tasks, and, when there are new rows, how long ago the newest arrived."""
RESULT: Final = """() => ({
  ...window.seen,
  rows: document.querySelectorAll('#live tbody tr').length,
  rate: document.getElementById('rate')?.textContent ?? '',
})"""


class Seen(msgspec.Struct):
    """What was measured in a page, in milliseconds. `rate`: the requests per second that it showed."""

    frames: list[float]
    ages: list[float]
    long: list[float]
    rows: int
    rate: str


class Block(msgspec.Struct):
    """A slice of the load, how many cores were busy with the measurement and with anything else, and what was seen in a page."""

    slice: Slice
    own_cores: float
    other_cores: float
    seen: Seen | None


class Watched(Ours):
    """This gateway, with its operator's port."""

    def __init__(self, folder: Path, upstream: int) -> None:
        super().__init__(folder, upstream, workers=CORES)
        self.admin = free_port()

    def _prepare(self, redis: str) -> None:
        super()._prepare(redis)
        text = self.configuration.read_text()
        self.configuration.write_text(text.replace("admin: null", f"admin: 127.0.0.1:{self.admin}"))


class Watching:
    """A gateway under load, and a browser whose person may look at its pages."""

    def __init__(self, gateway: Watched, load: asyncio.subprocess.Process, context: BrowserContext, page: Page) -> None:
        self._gateway, self._load, self._context, self._page = gateway, load, context, page
        self._base = f"http://127.0.0.1:{gateway.admin}"

    async def enter(self) -> None:
        """Let the browser in."""
        await self._page.goto(json.loads(self._gateway.run("admin", "link", "--json"))["url"])
        await self._page.locator("#state").wait_for()

    async def block(self, case: str, seconds: float) -> Block:
        """Look for so long, as in one of the cases. What is while the case begins is not in the figures."""
        looks = case in ADDRESSES
        await self._page.goto(self._base + ADDRESSES[case] if looks else "about:blank")
        yields(case == ELSEWHERE)
        async with self._follows() if case == FEED else nullcontext():
            await asyncio.sleep(SETTLE_S)
            if looks:
                await self._page.evaluate(RECORD)
            await self._cut()
            busy, own = busy_s(), own_s()
            await asyncio.sleep(seconds)
            found = await self._cut()
            busy, own = busy_s() - busy, own_s() - own
        yields(False)
        seen = msgspec.convert(await self._page.evaluate(RESULT), Seen) if looks else None
        return Block(found, own / found.seconds, (busy - own) / found.seconds, seen)

    async def _cut(self) -> Slice:
        """Return the slice of the load that ends now."""
        assert self._load.stdin and self._load.stdout
        self._load.stdin.write(b"\n")
        async with asyncio.timeout(PATIENCE_S):
            return msgspec.json.decode(await self._load.stdout.readline(), type=Slice)

    async def memory(self) -> tuple[float, int]:
        """Return the KiB of the page's JavaScript objects that are in use, and the number of its nodes."""
        session = await self._context.new_cdp_session(self._page)
        await session.send("HeapProfiler.collectGarbage")
        await session.send("Performance.enable")
        found = {each["name"]: each["value"] for each in (await session.send("Performance.getMetrics"))["metrics"]}
        await session.detach()
        return found["JSHeapUsedSize"] / 1024, int(found["Nodes"])

    @asynccontextmanager
    async def _follows(self) -> AsyncIterator[None]:
        """Read the feed, and do nothing with it."""
        cookies = "; ".join(f"{each['name']}={each['value']}" for each in await self._context.cookies())
        async with ClientSession(headers={"Cookie": cookies}) as client, client.get(f"{self._base}/now/feed") as feed:
            assert feed.status == 200

            async def read() -> None:
                async for _ in feed.content.iter_any():
                    pass

            reading = asyncio.create_task(read())
            try:
                yield
            finally:
                assert not reading.done(), "the feed has ended"
                reading.cancel()
                with suppress(asyncio.CancelledError):
                    await reading


def yields(whether: bool) -> None:
    """Let the browser have only the time that nothing else wants, or as much as everybody."""
    policy = os.SCHED_IDLE if whether else os.SCHED_OTHER
    for folder in (Path(f"/proc/{pid}") for pid in family(os.getpid())):
        with suppress(FileNotFoundError, ProcessLookupError):
            if (folder / "comm").read_text().startswith("chrom"):
                for thread in (folder / "task").iterdir():
                    os.sched_setscheduler(int(thread.name), policy, os.sched_param(0))


@asynccontextmanager
async def loaded(gateway: Watched, pids: list[int], rate: float) -> AsyncIterator[asyncio.subprocess.Process]:
    """Send so many requests a second at random moments, from a process of its own."""
    settings = {"port": gateway.port, "token": gateway.token, "plan": PLAN, "rate": rate, "pids": pids}
    load = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.bench.live_load", json.dumps(settings)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=2**24,
        cwd=ROOT,
    )
    try:
        yield load
    finally:
        await load.communicate(b"")  # it ends with its standard input


def busy_s() -> float:
    """Return the CPU time of everything since the start of the system, in seconds."""
    ticks = list(map(int, Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]))
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def own_s() -> float:
    """Return the CPU time of this process and all that it started and that still run, in seconds."""
    found = 0
    for pid in (os.getpid(), *children(os.getpid())):
        for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with suppress(FileNotFoundError, ProcessLookupError):
                found += int(file.read_text().split()[0])
    return found / 1e9
