"""One load on a gateway while somebody looks at its pages, or nobody does: what `live_page` measures again and again."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from pathlib import Path
from typing import Final

import msgspec
from aiohttp import ClientSession
from playwright.async_api import BrowserContext, Page

from tests.bench.gateways import Ours
from tests.bench.process import PATIENCE_S, ROOT
from tests.cli.processes import free_port

PLAN: Final = "20 0 22"
WARM_S: Final = 1.5
CORES: Final = os.cpu_count() or 1

NOBODY, FEED, STILL, NOW = "nobody looks", "a client follows the feed", "a page that stands still", "the page Now"
BASES: Final = {FEED: NOBODY, STILL: NOBODY, NOW: STILL}
"""What the waits of each case are compared with."""

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
    """One load: the figures of `tests.bench.load`, how many cores were busy with anything, and what was seen in a page."""

    load: dict[str, float]
    busy_cores: float
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
    """The gateway and a browser whose person may look at its pages."""

    def __init__(self, gateway: Watched, pids: list[int], context: BrowserContext, page: Page, rate: float) -> None:
        self._gateway, self._pids, self._context, self._rate = gateway, pids, context, rate
        self._page = page
        self._base = f"http://127.0.0.1:{gateway.admin}"

    async def enter(self) -> None:
        """Let the browser in."""
        await self._page.goto(json.loads(self._gateway.run("admin", "link", "--json"))["url"])
        await self._page.locator("#state").wait_for()

    async def block(self, case: str, seconds: float) -> Block:
        """Run the load for so long in one of the cases."""
        settings = {"port": self._gateway.port, "token": self._gateway.token, "plan": PLAN, "rate": self._rate}
        settings |= {"seconds": seconds, "warm_s": WARM_S, "pids": self._pids}
        await self._page.goto({STILL: f"{self._base}/configuration", NOW: f"{self._base}/"}.get(case, "about:blank"))
        follower: AbstractAsyncContextManager[None] = self._follows() if case == FEED else nullcontext()
        async with follower:
            load = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.bench.load", json.dumps(settings)),
                stdout=asyncio.subprocess.PIPE,
                cwd=ROOT,
            )
            await asyncio.sleep(WARM_S)
            spent, total = cpu_ticks()
            if case in (STILL, NOW):
                await self._page.evaluate(RECORD)
            async with asyncio.timeout(seconds + PATIENCE_S):
                output, _ = await load.communicate()
        busy_ticks, all_ticks = (after - before for after, before in zip(cpu_ticks(), (spent, total), strict=True))
        seen = msgspec.convert(await self._page.evaluate(RESULT), Seen) if case in (STILL, NOW) else None
        found = Block(json.loads(output), CORES * busy_ticks / all_ticks, seen)
        told = {name: found.load[name] for name in ("requests_per_s", "first_ms_p99", "wrong")}
        print(f"  {case:26}", told, file=sys.stderr, flush=True)
        return found

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


def cpu_ticks() -> tuple[int, int]:
    """Return the ticks that the cores have worked since the start of the system, and all of them."""
    ticks = list(map(int, Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]))
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)
