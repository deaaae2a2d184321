"""The pulse of a gateway: what ended in the last minute, followed once for all pages that show it.

One task reads the log while somebody looks, four times a second, and makes a beat of it: figures of the last minute, and the newest
requests. Followers wait for the next beat; one that reads slowly misses beats, and nothing is kept for it. So the cost depends on
neither how many look nor how they read, and a page gets four messages a second at most, whatever the gateway serves.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from gateway.admin.pages.figures import SECONDS, Ended, Figures, Health, Minute, health_of
from gateway.amounts import amount
from gateway.errors import Refused
from gateway.exchange import Outcome
from gateway.log import Logger
from gateway.metrics.shared import SharedNumbers
from gateway.request_id import arrival_ms
from gateway.usage import queries
from gateway.usage.record import Record

POLL_S: Final = 0.25
QUIET_S: Final = 1.0
"""How long a page of a quiet gateway waits for a beat."""
MAX_FOLLOWERS: Final = 32
RETRY_AFTER_S: Final = 10.0
MAX_ROWS: Final = 40
NEWEST: Final = 2000
"""Requests of one beat that followers may choose theirs from."""

log = Logger("gateway.admin.pages.pulse")


class Row(msgspec.Struct, frozen=True):
    """A request that has ended, as the page shows it."""

    id: str
    at: str
    account: str
    model: str
    channel: str
    outcome: str
    code: str
    status: int
    first_byte_ms: int | None
    duration_ms: int
    charge: str

    @classmethod
    def of(cls, record: Record) -> Row:
        """Return the row of a record."""
        return cls(
            record.id,
            record.arrived_at,
            record.account,
            record.model or record.requested_model,
            record.channel,
            str(record.outcome or ""),
            record.error_code,
            record.status,
            record.first_byte_ms,
            record.duration_ms,
            amount(record.charge_micros),
        )


class Choice(msgspec.Struct, frozen=True):
    """Which requests somebody wants to see. `trouble`: only those that were neither completed nor refused."""

    account: str = ""
    model: str = ""
    trouble: bool = False

    def takes(self, record: Record) -> bool:
        """Return whether a request is one of them."""
        return (
            self.account in ("", record.account)
            and self.model in ("", record.model)
            and not (self.trouble and record.outcome in (Outcome.COMPLETED, Outcome.REFUSED))
        )


class Beat(msgspec.Struct, frozen=True):
    """What a page shows. `rows`: requests that have ended since the beat before, the newest first."""

    figures: Figures
    health: Health
    rows: list[Row]


class Pulse:
    """The pulse of the gateways whose log is in a folder."""

    def __init__(
        self, folder: Path, numbers: Mapping[str, SharedNumbers], answers: Callable[[], Awaitable[bool]]
    ) -> None:
        """`numbers`: what the processes of this gateway count, by their names. `answers` tells whether the store does."""
        self._folder = folder
        self._numbers = numbers
        self._answers = answers
        self._followers = 0
        self._task: asyncio.Task[None] | None = None
        self._minute = Minute()
        self._newest: deque[tuple[int, Record]] = deque(maxlen=NEWEST)
        self._number = 0
        self._beaten = asyncio.Condition()
        self._store_ms: float | None = None
        self._stopped = False

    async def follow(self, choice: Choice) -> AsyncGenerator[Beat, None]:
        """Yield beats until nobody wants them, first one with what is known. Raises `Refused` (503) where enough follow already."""
        if self._followers >= MAX_FOLLOWERS:
            raise Refused(503, "service_unavailable", "Enough follow already.", retry_after_s=RETRY_AFTER_S)
        self._followers += 1
        try:
            if self._task is None:
                self._task = asyncio.get_running_loop().create_task(self._run())
            seen = 0
            while not self._stopped:
                yield self._beat(choice, seen)
                seen = self._number
                async with self._beaten:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(QUIET_S):
                            await self._beaten.wait_for(lambda: self._number != seen or self._stopped)  # noqa: B023
        finally:
            self._followers -= 1
            if not self._followers and self._task is not None:
                self._task.cancel()
                self._task = None

    async def stop(self, _: object = None) -> None:
        """End all that follow."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
        async with self._beaten:
            self._beaten.notify_all()

    def _beat(self, choice: Choice, seen: int) -> Beat:
        rows: list[Row] = []
        for number, record in reversed(self._newest):
            if number <= seen or len(rows) == MAX_ROWS:
                break
            if choice.takes(record):
                rows.append(Row.of(record))
        return Beat(self._minute.figures(int(time.time())), health_of(self._numbers, self._store_ms), rows)

    async def _run(self) -> None:
        """Read the log while somebody follows."""
        self._minute, self._number = Minute(), 0
        self._newest.clear()
        try:
            tail = await asyncio.to_thread(queries.Tail, self._folder)
            known = await asyncio.to_thread(self._begin)
            asked = 0.0
            while True:
                if time.monotonic() - asked > QUIET_S:
                    asked = time.monotonic()
                    self._store_ms = (time.monotonic() - asked) * 1000 if await self._answers() else None
                ended = await asyncio.to_thread(tail.poll)
                self._take(record for _, record in ended if record.id not in known)
                known = frozenset() if ended else known
                async with self._beaten:
                    self._beaten.notify_all()
                await asyncio.sleep(POLL_S)
        except Exception as error:
            log.error("pulse_failed", exc_info=error)
            self._task = None  # whoever comes next begins anew

    def _begin(self) -> frozenset[str]:
        """Take up the minute before, and the last requests before; return the ids of what was counted."""
        names = ("id", "duration_ms", "outcome", "first_byte_ms", "charge_micros")
        since_ms = int((time.time() - SECONDS) * 1000)
        counted = set()
        for id_, duration_ms, outcome, first_byte_ms, charge in queries.rows(
            self._folder, names, since_ms=since_ms, unusable=[]
        ):
            counted.add(id_)
            at = (arrival_ms(id_) + (duration_ms or 0)) // 1000
            self._minute.add(Ended(at, outcome, first_byte_ms, charge or 0))
        records = queries.select(self._folder, newest_first=True, unusable=[])
        last = list(islice((record for record in records if record.outcome is not None), MAX_ROWS))
        for record in reversed(last):
            self._number += 1
            self._newest.append((self._number, record))
            counted.add(record.id)
        return frozenset(counted)

    def _take(self, records: Iterable[Record]) -> None:
        now = int(time.time())
        for record in records:
            self._number += 1
            self._newest.append((self._number, record))
            self._minute.add(Ended(now, str(record.outcome), record.first_byte_ms, record.charge_micros))
