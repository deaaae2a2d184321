"""Reloads of the configuration while requests run: a whole new chain or none, and open streams are not touched.

The file is read and checked, and the new chain is built and started beside the running one; then one reference is swapped.
Any failure leaves everything as it was. An exchange keeps the chain that it began with; an old chain stops when its last
exchange has ended.

Channels, models, groups, plugins, alerts, the time zone, the trusted proxies and who signs on at the operator's port are
reloaded. All else (ports, the store, folders, processes) needs a restart, and so does new code in a plugin's module.

A child that is no worker follows reloads (`Following`): on SIGHUP it reads which configuration the parent has adopted.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec

from gateway.base.errors import GatewayError
from gateway.base.log import log
from gateway.chain import loading
from gateway.chain.chain import STOP_LIMIT_S, Chain
from gateway.chain.entry import error_text
from gateway.chain.services import Services, services_of
from gateway.config.schema import SECTIONS, AlertSettings, Config, Loaded, load
from gateway.runtime.handover import Handover, Offer
from gateway.runtime.process import BackgroundTask
from gateway.server.gateway import Gateway

RELOADABLE: Final = frozenset(
    (*SECTIONS, "aliases", "plugins", "alerts", "time_zone", "currency", "session_headers", "admin_sso")
)
"""The settings of the file that a reload changes; of `port` only `trusted_proxies`, as `after_reload` has it."""


class Prepared(msgspec.Struct, frozen=True):
    """A started chain that serves nothing yet. `offer`: the number of the offer that it comes from."""

    chain: Chain
    services: Services
    alerts: AlertSettings | None = None
    trusted_proxies: Sequence[str] = ()
    offer: int = 0


class Reloader(BackgroundTask):
    """The task that reloads the configuration of one worker, from the parent's offers. `path`: of the file, for errors."""

    def __init__(self, gateway: Gateway, path: Path, handover: Handover, worker: int = 0) -> None:
        self._gateway = gateway
        self._path = path
        self._handover = handover
        self._worker = worker
        self._answered = 0
        self._prepared: Prepared | None = None
        self._due = asyncio.Event()
        self._retiring: set[asyncio.Task[None]] = set()

    async def __aexit__(self, *error: object) -> None:
        await super().__aexit__(*error)
        await self._discard()
        if self._retiring:
            await asyncio.wait(self._retiring, timeout=STOP_LIMIT_S)

    def schedule(self) -> None:
        """Ask for a look at the offer soon. Several calls before the look count as one."""
        self._due.set()

    async def follow(self) -> None:
        """Follow the parent's offer: start a chain from it and answer, exchange the chains, or drop the new one."""
        offer = self._handover.read()
        if offer is None:
            return
        if offer.phase == "offered" and self._answered != offer.number:
            await self._discard()
            self._prepared = await self._prepare(offer)
            self._answered = offer.number
            self._handover.answer(self._worker, offer.number, self._prepared is not None)
        elif offer.phase == "adopted" and self._gateway.chain.generation < offer.generation:
            if self._prepared is None or self._prepared.offer != offer.number:
                await self._discard()
                self._prepared = await self._prepare(offer)
            prepared, self._prepared = self._prepared, None
            if prepared is not None:
                self._swap(prepared)
        elif offer.phase == "withdrawn":
            await self._discard()

    async def _prepare(self, offer: Offer) -> Prepared | None:
        """Return a started chain, or None where the file does not allow it, which is logged."""
        try:
            loaded = load(self._path, raw=offer.raw, secrets=offer.secrets)
            chain = loading.build(loaded, generation=offer.generation)
            services = services_of(loaded.config, self._gateway.services.store, self._gateway.runner.metrics.own)
            await chain.start(services)
        except Exception as error:
            reason = str(error) if isinstance(error, GatewayError) else error_text(error)
            log.error("reload_refused", reason=reason, generation=self._gateway.chain.generation)
            self._gateway.runner.metrics.set("last_reload_success", 0)
            return None
        config = loaded.config
        return Prepared(chain, services, config.alerts, config.port.trusted_proxies, offer.number)

    def _swap(self, prepared: Prepared) -> None:
        old = self._gateway.swap(prepared.chain, prepared.services)
        self._gateway.trust(prepared.trusted_proxies)
        prepared.services.store.alerts.use(prepared.alerts)
        self._gateway.runner.metrics.set("last_reload_success", 1)
        task = asyncio.get_running_loop().create_task(self._retire(old))
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)
        log.info("reloaded", generation=prepared.chain.generation)

    async def _retire(self, chain: Chain) -> None:
        """Stop an old chain once its last exchange has ended, and free the upstreams that only it used."""
        await chain.idle()
        await chain.stop()
        channels = self._gateway.services.catalogue.channels
        await self._gateway.runner.failover.pool.retire(chain.generation, channels.values())

    async def _discard(self) -> None:
        """Stop a chain that will serve nothing."""
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            await prepared.chain.stop()

    async def _run(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            try:
                await self.follow()
            except Exception:
                log.exception("reload_failed", generation=self._gateway.chain.generation)


def after_reload(running: Config, new: Config) -> Config:
    """Return the configuration that runs after a reload: the reloadable settings of `new`, the others of `running`."""
    port = msgspec.structs.replace(running.port, trusted_proxies=new.port.trusted_proxies)
    return msgspec.structs.replace(running, port=port, **{name: getattr(new, name) for name in RELOADABLE})


def needs_restart(running: Config, new: Config) -> list[str]:
    """Return the names of the settings that differ and need a restart."""
    after = after_reload(running, new)
    return [
        field.name for field in msgspec.structs.fields(Config) if getattr(after, field.name) != getattr(new, field.name)
    ]


@asynccontextmanager
async def following(loaded: Loaded, handover: Handover, use: Callable[[Loaded, int], None]) -> AsyncIterator[None]:
    """Call `use` with each configuration that is adopted, and its generation, until the end.

    `loaded`: the configuration to begin with, of which a reload does not change all. `use` is not called with it.
    """
    changed = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, changed.set)

    async def follow() -> None:
        while True:
            await changed.wait()
            changed.clear()
            try:
                offer = handover.read()
                if offer is not None and offer.phase == "adopted":
                    read = load(loaded.document.path, raw=offer.raw, secrets=offer.secrets)
                    use(Loaded(after_reload(loaded.config, read.config), read.document), offer.generation)
            except GatewayError as error:
                log.error("reload_not_followed", reason=str(error))

    task = asyncio.get_running_loop().create_task(follow())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,))
