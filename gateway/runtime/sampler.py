"""Measurements that a worker takes of itself: the lag of its event loop, open requests and streams, waiting usage records,
and end hooks that do not end.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from gateway.errors import GatewayError
from gateway.log import Logger
from gateway.metrics.registry import Metrics
from gateway.runtime.background import BackgroundTask
from gateway.server.gateway import Gateway

INTERVAL_S: Final = 0.25
SELDOM: Final = 20
"""The usage log and the end hooks are looked at once in this many samples."""
HANGS_AFTER_S: Final = 15.0
"""An end hook that runs for longer is logged: more than a settlement takes while the store does not answer."""

log = Logger("gateway.runtime.sampler")


class Sampler(BackgroundTask):
    """The measuring task of one worker."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._metrics: Metrics = gateway.runner.metrics
        self._hanging: set[tuple[str, str]] = set()

    async def __aexit__(self, *error: object) -> None:
        await super().__aexit__(*error)
        self.sample()

    def sample(self) -> None:
        """Measure open requests and streams, and the generation of the configuration."""
        runner = self._gateway.runner
        self._metrics.set("open_requests", runner.open)
        self._metrics.set("open_streams", len(runner.failover.relays))
        self._metrics.set("config_generation", self._gateway.chain.generation)

    async def sample_usage_log(self) -> None:
        """Measure how many usage records wait for the sink. Keep the last figures while the store does not answer."""
        usage = self._gateway.services.store.usage
        with suppress(GatewayError, OSError):
            self._metrics.set("usage_log_waiting", await usage.length())
            self._metrics.set("usage_log_spooled", len(await asyncio.to_thread(usage.spool.files)))

    def report_hanging(self) -> None:
        """Log each end hook that does not end, once. It is not cancelled: it may be at work on a charge."""
        hanging = set(self._gateway.runner.hanging(HANGS_AFTER_S))
        for request_id, plugin in hanging - self._hanging:
            log.error("plugin_hangs", plugin=plugin, hook="on_end", request_id=request_id)
        self._hanging = hanging

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        samples = 0
        while True:
            try:
                self.sample()
                if samples % SELDOM == 0:
                    self.report_hanging()
                    await self.sample_usage_log()
            except Exception:
                log.exception("pulse_failed")  # not raised: the exit would raise it before the gateway drains
            samples += 1
            due = loop.time() + INTERVAL_S
            await asyncio.sleep(INTERVAL_S)
            self._metrics.loop_lag.observe(max(0.0, loop.time() - due))
