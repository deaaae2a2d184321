"""Events that an operator is alerted of: their types, their contents, and the outbox of the store that counts and keeps them.

1. **An event is counted and put into the outbox by one script**, so several gateways that notice the same send it once.
2. **An event stays in the outbox until its delivery is reported.** One process at a time sends; where it dies, another one takes
   over when its lease has expired, and sends what was not reported, with the same id.
3. The outbox has at most `MOST` events. Further ones are not counted, so that they may be noticed again.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from gateway.base.amounts import amount
from gateway.base.ids import new_id, utc
from gateway.store.client.client import Client, Script

MAX_ERROR: Final = 200
LEVELS: Final = (100, 80, 50)
"""The shares of a budget, in percent, that are events."""
CREDENTIAL_WINDOW_MS: Final = 3_600_000
CHANNEL_WINDOW_MS: Final = 7 * 86_400_000
"""A channel that is down for longer is an event again."""
LATE_MS: Final = 86_400_000
"""How long after its end a budget's window is remembered, for requests that are settled then."""
ENDLESS_WINDOW_MS: Final = 365 * 86_400_000
"""For how long it is kept that a budget without an end was reached."""

MOST: Final = 10_000
KEPT: Final = 20
"""Events that were given up and are still listed."""
KEY: Final = "gw:{alert-events}:"
"""The keys are in one hash slot of a cluster. No account's id has a hyphen."""
LOW: Final = f"{KEY}low"
"""The accounts whose balance is low, with the time since when."""
Outcome = Literal["sent", "again", "given_up"]
"""How an attempt ended. `again`: it failed, and is to be repeated."""
_EVENTS, _DUE, _SENDER, _GIVEN_UP = (f"{KEY}{name}" for name in ("events", "due", "sender", "given_up"))
_CLAIM, _TAKE, _REPORT = (Script.load(Path(__file__).with_name(f"{name}.lua")) for name in ("claim", "take", "report"))


class Event(msgspec.Struct, frozen=True):
    """What is sent, as JSON: the type, when it happened (UTC), and what depends on the type."""

    type: str
    timestamp: str
    data: dict[str, Any]


class OutboxEntry(msgspec.Struct, frozen=True):
    """An event in the outbox. `id` stays the same over all attempts. `error`: why the last one failed."""

    id: str
    type: str
    body: str
    created_ms: int
    attempts: int = 0
    error: str = ""


class EventClaim(msgspec.Struct, frozen=True):
    """How the store counts an event; see claim.lua. `leave` has no event."""

    operation: Literal["reach", "begin", "end", "join", "leave"]
    key: str
    event: Event | None = None
    value: str | int = ""
    window_end_ms: int = 0


def entry_of(event: Event) -> OutboxEntry:
    """Return an event as it is kept until it is sent, with an id of its own."""
    return OutboxEntry(f"msg_{new_id()}", event.type, msgspec.json.encode(event).decode(), now_ms())


def now_ms() -> int:
    """Return UTC as milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def event(type: str, message: str, **data: Any) -> Event:  # noqa: A002 - the field's name
    """Return an event that happens now, with a sentence for people."""
    return Event(type, utc(now_ms()), {"message": message, **data})


def budget_reached(
    account: str, token_id: str, window: str, used: int, limit: int, level: int, ends_at_ms: int | None
) -> Event:
    """Return the event for a share of a budget. The budget `requests` counts requests, all others count micros."""
    owner = f"token {token_id} of account {account}" if token_id else f"account {account}"
    numbers = f"{used} of {limit}" if window == "requests" else f"{amount(used)} of {amount(limit)}"
    return event(
        "budget.reached",
        f"the budget `{window}` of {owner} has reached {level} %: {numbers}",
        account=account,
        token=token_id or None,
        window=window,
        percent=level,
        used=used,
        limit=limit,
        unit="requests" if window == "requests" else "micros",
        ends_at=None if ends_at_ms is None else utc(ends_at_ms),
    )


def low_balance(account: str, available: int, threshold: int) -> Event:
    """Return the event for an account that may spend less than the threshold."""
    text = f"account {account} may spend {amount(available)} more, less than {amount(threshold)}"
    return event("balance.low", text, account=account, available_micros=available, threshold_micros=threshold)


def channel_down(channel: str, error: str = "") -> Event:
    """Return the event for a channel that the circuit breaker has closed for all accounts. `error`: its last one."""
    error = error[:MAX_ERROR]
    return event(
        "channel.down", f"channel {channel} is not called after {error or 'failures'}", channel=channel, error=error
    )


def channel_up(channel: str) -> Event:
    """Return the event for a channel that works again."""
    return event("channel.up", f"channel {channel} works again", channel=channel)


def credential_refused(channel: str, index: int, of: int) -> Event:
    """Return the event for a credential that an upstream refused: its index in the list, counted from 0."""
    text = f"the upstream of channel {channel} refuses credential {index} (counted from 0) of {of}"
    return event("credential.refused", text, channel=channel, index=index, of=of)


def store_away(gateway: str) -> Event:
    """Return the event for a gateway whose store does not answer."""
    return event("store.away", f"the store does not answer gateway {gateway}: requests get 503", gateway=gateway)


def store_back(gateway: str) -> Event:
    """Return the event for a gateway whose store answers again."""
    return event("store.back", f"the store answers gateway {gateway} again", gateway=gateway)


def test(gateway: str) -> Event:
    """Return the event that `gateway alerts test` sends."""
    return event("test", f"a test of alerts from gateway {gateway}", gateway=gateway)


class OutboxBatch(msgspec.Struct, frozen=True):
    """What there is to send. `entries` is None where another process sends. `pending`: all events in the outbox."""

    pending: int
    entries: list[OutboxEntry] | None


class Outbox:
    """The outbox of one store."""

    def __init__(self, client: Client, most: int = MOST) -> None:
        self._client = client
        self._most = most

    async def claim(self, claim: EventClaim) -> bool:
        """Count an event, and put it into the outbox if it is the first of its window. Return False if the outbox is full.

        May be repeated. Raises `StoreAway`.
        """
        entry = None if claim.event is None else entry_of(claim.event)
        id, record = ("", b"") if entry is None else (entry.id, msgspec.json.encode(entry))  # noqa: A001
        arguments = [claim.operation, claim.value, claim.window_end_ms, id, record, self._most]
        return bool(await self._client.run(_CLAIM, [KEY + claim.key, _EVENTS, _DUE], arguments) != -1)

    async def low_since(self, moment_ms: int, count: int) -> list[tuple[str, int]]:
        """Return the accounts that are low since this time or later, with that time, the earliest first. Raises `StoreAway`."""
        limits = ("BYSCORE", "LIMIT", 0, count, "WITHSCORES")
        return [
            (account.decode(), int(score))
            for account, score in await self._client.call("ZRANGE", LOW, moment_ms, "+inf", *limits)
        ]

    async def take(self, sender: str, lease_ms: int, count: int) -> OutboxBatch:
        """Return what `sender` is to send now, if no other process has the lease. Raises `StoreAway`."""
        pending, records = await self._client.run(_TAKE, [_SENDER, _EVENTS, _DUE], [sender, lease_ms, count])
        if records is None:
            return OutboxBatch(pending, None)
        return OutboxBatch(pending, [msgspec.json.decode(record, type=OutboxEntry) for record in records])

    async def report(self, entry: OutboxEntry, outcome: Outcome, delay_ms: int = 0) -> None:
        """Write down how an attempt ended: with `again` the event is due in `delay_ms`. May be repeated. Raises `StoreAway`."""
        record = msgspec.json.encode(entry)
        await self._client.run(_REPORT, [_EVENTS, _DUE, _GIVEN_UP], [outcome, entry.id, record, delay_ms, KEPT])

    async def release(self, sender: str) -> None:
        """Let another process send. Raises `StoreAway`."""
        if await self._client.call("GET", _SENDER) == sender.encode():
            await self._client.call("DEL", _SENDER)

    async def pending(self, count: int) -> list[tuple[OutboxEntry, int]]:
        """Return events that wait, each with the time of its next attempt in ms since 1970. Raises `StoreAway`."""
        times = await self._client.call("ZRANGE", _DUE, 0, count - 1, "WITHSCORES")
        if not times:
            return []
        records = await self._client.call("HMGET", _EVENTS, *(id for id, _ in times))  # noqa: A001
        return [
            (msgspec.json.decode(record.partition(b" ")[2], type=OutboxEntry), int(at))
            for record, (_, at) in zip(records, times, strict=True)
            if record is not None
        ]

    async def given_up(self) -> list[OutboxEntry]:
        """Return the last events that were given up, the latest first. Raises `StoreAway`."""
        records = await self._client.call("LRANGE", _GIVEN_UP, 0, -1)
        return [msgspec.json.decode(record, type=OutboxEntry) for record in records]
