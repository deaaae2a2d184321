"""The start and the stop of a chain's plugins, each within a limit of time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from gateway.chain.entry import Entry
from gateway.chain.failures import describe_error, is_cancellation, origin_of
from gateway.errors import GatewayError
from gateway.log import Logger
from gateway.services import Services

START_LIMIT_S: Final = 20.0
"""How long all plugins together may take to start."""
STOP_LIMIT_S: Final = 3.0
"""How long all plugins together may take to stop."""
ABANDON_S: Final = 0.5
"""How long a hook that is cancelled may take to end."""

log = Logger("gateway.chain")


async def start_all(
    entries: Sequence[Entry], services: Services, limit_s: float, starting: Callable[[Entry], None]
) -> None:
    """Start every plugin, in `limit_s` together. If one fails, stop those that had started.

    `starting` is called before each one. A `ValueError` becomes `Misconfigured`. Any other exception becomes a
    `GatewayError`, because it may pass: a service that the plugin needs may not answer yet, and a service manager must go on
    restarting the gateway.
    """
    deadline = time.monotonic() + limit_s
    for index, entry in enumerate(entries):
        starting(entry)
        try:
            entry.services = services.named(entry.name)
            if await _in_time(entry.plugin.start(entry.services), deadline):
                continue
            raise GatewayError(str(entry.wrong(f"'{entry.name}' did not start within {limit_s:g} s")))
        except BaseException as error:
            await _close(entry, time.monotonic() + STOP_LIMIT_S)
            await stop_all(entries[:index])
            if isinstance(error, GatewayError) or is_cancellation(error):
                raise
            if isinstance(error, ValueError):
                raise entry.wrong(f"'{entry.name}' does not start: {error}") from None
            raise GatewayError(str(entry.wrong(f"'{entry.name}' does not start: {describe_error(error)}"))) from None


async def stop_all(entries: Sequence[Entry], limit_s: float = STOP_LIMIT_S) -> None:
    """Stop every plugin, last first, in `limit_s` together. What takes longer is cancelled and logged."""
    deadline = time.monotonic() + limit_s
    for entry in reversed(entries):
        try:
            if entry.services is not None and not await _in_time(entry.services.end_tasks(), deadline):
                log.error("plugin_hangs", plugin=entry.name, hook="every")
            if not await _in_time(entry.plugin.stop(), deadline):
                log.error("plugin_hangs", plugin=entry.name, hook="stop")
        except BaseException as error:
            if is_cancellation(error):
                raise
            log.error("plugin_failed", **origin_of(error, entry.name, "stop"), exc_info=error)
        finally:
            await _close(entry, deadline)


async def _close(entry: Entry, deadline: float) -> None:
    """End the work that a plugin began with its services."""
    services, entry.services = entry.services, None
    if services is not None and not await _in_time(services.close(), deadline):
        log.error("plugin_hangs", plugin=entry.name, hook="every")


async def _in_time(hook: Coroutine[Any, Any, None], deadline: float) -> bool:
    """Run a hook until the deadline, and return whether it ended. Otherwise it is cancelled, and not waited for long."""
    task = asyncio.ensure_future(_contained(hook))
    try:
        await asyncio.wait([task], timeout=max(ABANDON_S, deadline - time.monotonic()))
        if not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=ABANDON_S)
            return False
    except asyncio.CancelledError:
        task.cancel()
        raise
    if (error := task.result()) is not None:
        raise error
    return True


async def _contained(hook: Coroutine[Any, Any, None]) -> BaseException | None:
    """Return what a hook raised: a task that raises `SystemExit` or `KeyboardInterrupt` would end the event loop."""
    try:
        await hook
    except BaseException as error:
        if is_cancellation(error):
            raise
        return RuntimeError("it was cancelled") if isinstance(error, asyncio.CancelledError) else error
    return None
