"""What a worker does for the money while nobody asks: late charges delivered, forgotten ones repeated, dead holds ended.

Correctness waits for none of it: a hold ends by its lease at the account's next request, and a settlement may be repeated
at any time. It only brings the day of rest nearer.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from gateway.errors import GatewayError
from gateway.runtime.background import BackgroundTask
from gateway.services import Store

EVERY_S: Final = 2.0
SWEEP_EVERY_S: Final = 30
SWEEP_TURN: Final = "gw:sweep"
"""Held for one round by whoever sweeps, so that of all workers on all machines one does."""

log = structlog.get_logger("gateway.runtime.maintenance")


class Maintenance(BackgroundTask):
    """The task of one worker."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def round(self) -> None:
        """Everything once. What fails is told, and does not hold up the rest."""
        for work in (self.repeat, self.deliver, self.sweep_in_turn):
            try:
                await work()
            except GatewayError as error:
                log.warning("care_waits", work=work.__name__, reason=str(error))
            except Exception:
                log.exception("care_failed", work=work.__name__)

    async def repeat(self) -> None:
        """Repeat what a store which took over may have forgotten."""
        settlements, records = await self._store.replay_after_failover()
        if settlements:
            log.warning("settlements_repeated", count=settlements, reason="another incarnation of the store answers")
        if records:
            log.warning("records_repeated", count=records, reason="another incarnation of the store answers")

    async def deliver(self) -> None:
        """Deliver what is in the journal, of this process and of those that ended."""
        delivered = await self._store.journal.replay(self._store.wallet.deliver)
        if delivered:
            log.warning("settlements_delivered", count=delivered)

    async def sweep_in_turn(self) -> None:
        """Sweep, unless another worker did so lately."""
        if await self._store.client.call("SET", SWEEP_TURN, "1", "NX", "EX", SWEEP_EVERY_S):
            await self.sweep()

    async def sweep(self) -> None:
        """End every hold whose lease is over."""
        async for account in self._store.accounts.all():
            while account.holds and (over := await self._store.wallet.sweep(account.id)):
                log.warning("holds_expired", account=account.id, requests=[request_id for request_id, _ in over])

    async def _run(self) -> None:
        while True:
            await self.round()
            await asyncio.sleep(EVERY_S)
