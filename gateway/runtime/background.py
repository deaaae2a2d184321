"""Tasks of a worker beside requests: maintenance of accounts, measurements, alerts.

Maintenance delivers late charges, repeats lost ones and ends expired holds. Balances are correct without it: a hold ends by its
lease at the account's next request, and a settlement may be repeated at any time. Maintenance only does both sooner.

A worker also measures itself (the lag of its event loop, open requests and streams, waiting usage records, end hooks that do not
end), and writes alerts to the store, so that no request does.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Final

from gateway.alerts.alerts import Alerts
from gateway.base import ids
from gateway.base.errors import GatewayError, StoreError
from gateway.base.log import log
from gateway.chain.services import Store
from gateway.metrics.registry import Metrics
from gateway.runtime.process import BackgroundTask
from gateway.server.gateway import Gateway

MAINTENANCE_S: Final = 2.0
SWEEP_INTERVAL_S: Final = 30
SWEEP_LOCK: Final = "gw:sweep"
"""A key that expires: of all workers on all machines, the one that sets it ends expired holds."""
PEPPER_INTERVAL_S: Final = 30.0

SAMPLE_S: Final = 0.25
SELDOM: Final = 20
"""The usage log and the end hooks are looked at once in this many samples."""
HANGS_AFTER_S: Final = 15.0
"""An end hook that runs for longer is logged: more than a settlement takes while the store does not answer."""

RETRY_S: Final = 1.0
LAST_S: Final = 1.0
"""How long a worker that stops writes its last alerts."""


class Maintenance(BackgroundTask):
    """The maintenance task of one worker."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pepper_at = 0.0

    async def run_once(self) -> None:
        """Do each job once. Log a failure, and go on with the next job."""
        jobs = (self.repeat, self.deliver, self.write_down, self.sweep_in_turn, self.follow_pepper)
        for work in (self._store.wallet.follow_clock, *jobs):
            try:
                await work()
            except (GatewayError, OSError) as error:
                log.warning("care_waits", work=work.__name__, reason=str(error))
            except Exception:
                log.exception("care_failed", work=work.__name__)

    async def repeat(self) -> None:
        """Repeat recent writes that a store may have lost in a failover."""
        settlements, records = await self._store.replay_after_failover()
        if settlements:
            log.warning("settlements_repeated", count=settlements, reason="the store restarted or failed over")
        if records:
            log.warning("records_repeated", count=records, reason="the store restarted or failed over")

    async def deliver(self) -> None:
        """Deliver the settlements in the journals of this process and of processes that ended."""
        delivered = await self._store.journal.replay(self._store.wallet.deliver)
        if delivered:
            log.warning("settlements_delivered", count=delivered)

    async def write_down(self) -> None:
        """Write the ends of requests that neither the store nor the disk accepted before."""
        written = await self._store.usage.write_down()
        if written:
            log.warning("records_written", count=written)

    async def sweep_in_turn(self) -> None:
        """Sweep, unless a worker did so within the interval."""
        if await self._store.client.call("SET", SWEEP_LOCK, "1", "NX", "EX", SWEEP_INTERVAL_S):
            await self.sweep()

    async def follow_pepper(self) -> None:
        """Take up a change of the pepper, and the end of the one before."""
        if time.monotonic() >= self._pepper_at:
            self._pepper_at = time.monotonic() + PEPPER_INTERVAL_S
            await self._store.tokens.refresh_pepper()

    async def sweep(self) -> None:
        """End every hold whose lease has expired."""
        async for account in self._store.accounts.all():
            try:
                while account.holds and (expired := await self._store.wallet.sweep(account.id)):
                    log.warning("holds_expired", account=account.id, requests=[request_id for request_id, _ in expired])
            except StoreError as error:  # of this account alone
                log.error("account_not_swept", account=account.id, reason=str(error))

    async def _run(self) -> None:
        while True:
            await self.run_once()
            await asyncio.sleep(MAINTENANCE_S)


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
        self._metrics.set("clock_difference_seconds", abs(ids.ahead_ms()) / 1000)

    async def sample_usage_log(self) -> None:
        """Measure how many usage records wait for the sink. Keep the last figures while the store does not answer."""
        usage = self._gateway.services.store.usage
        with suppress(GatewayError, OSError):
            self._metrics.set("usage_log_waiting", await usage.length())
            oldest_ms = await usage.oldest_ms()
            behind_ms = 0 if oldest_ms is None else max(0, ids.now_ms() - oldest_ms)
            self._metrics.set("usage_log_behind_seconds", behind_ms / 1000)
            self._metrics.set("usage_log_spooled", await asyncio.to_thread(usage.spool.count))

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
            due = loop.time() + SAMPLE_S
            await asyncio.sleep(SAMPLE_S)
            self._metrics.loop_lag.observe(max(0.0, loop.time() - due))


class AlertWriter(BackgroundTask):
    """Writes the notes, and the rest of them when the worker stops."""

    def __init__(self, alerts: Alerts) -> None:
        self._alerts = alerts
        self._failing = False

    async def __aexit__(self, *error: object) -> None:
        await super().__aexit__(*error)
        with suppress(GatewayError, TimeoutError):
            async with asyncio.timeout(LAST_S):
                await self._alerts.write()

    async def run_once(self) -> None:
        """Write what was noted. Log a failure once."""
        try:
            await self._alerts.write()
            self._failing = False
            return
        except GatewayError as error:
            if not self._failing:
                log.warning("alerts_not_written", reason=str(error))
            self._failing = True
        except Exception:
            log.exception("alerts_failed")
        await asyncio.sleep(RETRY_S)

    async def _run(self) -> None:
        while True:
            await self._alerts.arrived.wait()
            await self.run_once()
