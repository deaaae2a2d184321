"""What is done to a running gateway: edits, operations on accounts, kills, network faults, a full disk."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import aiohttp

from tests.bench.life.disk import SmallDisk
from tests.bench.life.hostile import EXACT_PRICE, EXACT_WORDS
from tests.bench.life.known import AVOIDED_MISTAKES
from tests.bench.life.network import Network, Weather
from tests.bench.life.settings import MISTAKES
from tests.bench.life.site import Site
from tests.bench.life.stores import External, StoreControl
from tests.bench.life.world import World
from tests.patience import PATIENCE_S

COMMANDS: Final = 8
"""How often a command is run whose store was away or too slow."""
AFTER_FULL_S: Final = 3.0
"""Time for the store to write what it has in memory only; a kill before that is a second fault at the same time."""
DAY_S: Final = 86_400
CLOCK_STEPS_S: Final = (-30 * DAY_S, -7200, -360, 360, 40 * DAY_S)
TAKEN_UP_S: Final = 1.5
"""Time for the parent to notice a new file and for the workers to take it up."""


class Disturber:
    """Does one disturbance at a time. `spared`: the worker that is never killed, so that what leaks adds up in it."""

    def __init__(
        self, world: World, site: Site, store: StoreControl, network: Network, disk: SmallDisk | None, admin: int
    ) -> None:
        self.world = world
        self.site = site
        self.store = store
        self.network = network
        self.disk = disk
        self.admin = admin
        self.spared = 0
        self.count = 0

    async def do(self, name: str, seed: str) -> None:
        """Do the disturbance of this name, with decisions of its own from `seed`."""
        self.count += 1
        await getattr(self, name)(random.Random(seed))

    async def edit(self, chance: random.Random) -> None:
        """Change something harmless in the file, perhaps by SIGHUP."""
        what = self.site.settings.change(chance)
        with self.world.timeline.during("edit", what):
            self.site.write(self.site.settings.render())
            if chance.random() < 0.3:
                self.site.kill(self.site.pid, signal.SIGHUP)
            await asyncio.sleep(TAKEN_UP_S)

    async def mistake(self, chance: random.Random) -> None:
        """Save a file with a mistake, then the good one again."""
        what = chance.choice(sorted(set(MISTAKES) - AVOIDED_MISTAKES))
        good = self.site.settings.render()
        with self.world.timeline.during("mistake", what):
            self.site.write(MISTAKES[what](good))
            await asyncio.sleep(TAKEN_UP_S)
            if chance.random() < 0.3:
                self.site.kill(self.site.pid, signal.SIGHUP)
                await asyncio.sleep(0.5)
            self.site.write(good)
            await asyncio.sleep(TAKEN_UP_S)
        if not self.site.running:
            self.world.wrong(f"the gateway ended after a mistake in its file: {what}")

    async def mistake_and_kill(self, chance: random.Random) -> None:
        """Kill a worker while the file has a mistake that only shows at a start: its successor starts all the same."""
        what = "a plugin that raises in start"
        good = self.site.settings.render()
        with self.world.timeline.during("mistake", what):
            self.site.write(MISTAKES[what](good))
            await asyncio.sleep(TAKEN_UP_S)
            await self.kill_worker(chance)
            self.site.write(good)
            await asyncio.sleep(TAKEN_UP_S)

    async def refill(self, chance: random.Random) -> None:
        """Credit and adjust an account; an amount is booked once however often the command runs."""
        with self.world.timeline.during("refill"):
            book = ("--transaction", f"refill-{self.count}")
            words = (
                ("adjust", "managed", "-0.01", "--reason", "life")
                if chance.random() < 0.3
                else ("credit", "managed", "1.00")
            )
            for _ in range(chance.randint(1, 2)):
                await self._command("account", *words, *book)

    async def pay_exactly(self, chance: random.Random) -> None:
        """Pay for exactly some requests of the account `exact`."""
        count = chance.randint(1, 4)
        amount = count * EXACT_WORDS * EXACT_PRICE
        with self.world.timeline.during("pay exactly", str(count)):
            self.world.credited += count
            await self._command(
                *("account", "credit", "exact", f"0.{amount:06}", "--transaction", f"exact-{self.count}")
            )

    async def manage_token(self, chance: random.Random) -> None:
        """Disable a token for a while, or create one, use it, delete it."""
        with self.world.timeline.during("manage token"):
            if chance.random() < 0.5:
                token = self.world.tokens["managed"].split("-")
                name = "-".join(token[1:3])
                await self._command("token", "disable", name)
                await asyncio.sleep(1)
                await self._command("token", "enable", name)
                return
            made = json.loads(await self._command("token", "create", "managed", "--json") or "{}")
            if made:
                self.world.tokens[f"made {self.count}"] = made["token"]
                await self._command("token", "delete", made["id"], "--yes")

    async def suspend(self, _: random.Random) -> None:
        """Suspend an account for a while."""
        with self.world.timeline.during("suspend"):
            await self._command("account", "suspend", "managed")
            await asyncio.sleep(1)
            await self._command("account", "resume", "managed")

    async def disable_channel(self, _: random.Random) -> None:
        """Disable a channel for a while."""
        with self.world.timeline.during("disable channel"):
            await self._command("channels", "disable", "c-managed")
            await asyncio.sleep(1)
            await self._command("channels", "enable", "c-managed")

    async def look(self, chance: random.Random) -> None:
        """Read the operator's port, or check the books while the gateway runs."""
        if chance.random() < 0.5:
            await self._command("verify", "--json")
            return
        token = (self.site.data / "admin.token").read_text().strip()
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as client:
            for path in ("/metrics", "/api/v1/usage/summary?by=model"):
                async with client.get(f"http://127.0.0.1:{self.admin}{path}") as answer:
                    if answer.status != 200:
                        self.world.wrong(f"the admin port answered {answer.status} to {path}")

    async def kill_worker(self, chance: random.Random) -> None:
        """Kill a worker other than the spared one, and wait for its successor."""
        workers = self.site.workers()
        victims = [pid for pid in workers if pid != self.spared]
        if not victims:
            self.world.wrong(f"no worker but the spared one runs: {workers}")
            return
        with self.world.timeline.during("worker killed"):
            self.site.kill(chance.choice(victims))
        await self._until("a worker", lambda: _replaced(self.site.workers(), workers))

    async def kill_sink(self, _: random.Random) -> None:
        """Kill the sink, and wait for its successor."""
        before = self.site.sinks()
        with self.world.timeline.during("sink killed"):
            for pid in before:
                self.site.kill(pid)
            await self._until("the sink", lambda: _replaced(self.site.sinks(), before))

    async def kill_store(self, chance: random.Random) -> None:
        """Kill the store, and wait for its successor."""
        with self.world.timeline.during("store away", "killed"):
            await self._until("the store", await self.store.kill(chance))

    async def freeze_store(self, chance: random.Random) -> None:
        """Stop the store for one to three seconds."""
        with self.world.timeline.during("store away", "frozen"):
            self.store.signal(signal.SIGSTOP)
            await asyncio.sleep(chance.uniform(1, 3))
            self.store.signal(signal.SIGCONT)

    async def cut_store(self, chance: random.Random) -> None:
        """Let the network to the store fail for a while, where there is one."""
        if not isinstance(self.store, External):
            return
        with self.world.timeline.during("store away", "its network"):
            await self.store.cut(chance)

    async def restart(self, _: random.Random) -> None:
        """Stop the whole gateway by SIGTERM and start it again with its data."""
        with self.world.timeline.during("restart"):
            if (code := await self.site.stop()) != 0:
                self.world.wrong(f"the gateway exited with {code} after SIGTERM")
            await self.site.start()
        self.spare()

    async def bad_network(self, chance: random.Random) -> None:
        """Delay, drop or reset what passes between the gateway and some upstreams."""
        weather = chance.choice((Weather.DELAY, Weather.DROP, Weather.RESET))
        with self.world.timeline.during("network", weather.value):
            self.network.weather = weather
            await asyncio.sleep(chance.uniform(0.5, 3))
            self.network.weather = Weather.FAIR
            for writer in self.network.open if weather is Weather.DROP else ():
                writer.transport.abort()  # bytes are missing: a TCP stream cannot go on

    async def full_disk(self, chance: random.Random) -> None:
        """Fill the disk for a while."""
        if self.disk is None:
            return
        with self.world.timeline.during("disk full"):
            self.disk.full()
            await asyncio.sleep(chance.uniform(1, 3))
            self.disk.roomy()
            await asyncio.sleep(AFTER_FULL_S)

    async def step_clock(self, chance: random.Random) -> None:
        """Let the clock of the gateway's machine be wrong for some seconds."""
        seconds = chance.choice(CLOCK_STEPS_S)
        with self.world.timeline.during("clock", f"{seconds} s"):
            self.site.step_clock(seconds)
            await asyncio.sleep(chance.uniform(1, 5))
            self.site.step_clock(0)

    def spare(self) -> None:
        """Choose the worker that is never killed from now on."""
        self.spared = self.site.workers()[0]

    async def _command(self, *words: str) -> str:
        for _ in range(COMMANDS):
            code, output = await self.site.run(*words)
            if code == 0 or "store" not in output:
                break
            await asyncio.sleep(0.5)
        if code != 0:
            self.world.wrong(f"gateway {' '.join(words)} exited with {code}: {output[-300:]}")
            return ""
        return output

    async def _until(self, what: str, condition: Callable[[], bool]) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    with suppress(OSError, ValueError):
                        if condition():
                            return
                    await asyncio.sleep(0.05)
        self.world.wrong(f"{what} was not started again within {PATIENCE_S} s")


def _replaced(now: list[int], before: list[int]) -> bool:
    """Return whether as many processes run as before, and not the same."""
    return len(now) == len(before) and now != before


Disturbance = Callable[[Disturber, random.Random], Awaitable[None]]

OPERATIONS: Final = frozenset({"refill", "pay_exactly", "manage_token", "suspend", "disable_channel", "look"})
"""Disturbances by commands, which an operator runs while other disturbances happen."""
DECK: Final = (
    *("edit", "edit", "edit", "mistake", "mistake", "refill", "pay_exactly", "pay_exactly", "manage_token", "suspend"),
    *(
        "disable_channel",
        "look",
        "kill_worker",
        "kill_worker",
        "kill_sink",
        "kill_store",
        "freeze_store",
        "bad_network",
    ),
    *("bad_network", "full_disk", "mistake_and_kill", "cut_store"),
)
"""The disturbances of one round. Each round has another order."""
LONG_DECK: Final = (*DECK, "step_clock", "step_clock")
"""The same for a run of more than ten minutes, whose gateway and store have a clock that can be set."""
