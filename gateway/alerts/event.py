"""Events that an operator is alerted of: their types, their contents, and the queues in the store that count and keep them.

1. **An event is counted and queued by one script**, so several gateways that notice the same send it once, and none is lost
   between the two.
2. **An event stays in a receiver's queue until that receiver accepted it.** Any process may send it; one that dies while it sends
   leaves it to the others, who send it again with the same id: an event may arrive twice.
3. A queue has at most `MOST` events. Further ones are not queued there, and where no queue has room they are not counted, so that
   they may be noticed again. The queue of a receiver that was taken out of the configuration goes after a week.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.base.ids import new_id, now_ms, utc
from gateway.store.client.client import Argument, Client, Script

LEVELS: Final = (100, 80, 50)
"""The shares of a budget, in percent, that are events."""
HOUR_MS: Final = 3_600_000
"""A credential that is refused, or a channel that fails for some accounts, for longer is an event again."""
LASTING_WINDOW_MS: Final = 7 * 86_400_000
"""A channel that is down for longer, or an account that is low for longer, is an event again."""
LATE_MS: Final = 86_400_000
"""How long after its end a budget's window is remembered, for requests that are settled then."""
ENDLESS_WINDOW_MS: Final = 365 * 86_400_000
"""For how long it is kept that a budget without an end was reached."""

MOST: Final = 10_000
KEPT: Final = 100
"""Events of a receiver that were sent or given up, and are still listed."""
KEY: Final = "gw:{alert-events}:"
"""The keys are in one hash slot of a cluster. No account's id has a hyphen."""
_CLAIM, _TAKE = (Script.load(Path(__file__).with_name(f"{name}.lua")) for name in ("claim", "take"))


class Event(msgspec.Struct, frozen=True):
    """What is sent, as JSON: the type, when it happened (UTC), and what depends on the type."""

    type: str
    timestamp: str
    data: dict[str, Any]


class OutboxEntry(msgspec.Struct, frozen=True):
    """A queued event. `id` stays the same over all attempts. `error`: why the last one failed.

    `ended_ms`: when it left the queue, 0 before.
    """

    id: str
    type: str
    body: str
    created_ms: int
    attempts: int = 0
    error: str = ""
    ended_ms: int = 0


class EventClaim(msgspec.Struct, frozen=True):
    """An event that counts once in a window, by `key`. A window of 0: what the key stands for has ended, see claim.lua."""

    key: str
    event: Event | None = None
    window_ms: int = 0


def entry_of(event: Event) -> OutboxEntry:
    """Return an event as it is kept until it is sent, with an id of its own."""
    return OutboxEntry(f"msg_{new_id()}", event.type, msgspec.json.encode(event).decode(), now_ms())


def event(type: str, message: str, **data: Any) -> Event:  # noqa: A002 - the field's name
    """Return an event that happens now, with a sentence for people."""
    return Event(type, utc(now_ms()), {"message": message, **data})


class DueEvent(msgspec.Struct, frozen=True):
    """An event to send, and the record that the queue knows it by."""

    record: bytes
    entry: OutboxEntry


class Outbox:
    """The queue of one receiver in a store. That of the first receiver has no name."""

    def __init__(self, client: Client, receiver: str = "", *, most: int = MOST) -> None:
        self._client = client
        self._most = most
        self._queue = _queue_of(receiver)
        self._ended = f"{self._queue}:ended"

    async def claim(self, claim: EventClaim, receivers: Sequence[str] = ("",)) -> bool:
        """Count an event, and queue it for these receivers if it is the first of its window. Return False if no queue has room.

        May be repeated. Raises `StoreAway`.
        """
        record = b"" if claim.event is None else msgspec.json.encode(entry_of(claim.event))
        arguments: list[Argument] = [claim.window_ms, record, now_ms(), self._most, LASTING_WINDOW_MS]
        return bool(await self._client.run(_CLAIM, [KEY + claim.key, *map(_queue_of, receivers)], arguments))

    async def take(self, count: int, lease_ms: int) -> tuple[int, list[DueEvent]]:
        """Return how many events are queued, and those to send now. Nobody else gets these for `lease_ms`. Raises `StoreAway`."""
        now = now_ms()
        queued, records = await self._client.run(_TAKE, [self._queue], [now, now + lease_ms, count])
        return queued, [DueEvent(record, msgspec.json.decode(record, type=OutboxEntry)) for record in records]

    async def report(self, taken: DueEvent, tried: OutboxEntry, again_in_s: float | None = None) -> None:
        """Write down how an attempt ended: it is due again in so many seconds, else it was sent or given up. Raises `StoreAway`."""
        commands: list[tuple[Argument, ...]] = []
        if again_in_s is not None:
            commands.append(("ZADD", self._queue, now_ms() + round(again_in_s * 1000), msgspec.json.encode(tried)))
        else:
            ended = msgspec.json.encode(msgspec.structs.replace(tried, ended_ms=now_ms()))
            commands += [("LPUSH", self._ended, ended), ("LTRIM", self._ended, 0, KEPT - 1)]
            commands.append(("PEXPIRE", self._ended, 4 * LASTING_WINDOW_MS))
        commands.append(
            ("ZREM", self._queue, taken.record)
        )  # the last: an event that is there twice is sent twice, none is lost
        await asyncio.gather(*(self._client.submit(*command) for command in commands))

    async def pending(self, count: int) -> list[tuple[OutboxEntry, int]]:
        """Return queued events, each with the time of its next attempt in ms since 1970. Raises `StoreAway`."""
        records = await self._client.call("ZRANGE", self._queue, 0, count - 1, "WITHSCORES")
        return [(msgspec.json.decode(record, type=OutboxEntry), int(at)) for record, at in records]

    async def ended(self) -> list[OutboxEntry]:
        """Return the last events that were sent, or given up with an error, the latest first. Raises `StoreAway`."""
        records = await self._client.call("LRANGE", self._ended, 0, -1)
        return [msgspec.json.decode(record, type=OutboxEntry) for record in records]


def _queue_of(receiver: str) -> str:
    return f"{KEY}queue:{receiver}" if receiver else f"{KEY}queue"
