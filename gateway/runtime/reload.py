"""Reloads of the configuration while requests run: a whole new chain or none, and open streams are not touched.

The file is read and checked, and the new chain is built and started beside the running one; then one reference is swapped.
Any failure leaves everything as it was. An exchange keeps the chain that it began with; an old chain stops when its last
exchange has ended.

Channels, models, groups and plugins are reloaded. All else (ports, the store, folders, processes) needs a restart, and so
does new code in a plugin's module.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Final

import msgspec
import structlog

from gateway import loading
from gateway.chain import Chain
from gateway.config.schema import Config, Loaded, load
from gateway.errors import GatewayError
from gateway.metrics.registry import Metrics
from gateway.runtime.background import BackgroundTask
from gateway.server.gateway import Gateway
from gateway.services import services_of

RELOADABLE: Final = frozenset({"channels", "models", "groups", "plugins"})
"""The settings of the file that a reload changes."""

log = structlog.get_logger("gateway.runtime.reload")


class Reloader(BackgroundTask):
    """The task that reloads the configuration of one worker."""

    def __init__(self, gateway: Gateway, path: Path) -> None:
        self._gateway = gateway
        self._path = path
        self._due = asyncio.Event()
        self._retiring: set[asyncio.Task[None]] = set()

    async def __aexit__(self, *error: object) -> None:
        await super().__aexit__(*error)
        if self._retiring:
            await asyncio.wait(self._retiring, timeout=self._gateway.port.drain)

    def schedule(self) -> None:
        """Reload soon. Several calls before that are one reload."""
        self._due.set()

    async def run_once(self) -> bool:
        """Reload now and return whether it succeeded. Log what is wrong with the file."""
        try:
            loaded = load(self._path)
            chain = loading.build(loaded, generation=self._gateway.chain.generation + 1)
            services = services_of(loaded.config, self._gateway.services.store)
            await chain.start(services)
        except GatewayError as error:
            log.error("reload_refused", reason=str(error), generation=self._gateway.chain.generation)
            self._gateway.runner.metrics.set("last_reload_success", 0)
            return False
        old = self._gateway.swap(chain, services)
        self._gateway.runner.metrics.set("last_reload_success", 1)
        task = asyncio.get_running_loop().create_task(_retire(old))
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)
        log.info("reloaded", generation=chain.generation)
        return True

    async def _run(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            try:
                await self.run_once()
            except Exception:
                log.exception("reload_failed", generation=self._gateway.chain.generation)


async def _retire(chain: Chain) -> None:
    await chain.idle()
    await chain.stop()


class ActiveConfig:
    """The configuration that the parent process starts workers with; follows the file and SIGHUP."""

    def __init__(self, loaded: Loaded, metrics: Metrics) -> None:
        """Begin with `loaded`, and from now on handle SIGHUP in this process."""
        self.loaded = loaded
        self.generation = 1
        self._metrics = metrics
        self._path = loaded.document.path
        self._version = self._file_version()
        self._reload_requested = False
        signal.signal(signal.SIGHUP, self._request_reload)

    def refresh(self) -> bool:
        """Load the file if it changed or SIGHUP came. Return whether there is a new configuration for the workers.

        Log once what is wrong with a file, and keep the configuration in that case.
        """
        version = self._file_version()
        if version is None or (version == self._version and not self._reload_requested):
            return False
        self._version, self._reload_requested = version, False
        try:
            loaded = load(self._path)
            loading.build(loaded)
        except GatewayError as error:
            log.error("reload_refused", reason=str(error), generation=self.generation)
            self._metrics.reloaded(taken_up=False)
            return False
        if restart := needs_restart(self.loaded.config, loaded.config):
            log.warning("reload_needs_restart", settings=restart)
        self.loaded = Loaded(after_reload(self.loaded.config, loaded.config), loaded.document)
        self.generation += 1
        self._metrics.reloaded(taken_up=True)
        return True

    def _request_reload(self, *_: object) -> None:
        self._reload_requested = True

    def _file_version(self) -> tuple[int, int, int] | None:
        """Return what differs between versions of the file, also when a symbolic link was replaced; None without a file."""
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino, status.st_size


def after_reload(running: Config, new: Config) -> Config:
    """Return the configuration that runs after a reload: the reloadable settings of `new`, the others of `running`."""
    return msgspec.structs.replace(running, **{name: getattr(new, name) for name in RELOADABLE})


def needs_restart(running: Config, new: Config) -> list[str]:
    """Return the names of the settings that differ and need a restart."""
    names = (field.name for field in msgspec.structs.fields(Config))
    return [name for name in names if name not in RELOADABLE and getattr(running, name) != getattr(new, name)]
