"""Events that an operator is alerted of: their types, what is sent, and how the store counts them."""

from __future__ import annotations

import time
from typing import Any, Final, Literal

import msgspec

from gateway.amounts import amount
from gateway.request_id import new_id, utc

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


class Event(msgspec.Struct, frozen=True):
    """What is sent, as JSON: the type, when it happened (UTC), and what depends on the type."""

    type: str
    timestamp: str
    data: dict[str, Any]


class Entry(msgspec.Struct, frozen=True):
    """An event in the outbox. `id` stays the same over all attempts. `error`: why the last one failed."""

    id: str
    type: str
    body: str
    created_ms: int
    attempts: int = 0
    error: str = ""


class Claim(msgspec.Struct, frozen=True):
    """How the store counts an event; see claim.lua. `leave` has no event."""

    operation: Literal["reach", "begin", "end", "join", "leave"]
    key: str
    event: Event | None = None
    value: str | int = ""
    window_end_ms: int = 0


def entry_of(event: Event) -> Entry:
    """Return an event as it is kept until it is sent, with an id of its own."""
    return Entry(f"msg_{new_id()}", event.type, msgspec.json.encode(event).decode(), now_ms())


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
