"""One worker process: the chain on one event loop, from the bound socket to the drain."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from gateway import loading
from gateway.care import Care
from gateway.config import Loaded
from gateway.life import Life
from gateway.pipe import Pipe
from gateway.reload import Reloads
from gateway.server import Gateway
from gateway.services import services_of
from gateway.store.store import Store


@asynccontextmanager
async def opened(loaded: Loaded, url: str, generation: int = 1) -> AsyncIterator[Gateway]:
    """A gateway that is ready to listen; drained and stopped at the end. Raises `Misconfigured` when a plugin refuses to start."""
    async with Store.open(loaded.config, url) as store:
        chain = loading.build(loaded, generation=generation)
        services = services_of(loaded.config, store)
        await chain.start(services)
        pipe = Pipe()
        gateway = Gateway(loaded.config.port, chain, services, Life(pipe))
        try:
            yield gateway
            await gateway.drain()
        finally:
            await gateway.chain.stop()
            await pipe.close()


async def serve(
    loaded: Loaded, url: str, listener: socket.socket, listening: Callable[[], None], generation: int
) -> None:
    """Serve on `listener` until SIGTERM, and take up the file anew on SIGHUP. `listening` is called once requests are accepted."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    async with (
        opened(loaded, url, generation) as gateway,
        Care(gateway.services.store),
        Reloads(gateway, loaded.document.path) as reloads,
    ):
        loop.add_signal_handler(signal.SIGHUP, reloads.ask)
        await gateway.listen(listener)
        listening()
        await stop.wait()


def run(loaded: Loaded, url: str, listener: socket.socket, listening: Callable[[], None], generation: int = 1) -> None:
    """`serve` on the fastest event loop there is."""
    serving = serve(loaded, url, listener, listening, generation)
    try:
        import uvloop
    except ImportError:
        asyncio.run(serving)
    else:
        uvloop.run(serving)
