"""The process that sends alerts: of all gateways that share a store, the one that has the lease.

1. **An event is sent until the receiver answers 2xx or a day has passed**, with exponential backoff and jitter. Then it is given up
   and logged. What was sent but could not be reported, since the store is away, is reported later and not sent again by this
   process.
2. **A store that does not answer is an event of each gateway of its own**: it is kept in memory and sent from there, in order.
3. At most `AT_ONCE` attempts run at once, so that an address that does not answer costs no memory.
"""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec

from gateway.alerts import event
from gateway.alerts.event import Entry, Event
from gateway.alerts.outbox import Outbox, Outcome
from gateway.alerts.webhook import Webhook
from gateway.errors import GatewayError, StoreAway
from gateway.log import Logger
from gateway.request_id import new_id

AT_ONCE: Final = 8
LEASE_S: Final = 30.0
"""Longer than the attempts of one round take. So long an event may wait when the process that sends is killed."""
PAUSE_S: Final = 0.5
AWAY_AFTER_S: Final = 5.0
"""How long a store does not answer until that is an event: a failover takes less."""
FIRST_S: Final = 2.0
LONGEST_S: Final = 3600.0
GIVEN_UP_AFTER_S: Final = 86_400.0
MAX_OWN: Final = 20
"""Events about the store that wait in memory."""
STOP_S: Final = 3.0
"""How long a stop waits for attempts in progress. What they do not finish is sent again."""

log = Logger("gateway.alerts.sender")


class Own(msgspec.Struct):
    """An event that the store cannot keep, and the monotonic time of its next attempt."""

    entry: Entry
    due: float = 0.0


class Sender:
    """Sends the events of one outbox to one webhook.

    `count(result)` is called for each attempt, `pending(number)` with the number of events in the outbox.
    """

    def __init__(
        self,
        outbox: Outbox,
        *,
        count: Callable[[str], None] = lambda result: None,
        pending: Callable[[int], None] = lambda number: None,
        lease_s: float = LEASE_S,
        away_after_s: float = AWAY_AFTER_S,
        first_s: float = FIRST_S,
    ) -> None:
        self._outbox = outbox
        self._count = count
        self._pending = pending
        self._lease_ms = round(lease_s * 1000)
        self._away_after_s = away_after_s
        self._first_s = first_s
        self._name = new_id()
        self._gateway = socket.gethostname()
        self._webhook: Webhook | None = None
        self._next: Webhook | None = None
        self._store_events = False
        self._unreported: dict[str, tuple[Entry, Outcome, int]] = {}
        self._own: deque[Own] = deque(maxlen=MAX_OWN)
        self._failing_since: float | None = None
        self._away = False

    def use(self, webhook: Webhook | None, *, store_events: bool) -> None:
        """Send to this webhook from now on; None: send nothing. `store_events`: whether a store that is away is an event."""
        self._next, self._store_events = webhook, store_events

    async def run(self, stop: asyncio.Event) -> None:
        """Send what is due, again and again, until `stop` is set. Then let another process send."""
        stopping = asyncio.ensure_future(stop.wait())
        try:
            while not stop.is_set():
                step = asyncio.ensure_future(self.step())
                await asyncio.wait((step, stopping), return_when=asyncio.FIRST_COMPLETED)
                if not step.done():
                    await asyncio.wait((step,), timeout=STOP_S)
                if not step.done():
                    step.cancel()
                    await asyncio.wait((step,))
                    break
                if not step.result():
                    await asyncio.wait((stopping,), timeout=PAUSE_S)
        finally:
            stopping.cancel()
            self.use(None, store_events=False)
            await self._switch()
            with suppress(GatewayError):
                await self._report()
                await self._outbox.release(self._name)

    async def step(self) -> bool:
        """Send what is due now. Return whether the receiver accepted anything, so that there may be more to send."""
        if (webhook := await self._switch()) is None:
            return False
        entries: list[Entry] = []
        try:
            await self._report()
            taken = await self._outbox.take(self._name, self._lease_ms, AT_ONCE)
            self._pending(taken.pending)
            entries = taken.entries or []
            self._store_answers()
        except StoreAway as error:
            self._store_fails(error)
        except Exception:
            log.exception("alerts_failed")
        accepted = await asyncio.gather(*(self._send(webhook, entry) for entry in entries), self._send_own(webhook))
        return any(accepted)

    async def _switch(self) -> Webhook | None:
        """Return the webhook to use, and close the one before: no attempt is in progress now."""
        if self._webhook is not None and self._webhook is not self._next:
            await self._webhook.close()
        self._webhook = self._next
        return self._webhook

    async def _send(self, webhook: Webhook, entry: Entry) -> bool:
        """Attempt an event of the outbox, and report how it ended. Return whether the receiver accepted it."""
        tried, delay_s = await self._attempt(webhook, entry)
        outcome: Outcome = "sent" if not tried.error else "given_up" if delay_s is None else "again"
        self._unreported[entry.id] = tried, outcome, round((delay_s or 0) * 1000)
        with suppress(GatewayError):
            await self._report(entry.id)
        return not tried.error

    async def _send_own(self, webhook: Webhook) -> bool:
        """Attempt the first of the events that are kept in memory, if it is due. Return whether the receiver accepted it."""
        if not self._own or self._own[0].due > time.monotonic():
            return False
        own = self._own[0]
        own.entry, delay_s = await self._attempt(webhook, own.entry)
        if own.entry.error and delay_s is not None:
            own.due = time.monotonic() + delay_s
        elif self._own and self._own[0] is own:
            self._own.popleft()
        return not own.entry.error

    async def _attempt(self, webhook: Webhook, entry: Entry) -> tuple[Entry, float | None]:
        """Send an event once. Return it with the outcome, and in how many seconds to try again; None for never."""
        answer = await webhook.post(entry.id, entry.body.encode())
        attempts = entry.attempts + 1
        entry = msgspec.structs.replace(entry, attempts=attempts, error=answer.error)
        where = {"type": entry.type, "id": entry.id, "host": webhook.host, "attempts": attempts}
        if not answer.error:
            self._count("sent")
            log.info("alert_sent", **where)
            return entry, None
        if event.now_ms() - entry.created_ms >= GIVEN_UP_AFTER_S * 1000:
            self._count("given_up")
            log.error("alert_given_up", **where, reason=answer.error, cure=answer.cure)
            return entry, None
        self._count("failed")
        longest_s = min(LONGEST_S, self._first_s * 2.0 ** min(attempts - 1, 30))
        delay_s = longest_s * random.uniform(0.5, 1.0)  # noqa: S311 - it spreads attempts
        log.warning("alert_failed", **where, reason=answer.error, cure=answer.cure, again_in_s=round(delay_s, 1))
        return entry, delay_s

    async def _report(self, only: str | None = None) -> None:
        """Report the outcomes that the store does not know yet. Raises `GatewayError`; they are then kept."""
        for id in [only] if only else list(self._unreported):  # noqa: A001
            entry, outcome, delay_ms = self._unreported[id]
            await self._outbox.report(entry, outcome, delay_ms)
            del self._unreported[id]

    def _store_answers(self) -> None:
        self._failing_since = None
        if self._away:
            self._away = False
            self._keep(event.store_back(self._gateway))
            log.warning("store_answers_alerts")

    def _store_fails(self, error: StoreAway) -> None:
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        if not self._away and now - self._failing_since >= self._away_after_s:
            self._away = True
            self._keep(event.store_away(self._gateway))
            log.error("alerts_wait", reason=str(error))

    def _keep(self, happened: Event) -> None:
        if self._store_events:
            if len(self._own) == MAX_OWN:
                self._count("dropped")
            self._own.append(Own(event.entry_of(happened)))
