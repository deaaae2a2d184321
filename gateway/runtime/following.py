"""How a child that is no worker follows reloads: on SIGHUP it reads which configuration the parent has adopted."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from gateway.config.schema import Loaded, load
from gateway.errors import GatewayError
from gateway.log import Logger
from gateway.runtime.handover import Handover
from gateway.runtime.reload import after_reload

log = Logger("gateway.runtime.following")


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
