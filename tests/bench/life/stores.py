"""The store of the gateway under test, to be killed and frozen: the embedded one, or one outside behind a proxy."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from tests.bench.life.site import Site
from tests.store_proxy import Fault, StoreProxy
from tests.whole.own_store import OwnStore, own_store

FAULT_SHARE = 0.1


class StoreControl(Protocol):
    """What disturbs a store."""

    async def kill(self, chance: random.Random) -> Callable[[], bool]:
        """Kill it, and return what says that it runs again."""

    def signal(self, number: int) -> None:
        """Send it a signal."""


class Embedded(StoreControl):
    """The embedded store, which the gateway starts again."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def kill(self, chance: random.Random) -> Callable[[], bool]:
        before = self._site.store_pid()
        self._site.kill(before)
        return lambda: self._site.store_pid() != before

    def signal(self, number: int) -> None:
        self._site.kill(self._site.store_pid(), number)


class External(StoreControl):
    """A server outside, which the gateway reaches through a proxy at `url`."""

    def __init__(self, server: OwnStore, proxy: StoreProxy) -> None:
        self._server = server
        self._proxy = proxy
        self.url = proxy.url

    async def kill(self, chance: random.Random) -> Callable[[], bool]:
        await self._server.end()
        await asyncio.sleep(chance.uniform(0.1, 2))
        await self._server.start()
        return lambda: True

    def signal(self, number: int) -> None:
        self._server.signal(number)

    async def cut(self, chance: random.Random) -> None:
        """Let the network to it fail for some seconds."""
        faults = random.Random(chance.random())
        self._proxy.fault = lambda: faults.choice(tuple(Fault)) if faults.random() < FAULT_SHARE else None
        await asyncio.sleep(chance.uniform(1, 4))
        self._proxy.fault = lambda: None


@asynccontextmanager
async def external_store(folder: Path) -> AsyncIterator[External]:
    """Run a server with its data in `folder`, behind a proxy."""
    async with own_store(folder) as server, StoreProxy(server.url) as proxy:
        yield External(server, proxy)
        server.signal(signal.SIGCONT)
