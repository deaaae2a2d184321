"""The task of a worker that writes alerts to the store, so that no request does."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Final

from gateway.alerts.alerts import Alerts
from gateway.errors import GatewayError
from gateway.log import Logger
from gateway.runtime.background import BackgroundTask

PAUSE_S: Final = 0.05
"""Between two batches: requests use the same connection."""
LOOK_INTERVAL_S: Final = 1.0
LAST_BATCHES: Final = 20

log = Logger("gateway.runtime.alert_writer")


class AlertWriter(BackgroundTask):
    """Writes what was noted, and the rest when the worker stops."""

    def __init__(self, alerts: Alerts) -> None:
        self._alerts = alerts
        self._looked_at = 0.0
        self._failing = False

    async def __aexit__(self, *error: object) -> None:
        await super().__aexit__(*error)
        with suppress(GatewayError):
            for _ in range(LAST_BATCHES):
                if self._alerts.arrived.is_set():
                    await self._alerts.write()

    async def run_once(self) -> None:
        """Write a batch, and once a second learn which accounts are low. Log a failure once."""
        try:
            if self._alerts.arrived.is_set():
                await self._alerts.write()
            if time.monotonic() - self._looked_at >= LOOK_INTERVAL_S:
                self._looked_at = time.monotonic()
                await self._alerts.read_low()
            self._failing = False
        except GatewayError as error:
            if not self._failing:
                log.warning("alerts_not_written", reason=str(error))
            self._failing = True
            await asyncio.sleep(LOOK_INTERVAL_S)
        except Exception:
            log.exception("alerts_failed")
            await asyncio.sleep(LOOK_INTERVAL_S)

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_INTERVAL_S):
                    await self._alerts.arrived.wait()
            await self.run_once()
            await asyncio.sleep(PAUSE_S)
