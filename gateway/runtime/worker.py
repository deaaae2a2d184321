"""One worker process: the gateway on one event loop, from its listening socket to the drain."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from functools import partial
from typing import Final

from gateway.base.errors import GatewayError
from gateway.chain import loading
from gateway.chain.services import Store, services_of
from gateway.config.schema import Loaded
from gateway.metrics.registry import Metrics
from gateway.metrics.shared import SharedNumbers
from gateway.proxy.failover import Failover
from gateway.proxy.lifecycle import ExchangeRunner
from gateway.runtime.background import AlertWriter, Maintenance, Sampler
from gateway.runtime.handover import Handover
from gateway.runtime.process import CUT
from gateway.runtime.reload import Reloader
from gateway.runtime.revocation import RevocationWatch
from gateway.server.cors import gateway_of
from gateway.server.gateway import Gateway
from gateway.server.tls import Certificate, renewing
from gateway.store.channels import ChannelStatus

GC_THRESHOLDS: Final = (20_000, 20, 50)
"""The garbage collector runs this rarely: exchanges leave hardly any cycles, and a collection while thousands of streams
are open delays all of them."""


@asynccontextmanager
async def opened(
    loaded: Loaded, url: str, generation: int = 1, shared: SharedNumbers | None = None
) -> AsyncIterator[Gateway]:
    """Yield a gateway that is ready to listen; drain and stop it at the end.

    Raises `Misconfigured` when a plugin does not start.
    """
    async with Store.open(loaded.config, url) as store:
        chain = loading.build(loaded, generation=generation)
        metrics = Metrics(shared or SharedNumbers())
        services = services_of(loaded.config, store, metrics.own)
        await chain.start(services)
        failover = Failover(store.channels.credentials, store.kept_ids)
        metrics.use(services.catalogue)

        def on_refused(channel: str, number: int, of: int, spent: bool) -> None:
            metrics.channels.credential_refused(channel)
            store.alerts.credential_refused(channel, number, of, spent)

        def on_status(statuses: Mapping[str, ChannelStatus]) -> None:
            metrics.channels.states(statuses)
            store.alerts.channel_states(statuses)

        store.channels.credentials.on_refused, store.channels.on_status = on_refused, on_status
        store.alerts.dropped = partial(metrics.count, "alerts", "dropped")
        metrics.count_store_calls()
        gateway = gateway_of(loaded.config.port, chain, services, ExchangeRunner(failover, metrics))
        try:
            finishes = gateway.port.open_streams == "finish"  # also requests of revoked tokens and accounts
            async with (
                AlertWriter(store.alerts),
                nullcontext() if finishes else RevocationWatch(gateway.runner, store.client),
            ):
                try:
                    yield gateway
                finally:
                    await gateway.drain()
        finally:
            with suppress(GatewayError):  # what was acknowledged since the last maintenance may need to be repeated
                await store.replay_after_failover()
            await store.usage.write_down()
            await gateway.chain.stop()
            await failover.pool.close()


async def serve(
    loaded: Loaded,
    url: str,
    listener: socket.socket,
    listening: Callable[[], None],
    stop: asyncio.Event,
    handover: Handover,
    number: int = 0,
    generation: int = 1,
    shared: SharedNumbers | None = None,
    certificate: Certificate | None = None,
) -> None:
    """Serve on `listener` until `stop` is set, and call `listening` once requests are accepted.

    On SIGHUP it takes up what the parent offers to the worker of this `number`, counted from 0.
    `certificate`: the parent's, which has the last good pair.
    """
    async with (
        renewing(certificate) as tls,
        opened(loaded, url, generation, shared) as gateway,
        Maintenance(gateway.services.store),
        Sampler(gateway),
        Reloader(gateway, loaded.document.path, handover, number) as reloader,
    ):
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reloader.schedule)
        asyncio.get_running_loop().add_signal_handler(CUT, gateway.cut.set)
        reloader.schedule()  # an offer may have been made before
        await gateway.listen(listener, tls)
        listening()
        gc.freeze()  # what was made until here stays until the end: the collector need not look at it
        gc.set_threshold(*GC_THRESHOLDS)
        await stop.wait()


def new_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes the event loop of a worker: uvloop where it is installed, else None."""
    with suppress(ImportError):
        import uvloop

        return uvloop.new_event_loop
    return None
