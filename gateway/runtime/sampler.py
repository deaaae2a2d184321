"""Measurements that a worker takes of itself: the lag of its event loop, open requests and streams, waiting usage records."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

import structlog

from gateway.errors import GatewayError
from gateway.metrics.registry import Metrics
from gateway.runtime.background import BackgroundTask
from gateway.server.gateway import Gateway

INTERVAL_S: Final = 0.25
USAGE_LOG_EVERY: Final = 20
"""The length of the usage log is measured once in this many samples."""


log = structlog.get_logger("gateway.runtime.sampler")


class Sampler(BackgroundTask):
    """The measuring task of one worker."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._metrics: Metrics = gateway.runner.metrics

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

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        samples = 0
        while True:
            try:
                self.sample()
                if samples % USAGE_LOG_EVERY == 0:
                    await self.sample_usage_log()
            except Exception:
                log.exception("pulse_failed")  # not raised: the exit would raise it before the gateway drains
            samples += 1
            due = loop.time() + INTERVAL_S
            await asyncio.sleep(INTERVAL_S)
            self._metrics.loop_lag.observe(max(0.0, loop.time() - due))
