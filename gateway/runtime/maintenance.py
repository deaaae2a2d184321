"""Periodic maintenance of accounts in a worker: deliver late charges, repeat lost ones, end expired holds.

Balances are correct without it: a hold ends by its lease at the account's next request, and a settlement may be repeated
at any time. Maintenance only does both sooner.
"""

from __future__ import annotations

import asyncio
from typing import Final

from gateway.errors import GatewayError
from gateway.log import Logger
from gateway.runtime.background import BackgroundTask
from gateway.services import Store
from gateway.store.layout import SWEEP_LOCK

INTERVAL_S: Final = 2.0
SWEEP_INTERVAL_S: Final = 30

log = Logger("gateway.runtime.maintenance")


class Maintenance(BackgroundTask):
    """The maintenance task of one worker."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def run_once(self) -> None:
        """Do each job once. Log a failure, and go on with the next job."""
        for work in (self.repeat, self.deliver, self.write_down, self.sweep_in_turn):
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

    async def sweep(self) -> None:
        """End every hold whose lease has expired."""
        async for account in self._store.accounts.all():
            while account.holds and (expired := await self._store.wallet.sweep(account.id)):
                log.warning("holds_expired", account=account.id, requests=[request_id for request_id, _ in expired])

    async def _run(self) -> None:
        while True:
            await self.run_once()
            await asyncio.sleep(INTERVAL_S)
