"""The outbox of alerts in the store: what is to be sent, and what was counted in which window.

1. **An event is counted and put into the outbox by one script**, so several gateways that notice the same send it once.
2. **An event stays in the outbox until its delivery is reported.** One process at a time sends; where it dies, another one takes
   over when its lease has expired, and sends what was not reported, with the same id.
3. The outbox has at most `MOST` events. Further ones are not counted, so that they may be noticed again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

import msgspec

from gateway.alerts.event import Claim, Entry, entry_of
from gateway.store.client.client import Client, Script

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


class Taken(msgspec.Struct, frozen=True):
    """What there is to send. `entries` is None where another process sends. `pending`: all events in the outbox."""

    pending: int
    entries: list[Entry] | None


class Outbox:
    """The outbox of one store."""

    def __init__(self, client: Client, most: int = MOST) -> None:
        self._client = client
        self._most = most

    async def claim(self, claim: Claim) -> bool:
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

    async def take(self, sender: str, lease_ms: int, count: int) -> Taken:
        """Return what `sender` is to send now, if no other process has the lease. Raises `StoreAway`."""
        pending, records = await self._client.run(_TAKE, [_SENDER, _EVENTS, _DUE], [sender, lease_ms, count])
        if records is None:
            return Taken(pending, None)
        return Taken(pending, [msgspec.json.decode(record, type=Entry) for record in records])

    async def report(self, entry: Entry, outcome: Outcome, delay_ms: int = 0) -> None:
        """Write down how an attempt ended: with `again` the event is due in `delay_ms`. May be repeated. Raises `StoreAway`."""
        record = msgspec.json.encode(entry)
        await self._client.run(_REPORT, [_EVENTS, _DUE, _GIVEN_UP], [outcome, entry.id, record, delay_ms, KEPT])

    async def release(self, sender: str) -> None:
        """Let another process send. Raises `StoreAway`."""
        if await self._client.call("GET", _SENDER) == sender.encode():
            await self._client.call("DEL", _SENDER)

    async def pending(self, count: int) -> list[tuple[Entry, int]]:
        """Return events that wait, each with the time of its next attempt in ms since 1970. Raises `StoreAway`."""
        times = await self._client.call("ZRANGE", _DUE, 0, count - 1, "WITHSCORES")
        if not times:
            return []
        records = await self._client.call("HMGET", _EVENTS, *(id for id, _ in times))  # noqa: A001
        return [
            (msgspec.json.decode(record.partition(b" ")[2], type=Entry), int(at))
            for record, (_, at) in zip(records, times, strict=True)
            if record is not None
        ]

    async def given_up(self) -> list[Entry]:
        """Return the last events that were given up, the latest first. Raises `StoreAway`."""
        records = await self._client.call("LRANGE", _GIVEN_UP, 0, -1)
        return [msgspec.json.decode(record, type=Entry) for record in records]
