"""A new configuration while requests run: a whole new chain or none, and no stream is touched.

The file is read, checked, built and started beside the running chain; then one reference is swapped. Any failure leaves
everything as it was. An exchange keeps the chain it began with; an old chain stops when its last exchange has ended.

Channels, models, groups and plugins are taken up. All else (ports, the store, folders, processes) needs a restart, and so
does new code of a plugin's module.
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

TAKEN_UP: Final = frozenset({"channels", "models", "groups", "plugins"})

log = structlog.get_logger("gateway.runtime.reload")


class Reloader(BackgroundTask):
    """The task of one worker that takes up new configurations."""

    def __init__(self, gateway: Gateway, path: Path) -> None:
        self._gateway = gateway
        self._path = path
        self._asked = asyncio.Event()
        self._retiring: set[asyncio.Task[None]] = set()

    async def __aexit__(self, *left: object) -> None:
        await super().__aexit__(*left)
        if self._retiring:
            await asyncio.wait(self._retiring, timeout=self._gateway.port.drain)

    def ask(self) -> None:
        """Take the file up anew, soon; several askings at once are one."""
        self._asked.set()

    async def once(self) -> bool:
        """Take the file up now; whether it was. What was wrong with it is logged."""
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
            await self._asked.wait()
            self._asked.clear()
            try:
                await self.once()
            except Exception:
                log.exception("reload_failed", generation=self._gateway.chain.generation)


async def _retire(chain: Chain) -> None:
    await chain.idle()
    await chain.stop()


class Current:
    """The configuration that the parent process would start a worker with."""

    def __init__(self, loaded: Loaded, metrics: Metrics) -> None:
        self.loaded = loaded
        self._metrics = metrics
        self.generation = 1
        self._path = loaded.document.path
        self._seen = self._look()
        self._asked = False
        signal.signal(signal.SIGHUP, self._ask)

    def renewed(self) -> bool:
        """Whether the file changed, or SIGHUP came, and it is good: then the workers may take it up.

        What is wrong with a file is logged once, and everything stays as it is.
        """
        seen = self._look()
        if seen is None or (seen == self._seen and not self._asked):
            return False
        self._seen, self._asked = seen, False
        try:
            loaded = load(self._path)
            loading.build(loaded)
        except GatewayError as error:
            log.error("reload_refused", reason=str(error), generation=self.generation)
            self._metrics.reloaded(taken_up=False)
            return False
        if restart := needs_restart(self.loaded.config, loaded.config):
            log.warning("reload_needs_restart", settings=restart)
        self.loaded = Loaded(kept(self.loaded.config, loaded.config), loaded.document)
        self.generation += 1
        self._metrics.reloaded(taken_up=True)
        return True

    def _ask(self, *_: object) -> None:
        self._asked = True

    def _look(self) -> tuple[int, int, int] | None:
        """What tells one version of the file from another; a swapped symbolic link does too."""
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino, status.st_size


def kept(running: Config, new: Config) -> Config:
    """What runs after a reload: what is taken up from the new file, the rest as it was."""
    return msgspec.structs.replace(running, **{name: getattr(new, name) for name in TAKEN_UP})


def needs_restart(running: Config, new: Config) -> list[str]:
    """The settings that differ and are not taken up."""
    names = (field.name for field in msgspec.structs.fields(Config))
    return [name for name in names if name not in TAKEN_UP and getattr(running, name) != getattr(new, name)]
