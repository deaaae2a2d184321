"""What a worker measures of itself, four times a second: how late its event loop is, what is under way, what waits."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

import structlog

from gateway.errors import GatewayError
from gateway.metrics.registry import Metrics
from gateway.runtime.background import BackgroundTask
from gateway.server.gateway import Gateway

EVERY_S: Final = 0.25
LOG_EVERY: Final = 20
"""Beats between two looks at how much of the usage log waits."""


log = structlog.get_logger("gateway.runtime.sampler")


class Sampler(BackgroundTask):
    """The task of one worker."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._metrics: Metrics = gateway.runner.metrics

    async def __aexit__(self, *left: object) -> None:
        await super().__aexit__(*left)
        self.beat()

    def beat(self) -> None:
        """Tell what is under way."""
        runner = self._gateway.runner
        self._metrics.set("open_requests", runner.open)
        self._metrics.set("open_streams", len(runner.failover.relays))
        self._metrics.set("config_generation", self._gateway.chain.generation)

    async def look_at_log(self) -> None:
        """Tell what of the usage log waits; where the store does not answer, what was known stays."""
        usage = self._gateway.services.store.usage
        with suppress(GatewayError, OSError):
            self._metrics.set("usage_log_waiting", await usage.length())
            self._metrics.set("usage_log_spooled", len(await asyncio.to_thread(usage.spool.files)))

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        beats = 0
        while True:
            try:
                self.beat()
                if beats % LOG_EVERY == 0:
                    await self.look_at_log()
            except Exception:
                log.exception("pulse_failed")  # a number is missing; a stop must still drain
            beats += 1
            due = loop.time() + EVERY_S
            await asyncio.sleep(EVERY_S)
            self._metrics.loop_lag.observe(max(0.0, loop.time() - due))
