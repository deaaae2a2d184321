"""One worker process: the chain on one event loop, from the bound socket to the drain."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

from gateway import loading
from gateway.config.schema import Loaded
from gateway.errors import GatewayError
from gateway.metrics.registry import Metrics
from gateway.metrics.shared import SharedNumbers
from gateway.proxy.failover import Failover
from gateway.proxy.lifecycle import ExchangeRunner
from gateway.runtime.maintenance import Maintenance
from gateway.runtime.reload import Reloader
from gateway.runtime.sampler import Sampler
from gateway.server.gateway import Gateway
from gateway.server.tls import renewing
from gateway.services import Store, services_of

COLLECT_AFTER: Final = (20_000, 20, 50)
"""Objects made before the collector looks: an exchange leaves hardly a cycle behind, and a look at thousands of open
streams holds up all of them."""


@asynccontextmanager
async def opened(
    loaded: Loaded, url: str, generation: int = 1, shared: SharedNumbers | None = None
) -> AsyncIterator[Gateway]:
    """A gateway that is ready to listen; drained and stopped at the end. Raises `Misconfigured` when a plugin refuses to start."""
    async with Store.open(loaded.config, url) as store:
        chain = loading.build(loaded, generation=generation)
        services = services_of(loaded.config, store)
        await chain.start(services)
        failover = Failover()
        metrics = Metrics(shared or SharedNumbers(), services.catalogue)
        metrics.count_store_calls()
        gateway = Gateway(loaded.config.port, chain, services, ExchangeRunner(failover, metrics))
        try:
            yield gateway
        finally:
            await gateway.drain()
            with suppress(GatewayError):  # what one that is replaced has acknowledged since the last look
                await store.replay_after_failover()
            await gateway.chain.stop()
            await failover.close()


async def serve(
    loaded: Loaded,
    url: str,
    listener: socket.socket,
    listening: Callable[[], None],
    generation: int = 1,
    shared: SharedNumbers | None = None,
) -> None:
    """Serve on `listener` until SIGTERM, and take up the file anew on SIGHUP. `listening` is called once requests are accepted."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    async with (
        renewing(loaded.config.tls) as tls,
        opened(loaded, url, generation, shared) as gateway,
        Maintenance(gateway.services.store),
        Sampler(gateway),
        Reloader(gateway, loaded.document.path) as reloads,
    ):
        loop.add_signal_handler(signal.SIGHUP, reloads.ask)
        await gateway.listen(listener, tls)
        listening()
        gc.freeze()  # what lives as long as the process is never looked at again
        gc.set_threshold(*COLLECT_AFTER)
        await stop.wait()


def run(
    loaded: Loaded,
    url: str,
    listener: socket.socket,
    listening: Callable[[], None],
    generation: int = 1,
    shared: SharedNumbers | None = None,
) -> None:
    """`serve` on the fastest event loop there is."""
    serving = serve(loaded, url, listener, listening, generation, shared)
    try:
        import uvloop
    except ImportError:
        asyncio.run(serving)
    else:
        uvloop.run(serving)
