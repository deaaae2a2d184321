"""One worker process: the chain on one event loop, from the bound socket to the drain."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import structlog

from gateway import loading
from gateway.care import Care
from gateway.catalogue import Catalogue
from gateway.config import Loaded
from gateway.life import Life
from gateway.pipe import Pipe
from gateway.plugin import Services
from gateway.server import Gateway
from gateway.store.store import Store


class SystemClock:
    """The machine's clock."""

    def time(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


def services_of(loaded: Loaded, store: Store) -> Services:
    """What the plugins of one configuration are started with."""
    return Services(
        name="gateway",
        store=store,
        redis=store.client,
        clock=SystemClock(),
        log=structlog.get_logger("gateway.plugin"),
        catalogue=Catalogue(loaded.config),
    )


@asynccontextmanager
async def opened(loaded: Loaded, url: str) -> AsyncIterator[Gateway]:
    """A gateway that is ready to listen; drained and stopped at the end. Raises `Misconfigured` when a plugin refuses to start."""
    async with Store.open(loaded.config, url) as store:
        chain = loading.build(loaded)
        services = services_of(loaded, store)
        await chain.start(services)
        pipe = Pipe()
        gateway = Gateway(loaded.config.port, chain, services, Life(pipe))
        try:
            yield gateway
            await gateway.drain()
        finally:
            await chain.stop()
            await pipe.close()


async def serve(loaded: Loaded, url: str, listener: socket.socket, listening: Callable[[], None]) -> None:
    """Serve on `listener` until SIGTERM. `listening` is called once requests are accepted."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with opened(loaded, url) as gateway, Care(gateway.services.store):
        await gateway.listen(listener)
        listening()
        await stop.wait()


def run(loaded: Loaded, url: str, listener: socket.socket, listening: Callable[[], None]) -> None:
    """`serve` on the fastest event loop there is."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(serve(loaded, url, listener, listening))
    else:
        uvloop.run(serve(loaded, url, listener, listening))
