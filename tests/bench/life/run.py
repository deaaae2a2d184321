"""One run: start everything, follow the plan, stop, and judge."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from tests.bench.life.busy import note_busy_times
from tests.bench.life.disk import SmallDisk
from tests.bench.life.disturbances import OPERATIONS, Disturber
from tests.bench.life.leftovers import Resources, check_books, check_holds, check_logs, errors_logged, read_log
from tests.bench.life.network import Network
from tests.bench.life.oracle import Oracle
from tests.bench.life.plan import Deed, Plan, Visit
from tests.bench.life.report import Violation, table
from tests.bench.life.seen import Timeline
from tests.bench.life.settings import LEASE_S, Settings
from tests.bench.life.site import Site
from tests.bench.life.stores import Embedded, external_store
from tests.bench.life.upstreams import Upstreams
from tests.bench.life.world import World
from tests.cli.processes import free_port

QUIET_S = 6.0
"""Without requests, until idle connections are closed and a measurement is made."""
LAST_CALLERS_S = 60.0
PROGRESS_S = 10.0
Say = Callable[[str], None]


class Result(msgspec.Struct):
    """The result of a run, for its report."""

    summary: dict[str, object]
    table: list[str]
    violations: list[Violation]


class Run:
    """One run in `folder`; `disk` is its data folder, if that can be made full."""

    def __init__(self, plan: Plan, folder: Path, disk: SmallDisk | None, say: Say, *, external: bool = False) -> None:
        self._external = external
        self._plan = plan
        self._folder = folder
        self._disk = disk
        self._say = say
        self._quiet = asyncio.Event()
        self._paused_s = 0.0
        """How long the plan has stood still."""
        self._open: set[asyncio.Task[None]] = set()
        self._resources: list[Resources] = []

    async def run(self) -> Result:
        """Follow the plan to its end, and judge."""
        async with AsyncExitStack() as stack:
            upstreams = await stack.enter_async_context(Upstreams())
            network = await stack.enter_async_context(Network(upstreams.port))
            external = (
                await stack.enter_async_context(external_store(self._folder / "store")) if self._external else None
            )
            ports = {"upstream": upstreams.port, "network": network.port, "closed": free_port()}
            port, admin = free_port(), free_port()
            text: dict[str, object] = {
                "port": port,
                "admin": f"127.0.0.1:{admin}",
                "redis": external.url if external else "embedded",
            }
            text |= {"data": self._folder / "data", "folder": self._folder}
            site = Site(self._folder, Settings(text, ports))
            world = World(self._folder, port, upstreams, Timeline())
            self._disturber = Disturber(world, site, external or Embedded(site), network, self._disk, admin)
            await site.populate(world)
            if any(deed.name == "step_clock" for deed in self._plan.deeds):
                await site.own_clock()
            await site.start()
            try:
                self._disturber.spare()
                world.timeline.start = time.monotonic()
                await self._live(world)
                await self._settle(world, site)
            finally:
                if site.running and await site.stop() != 0:
                    world.wrong("the gateway did not exit with 0 after SIGTERM at the end")
            return await self._judge(world, site)

    async def _live(self, world: World) -> None:
        """Let the callers come and the disturbances happen, each at its time."""
        telling = asyncio.create_task(self._tell(world))
        watching = asyncio.create_task(note_busy_times(world.timeline, self._disturber.site))
        deeds = self._plan.deeds
        operating = asyncio.create_task(self._disturb(world, [deed for deed in deeds if deed.name in OPERATIONS]))
        disturbing = asyncio.create_task(self._disturb(world, [deed for deed in deeds if deed.name not in OPERATIONS]))
        for visit in self._plan.visits:
            await self._wait_until(world, visit.at)
            task = asyncio.create_task(self._visit(world, visit))
            self._open.add(task)
            task.add_done_callback(self._open.discard)
        await asyncio.gather(disturbing, operating)
        if self._open:
            await asyncio.wait(self._open, timeout=LAST_CALLERS_S)
        for task in self._open:
            world.wrong(f"a caller did not end: {task}")
        for task in (telling, watching):
            task.cancel()
        await asyncio.gather(telling, watching, return_exceptions=True)

    async def _visit(self, world: World, visit: Visit) -> None:
        try:
            await visit.caller(world, random.Random(visit.seed))
        except Exception as error:
            world.wrong(f"the caller {visit.caller.__name__} failed: {error!r}")

    async def _disturb(self, world: World, deeds: list[Deed]) -> None:
        for deed in deeds:
            if not self._resources and deed.at > self._plan.measured_at and deed.name not in OPERATIONS:
                await self._wait_until(world, self._plan.measured_at)
                await self._measure()
            await self._wait_until(world, deed.at)
            if world.timeline.now - self._paused_s > self._plan.calm_at:
                return
            try:
                await self._disturber.do(deed.name, deed.seed)
            except Exception as error:
                world.wrong(f"the disturbance {deed.name} failed: {error!r}")

    async def _wait_until(self, world: World, at: float) -> None:
        while self._quiet.is_set() or (wait_s := at + self._paused_s - world.timeline.now) > 0:
            await asyncio.sleep(0.05 if self._quiet.is_set() else wait_s)

    async def _measure(self) -> None:
        """Hold the callers back until the gateway is idle, and measure its resources."""
        began = time.monotonic()
        self._quiet.set()
        if self._open:
            await asyncio.wait(self._open, timeout=LAST_CALLERS_S)
        await asyncio.sleep(QUIET_S)
        self._resources.append(Resources.measure(self._disturber.site, self._disturber.spared))
        self._paused_s += time.monotonic() - began
        self._quiet.clear()

    async def _settle(self, world: World, site: Site) -> None:
        """Wait until the leases of killed workers are over, measure, and check the books while the gateway runs."""
        kills = [each.ended for each in world.timeline.injections if each.kind == "worker killed"]
        await self._measure()
        await asyncio.sleep(max(0.0, max(kills, default=0.0) + LEASE_S - world.timeline.now))
        await check_books(site, world, "while the gateway runs")

    async def _tell(self, world: World) -> None:
        while True:
            await asyncio.sleep(PROGRESS_S)
            last = str(world.timeline.injections[-1]) if world.timeline.injections else "nothing yet"
            self._say(
                f"{world.timeline.now:6.0f} s: {len(world.seen)} requests, {len(self._open)} callers, "
                f"{self._disturber.count} disturbances, the last: {last}"
            )

    async def _judge(self, world: World, site: Site) -> Result:
        """Compare what was seen with the usage log, the books and the logs."""
        books = await check_books(site, world, "after the stop")
        await check_holds(site, world)
        records = await read_log(site)
        oracle = Oracle(world, records, site.settings.prices)
        found = [Violation.of(world, what, seen) for what, seen in world.violations]
        found += [Violation.of(world, what, seen) for seen in world.seen for what in oracle.problems(seen)]
        served = sum(each.model == "exact" and each.saw == "whole" for each in world.seen)
        if served > world.credited:
            found.append(Violation.of(world, f"exact: {served} requests served, {world.credited} paid", None))
        world.violations.clear()
        check_logs(site, world)
        if len(self._resources) > 1:
            for grown in self._resources[-1].growth(self._resources[0]):
                world.wrong(f"growth: {grown}")
        found += [Violation.of(world, what, seen) for what, seen in world.violations]
        outcomes = Counter(str(rows[0].outcome) for rows in records.values())
        summary: dict[str, object] = {
            "requests": len(world.seen),
            "records": len(records),
            "outcomes": dict(outcomes),
            "disturbances": dict(Counter(each.kind for each in world.timeline.injections)),
            "exact": f"{served} served, {world.credited} paid",
            "books": {name: books.get(name) for name in ("accounts", "lines", "agreed", "unknown")},
            "log": dict(errors_logged(site.log)),
            "resources": [msgspec.to_builtins(each) for each in self._resources],
        }
        return Result(summary, table(world), found)
