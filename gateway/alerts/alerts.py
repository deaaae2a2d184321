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
from contextlib import suppress
from typing import Final

import msgspec

from gateway.alerts import event
from gateway.alerts.event import Event, EventClaim, Outbox
from gateway.base.amounts import MICROS, amount
from gateway.base.errors import StoreError
from gateway.base.ids import now_ms, utc
from gateway.base.log import log
from gateway.base.text import counted
from gateway.config.schema import AlertSettings
from gateway.store.accounts import Accounts
from gateway.store.channels import Channels, ChannelStatus, Condition
from gateway.store.client.client import Client

MAX_WAITING: Final = 10_000
"""Events in memory that the store has not accepted yet."""
MAX_NOTED: Final = 20_000
MAX_ERROR: Final = 200
REPEAT_S: Final = 300.0
"""How long what was noted is not noted again. An account that recovered and is low again may be noticed so much later."""
UP_AFTER_S: Final = 10.0
"""How long a channel must work until it is up again: one that fails again and again is not an event each time."""


class Alerts:
    """The alerts of one process. `dropped` is called for each event that finds no room."""

    def __init__(self, client: Client, channels: Channels, settings: AlertSettings | None) -> None:
        self._outbox = Outbox(client)
        self._accounts = Accounts(client)
        self._channels = channels
        self._waiting: deque[EventClaim] = deque()
        self._noted: dict[str, tuple[str | int, float]] = {}
        self._healthy_since: dict[str, float] = {}
        self._lost = 0
        self.dropped: Callable[[], None] = lambda: None
        self.up_after_s = UP_AFTER_S
        self.arrived = asyncio.Event()
        """Set while there is something to write."""
        self.use(settings)

    def use(self, settings: AlertSettings | None) -> None:
        """Follow these settings from now on; None: note nothing."""
        self._receivers = {} if settings is None else settings.receivers
        self._kinds = frozenset[str](kind for receiver in self._receivers.values() for kind in receiver.events)
        low = settings.low_balance if settings is not None and "low_balance" in self._kinds else None
        self._threshold = None if low is None else int(low * MICROS)

    def budget(
        self, account: str, token_id: str, window: str, used: int, limit: int, *, ends_at_ms: int | None = None
    ) -> None:
        """Note how much of a budget is used after a settlement, as the store returned it.

        `token_id`: empty for the account's own budget. `window`: the budget's name, unique for its owner, such as `month`.
        `ends_at_ms`: when the window ends, None for never.
        """
        if 2 * used < limit or "budget" not in self._kinds:
            return
        share = used * 100 // limit
        level = next(level for level in event.LEVELS if share >= level)
        key = f"budget:{account}:{token_id}:{window}:{limit}:{ends_at_ms or 0}"
        if self._first(key, level):
            left = event.ENDLESS_WINDOW_MS if ends_at_ms is None else max(0, ends_at_ms - now_ms()) + event.LATE_MS
            owner = f"token {token_id} of account {account}" if token_id else f"account {account}"
            unit = "requests" if window == "requests" else "micros"
            numbers = f"{used} of {limit}" if unit == "requests" else f"{amount(used)} of {amount(limit)}"
            made = event.event(
                "budget.reached",
                f"the budget `{window}` of {owner} has reached {level} %: {numbers}",
                account=account,
                token=token_id or None,
                window=window,
                percent=level,
                used=used,
                limit=limit,
                unit=unit,
                ends_at=None if ends_at_ms is None else utc(ends_at_ms),
            )
            self._add(key, EventClaim(f"{key}:{level}", made, left))

    def balance(self, account: str, available: int) -> None:
        """Note what an account may still spend, in micros: its balance and credit line, without what is held at the moment."""
        threshold = self._threshold
        if threshold is None:
            return
        state = "low" if available < threshold else "above"
        noted = self._noted.get(account)
        if noted is not None and noted[0] is state and noted[1] > time.monotonic():  # as `_first`, which is slower
            return
        self._first(account, state)
        key = f"low:{account}"
        if state == "above":  # also where this process never saw it low: another one may have
            self._add(account, EventClaim(key))
        else:
            text = f"account {account} may spend {amount(available)} more, less than {amount(threshold)}"
            amounts = {"available_micros": available, "threshold_micros": threshold}
            made = event.event("balance.low", text, account=account, **amounts)
            self._add(account, EventClaim(key, made, event.LASTING_WINDOW_MS))

    def channel_states(self, statuses: Mapping[str, ChannelStatus]) -> None:
        """Note which channels fail for some accounts, which the circuit breaker has closed for all, and which of them work again.

        To be called whenever the status is known, at least every few seconds.
        """
        if "channel" not in self._kinds:
            return
        now = time.monotonic()
        for name, status in statuses.items():
            key = f"channel:{name}"
            failing = sum(account.failing and account.firm for account in status.accounts.values())
            if status.shown is Condition.FAILING and failing and self._first(f"failing:{name}", "failing"):
                error = status.error[:MAX_ERROR]
                text = f"channel {name} fails for {counted(failing, 'account')}: {error or 'no error known'}"
                made = event.event("channel.failing", text, channel=name, accounts=failing, error=error)
                self._add(f"failing:{name}", EventClaim(f"failing:{name}", made, event.HOUR_MS))
            if status.shown in (Condition.HEALTHY, Condition.FAILING):
                if now - self._healthy_since.setdefault(name, now) >= self.up_after_s and self._first(key, "up"):
                    made = event.event("channel.up", f"channel {name} works again", channel=name)
                    self._add(key, EventClaim(key, made))
                continue
            self._healthy_since.pop(name, None)
            down = status.firm or status.shown is Condition.NO_CREDENTIAL
            if down and status.condition is not Condition.DISABLED and self._first(key, "down"):
                self._add(key, EventClaim(key, _down(name), event.LASTING_WINDOW_MS))

    def credential_refused(self, channel: str, number: int, of: int, spent: bool = False) -> None:
        """Note that an upstream refused a credential: the one with this number, of so many. `spent`: it rests until it is tried."""
        key = f"credential:{channel}:{number}"
        if "credential" in self._kinds and self._first(key, "spent" if spent else "refused"):
            text = f"the upstream of channel {channel} refuses credential {number} of {of}"
            if spent:
                text += (
                    f": nothing is left to spend. It rests until `gateway channels credential {channel} {number} try`"
                )
            made = event.event("credential.refused", text, channel=channel, number=number, of=of, spent=spent)
            key = f"{key}:spent" if spent else key
            self._add(key, EventClaim(key, made, event.HOUR_MS))

    async def write(self) -> None:
        """Write what was noted to the store, in its order. Raises `StoreAway`; then the next call writes the rest."""
        if self._lost:
            log.error("alerts_dropped", count=self._lost, reason="too many wait for the store")
            self._lost = 0
        while self._waiting:  # one after the other: requests use the same connection
            claim = self._waiting[0]
            if claim.event is not None and claim.event.type == "channel.down":
                claim = msgspec.structs.replace(claim, event=await self._with_reason(claim.event))
            if not await self._claim(claim):
                self.dropped()
                log.error("alerts_dropped", count=1, reason="the queue is full: does the webhook answer?")
            self._waiting.popleft()
        self.arrived.clear()

    async def tell(self, happened: Event, key: str) -> None:
        """Queue an event that nobody else notices, once for this key in a week. Raises `StoreAway`."""
        if _kind_of(happened) in self._kinds:
            await self._claim(EventClaim(key, happened, event.LASTING_WINDOW_MS))

    async def _claim(self, claim: EventClaim) -> bool:
        """Count an event, and queue it with the account's group and external id. Return False if no queue has room for it."""
        if claim.event is None:
            return await self._outbox.claim(claim)
        happened, group = claim.event, None
        if named := happened.data.get("account"):
            with suppress(StoreError):  # one that cannot be read has no group
                if (account := await self._accounts.get(named)) is not None:
                    group = account.group
                    data = happened.data | {"group": group, "external_id": account.external_id or None}
                    happened = msgspec.structs.replace(happened, data=data)
        receivers = [
            name
            for name, receiver in self._receivers.items()
            if _kind_of(happened) in receiver.events and (not receiver.groups or group in receiver.groups)
        ]
        return not receivers or await self._outbox.claim(msgspec.structs.replace(claim, event=happened), receivers)

    async def _with_reason(self, down: Event) -> Event:
        """Return the event of a channel that is down with its last error."""
        channel = down.data["channel"]
        (shown,) = await self._channels.show([channel])
        return msgspec.structs.replace(_down(channel, shown.last_error), timestamp=down.timestamp)

    def _add(self, key: str, claim: EventClaim) -> None:
        """Let an event wait for `write`. Without room it is not noted."""
        self.arrived.set()
        if len(self._waiting) < MAX_WAITING:
            self._waiting.append(claim)
            return
        self._lost += 1
        self._noted.pop(key, None)
        self.dropped()

    def _first(self, key: str, state: str | int) -> bool:
        """Return whether this state was not noted yet, or not lately, and remember that it is now."""
        now = time.monotonic()
        known = self._noted.get(key)
        if known is not None and known[0] == state and known[1] > now:
            return False
        self._noted.pop(key, None)
        self._noted[key] = state, now + REPEAT_S
        if len(self._noted) > MAX_NOTED:
            del self._noted[next(iter(self._noted))]
        return True


def _down(channel: str, error: str = "") -> Event:
    """Return the event for a channel that the circuit breaker has closed for all accounts. `error`: its last one."""
    error = error[:MAX_ERROR]
    text = f"channel {channel} is not called after {error or 'failures'}"
    return event.event("channel.down", text, channel=channel, error=error)


def _kind_of(happened: Event) -> str:
    kind = happened.type.partition(".")[0]
    return "low_balance" if kind == "balance" else kind
