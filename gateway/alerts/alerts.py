"""Alerts noticed by one process. Nothing here waits: an event is noted in memory, and `write` hands it to the store.

1. **The memory is bounded.** What finds no room is counted as dropped, and is noticed again, with the next request at the latest.
2. **The store decides what is an event**, since other processes notice the same, see `gateway.alerts.event`. What this process
   noted is not noted again for `REPEAT_S`: a request of an account that is known to be low costs a look into a dictionary.
3. Without `alerts:` in the configuration nothing is noted.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from gateway.alerts import event
from gateway.alerts.event import EventClaim, Outbox
from gateway.base.amounts import MICROS
from gateway.base.errors import StoreAway
from gateway.base.log import Logger
from gateway.config.schema import AlertSettings
from gateway.store.channels import Channels, ChannelStatus, Condition
from gateway.store.client.client import Client

MAX_WAITING: Final = 10_000
"""Events in memory that the store has not accepted yet."""
MAX_NOTED: Final = 20_000
REPEAT_S: Final = 300.0
"""How long what was noted is not noted again. An account that recovered and is low again may be noticed so much later."""
UP_AFTER_S: Final = 10.0
"""How long a channel must work until it is up again: one that fails again and again is not an event each time."""
BATCH: Final = 50
"""Events that are written at once, so that requests do not wait for the store meanwhile."""
PAGE: Final = 1000

log = Logger("gateway.alerts.alerts")

Subject = tuple[str | int | None, ...]


class Alerts:
    """The alerts of one process. `dropped` is called for each event that finds no room."""

    def __init__(self, client: Client, channels: Channels, settings: AlertSettings | None) -> None:
        self._outbox = Outbox(client)
        self._channels = channels
        self._waiting: deque[EventClaim] = deque()
        self._noted: dict[Subject, tuple[int, float]] = {}
        self._low: set[str] = set()
        self._low_until = 0
        self._healthy: dict[str, float] = {}
        self._up: set[str] = set()
        self._lost = 0
        self.dropped: Callable[[], None] = lambda: None
        self.up_after_s = UP_AFTER_S
        self.arrived = asyncio.Event()
        """Set while there is something to write."""
        self.use(settings)

    def use(self, settings: AlertSettings | None) -> None:
        """Follow these settings from now on; None: note nothing."""
        self._kinds: frozenset[str] = frozenset(settings.events if settings is not None else ())
        low = settings.low_balance if settings is not None and "low_balance" in self._kinds else None
        self._threshold = None if low is None else int(low * MICROS)

    def budget(
        self,
        account: str,
        token_id: str,
        window: str,
        used: int,
        limit: int,
        *,
        ends_at_ms: int | None = None,
    ) -> None:
        """Note how much of a budget is used after a settlement, as the store returned it.

        `token_id`: empty for the account's own budget. `window`: the budget's name, unique for its owner, such as `month`.
        `ends_at_ms`: when the window ends, None for never.
        """
        if 2 * used < limit or "budget" not in self._kinds:
            return
        share = used * 100 // limit
        level = next(level for level in event.LEVELS if share >= level)
        subject = ("budget", account, token_id, window, limit, ends_at_ms)
        if self._first(subject, level):
            now_ms = event.now_ms()
            end = now_ms + event.ENDLESS_WINDOW_MS if ends_at_ms is None else max(now_ms, ends_at_ms) + event.LATE_MS
            made = event.budget_reached(account, token_id, window, used, limit, level, ends_at_ms)
            key = f"budget:{account}:{token_id}:{window}:{limit}:{ends_at_ms or 0}"
            self._add(subject, EventClaim("reach", key, made, level, end))

    def balance(self, account: str, available: int) -> None:
        """Note what an account may still spend, in micros: its balance and credit line, without what is held at the moment."""
        threshold = self._threshold
        if threshold is None:
            return
        subject = ("low", account)
        if available >= threshold:
            if account in self._low or subject in self._noted:
                self._noted.pop(subject, None)
                if self._add(subject, EventClaim("leave", "low", value=account)):
                    self._low.discard(account)
                else:
                    self._low.add(account)
        elif self._first(subject):
            self._add(subject, EventClaim("join", "low", event.low_balance(account, available, threshold), account))

    def channel_states(self, statuses: Mapping[str, ChannelStatus]) -> None:
        """Note which channels the circuit breaker has closed for all accounts, and which of them work again.

        To be called whenever the status is known, at least every few seconds.
        """
        if "channel" not in self._kinds:
            return
        now = time.monotonic()
        for name, status in statuses.items():
            subject = ("channel", name)
            if status.condition is Condition.HEALTHY:
                if name not in self._up and now - self._healthy.setdefault(name, now) >= self.up_after_s:
                    self._noted.pop(subject, None)
                    if self._add(subject, EventClaim("end", f"channel:{name}", event.channel_up(name))):
                        self._up.add(name)
                continue
            self._healthy.pop(name, None)
            if status.firm and status.condition is not Condition.DISABLED:
                self._up.discard(name)
                if self._first(subject):
                    end = event.now_ms() + event.CHANNEL_WINDOW_MS
                    self._add(subject, EventClaim("begin", f"channel:{name}", event.channel_down(name), name, end))

    def credential_refused(self, channel: str, index: int, of: int) -> None:
        """Note that an upstream refused a credential: the one with this index, of so many."""
        subject = ("credential", channel, index)
        if "credential" in self._kinds and self._first(subject):
            made = event.credential_refused(channel, index, of)
            end = event.now_ms() + event.CREDENTIAL_WINDOW_MS
            self._add(subject, EventClaim("reach", f"credential:{channel}:{index}", made, 1, end))

    async def write(self) -> None:
        """Write a batch of what was noted to the store. Raises `StoreAway`; then the next call writes the same again."""
        self.arrived.clear()
        if self._lost:
            log.error("alerts_dropped", count=self._lost, reason="too many wait for the store")
            self._lost = 0
        batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
        try:
            outcomes = await self._claim(batch)
        except BaseException:
            self._waiting.extendleft(reversed(batch))
            self.arrived.set()
            raise
        away = [claim for claim, outcome in zip(batch, outcomes, strict=True) if isinstance(outcome, StoreAway)]
        self._waiting.extendleft(reversed(away))
        if self._waiting:
            self.arrived.set()
        for outcome in outcomes:
            if outcome is False:
                self.dropped()
                log.error("alerts_dropped", count=1, reason="the outbox is full: does the webhook answer?")
            elif isinstance(outcome, Exception) and not isinstance(outcome, StoreAway):
                self.dropped()
                log.error("alerts_dropped", count=1, reason=str(outcome))
        if away:
            raise StoreAway("the store does not answer")

    async def read_low(self) -> None:
        """Learn which accounts are low, so that it is noticed when one of them is not any more. Raises `StoreAway`."""
        if self._threshold is None:
            return
        while page := await self._outbox.low_since(self._low_until, PAGE):
            self._low.update(account for account, _ in page)
            self._low_until = page[-1][1] + 1
            if len(page) < PAGE:
                break

    async def _claim(self, batch: list[EventClaim]) -> list[bool | BaseException]:
        """Count the events of a batch, in their order. Return for each whether there was room, or the error."""
        claims = [await self._with_reason(claim) for claim in batch]
        return await asyncio.gather(*map(self._outbox.claim, claims), return_exceptions=True)

    async def _with_reason(self, claim: EventClaim) -> EventClaim:
        """Return the event of a channel that is down with its last error."""
        if claim.operation != "begin" or claim.event is None:
            return claim
        channel = str(claim.value)
        (shown,) = await self._channels.show([channel])
        made = event.channel_down(channel, shown.last_error)
        return msgspec.structs.replace(claim, event=msgspec.structs.replace(made, timestamp=claim.event.timestamp))

    def _add(self, subject: Subject, claim: EventClaim) -> bool:
        """Let an event wait for `write`. Return whether there was room; otherwise it is not noted."""
        self.arrived.set()
        if len(self._waiting) < MAX_WAITING:
            self._waiting.append(claim)
            return True
        self._lost += 1
        self._noted.pop(subject, None)
        self.dropped()
        return False

    def _first(self, subject: Subject, level: int = 1) -> bool:
        """Return whether this level was not noted yet, and remember that it is now."""
        now = time.monotonic()
        known = self._noted.get(subject)
        if known is not None and known[0] >= level and known[1] > now:
            return False
        self._noted.pop(subject, None)
        self._noted[subject] = level, now + REPEAT_S
        if len(self._noted) > MAX_NOTED:
            del self._noted[next(iter(self._noted))]
        return True
