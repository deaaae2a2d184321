"""Now: requests as they end, the figures of the last minute, and how the gateway's processes and its store are.

One task reads the log while somebody looks, four times a second, and makes a snapshot of it: figures of the last minute, and the
newest requests. Followers wait for the next snapshot; a slow one misses some, and nothing is kept for it. So the cost
depends on neither how many look nor how they read, and a page gets four messages a second at most, whatever the gateway serves.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, tzinfo
from itertools import islice
from typing import Final

import msgspec
from aiohttp import web
from aiohttp_sse import sse_response

from gateway.admin.actions.action import Scope
from gateway.admin.actions.channels import ChannelNow
from gateway.admin.actions.times import local
from gateway.admin.pages.view import Page, View, count, share, span
from gateway.base.amounts import MICROS, amount
from gateway.base.errors import Refused, StoreAway
from gateway.base.ids import arrival_ms
from gateway.base.log import log
from gateway.base.text import counted
from gateway.domain.exchange import Outcome
from gateway.metrics.shared import SharedNumbers
from gateway.store.channels import Condition
from gateway.usage import queries
from gateway.usage.home import Home
from gateway.usage.record import Record
from gateway.usage.rollups import WELL

PING_S: Final = 15.0
CHECK_S: Final = 15.0
"""How often it is looked whether a session that follows is still one."""
SLOWEST_S: Final = 30.0
"""How long a browser may take to read a snapshot."""

POLL_S: Final = 0.25
QUIET_S: Final = 1.0
"""How long a page of a quiet gateway waits for a snapshot."""
MAX_FOLLOWERS: Final = 32
RETRY_AFTER_S: Final = 10.0
MAX_ROWS: Final = 40
NEWEST: Final = 2000
"""Requests of one snapshot that followers may choose theirs from."""

SECONDS: Final = 60
MOST_SAMPLES: Final = 500
"""Times of one second that are kept; of further requests the time counts for nothing."""
TONES: Final = {
    Condition.HEALTHY: "ok",
    Condition.FAILING: "warn",
    Condition.COOLING: "bad",
    Condition.STARTING: "warn",
    Condition.DISABLED: "none",
    Condition.NO_CREDENTIAL: "bad",
}
"""How the pages colour the condition of a channel."""


class Row(msgspec.Struct, frozen=True):
    """A request that has ended, as the page shows it."""

    id: str
    ended: str
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
    def of(cls, record: Record, zone: tzinfo) -> Row:
        """Return the row of a record."""
        return cls(
            record.id,
            local((arrival_ms(record.id) + record.duration_ms) / 1000, zone),
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


class ChannelLine(msgspec.Struct, frozen=True):
    """A channel, as the page shows it: its condition in words, and its figures of the last minutes."""

    channel: str
    condition: str
    tone: str
    calls: str
    success: str
    rate_limited: str
    first_event: str

    @classmethod
    def of(cls, shown: ChannelNow) -> ChannelLine:
        """Return the line of a channel."""
        figures = shown.figures
        return cls(
            shown.channel,
            shown.in_words,
            TONES[shown.condition],
            count(figures.calls),
            "" if figures.success is None else share(figures.success),
            count(figures.rate_limited),
            span(figures.first_event_p95_ms) or "",
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


class LiveSnapshot(msgspec.Struct, frozen=True):
    """The data that a page shows. `rows`: requests that have ended since the snapshot before, the newest first."""

    figures: Figures
    health: Health
    channels: list[ChannelLine]
    rows: list[Row]


class LiveStats:
    """Live statistics of the gateways whose log is in a folder, for all pages that follow."""

    def __init__(
        self,
        home: Home,
        numbers: Mapping[str, SharedNumbers],
        answers: Callable[[], Awaitable[bool]],
        channels: Callable[[], Awaitable[Sequence[ChannelNow]]],
    ) -> None:
        """`numbers`: what the processes of this gateway count, by their names. `answers` tells whether the store does.

        `channels` returns the channels as the store has them.
        """
        self._home = home
        self._numbers = numbers
        self._answers = answers
        self._channels_now = channels
        self._channels: list[ChannelLine] = []
        self._followers = 0
        self._task: asyncio.Task[None] | None = None
        self._minute = Minute()
        self._newest: deque[tuple[int, Record]] = deque(maxlen=NEWEST)
        self._number = 0
        self._changed = asyncio.Condition()
        self._store_ms: float | None = None
        self._stopped = False

    async def follow(self, choice: Choice, zone: tzinfo = UTC) -> AsyncGenerator[LiveSnapshot, None]:
        """Yield snapshots until nobody wants them, the first one at once. Raises `Refused` (503) where enough follow already."""
        if self._followers >= MAX_FOLLOWERS:
            raise Refused(503, "service_unavailable", "Enough follow already.", retry_after_s=RETRY_AFTER_S)
        self._followers += 1
        try:
            if self._task is None:  # nothing is known of the time since somebody followed last
                self._minute, self._number, self._channels = Minute(), 0, []
                self._newest.clear()
                self._task = asyncio.get_running_loop().create_task(self._run())
            seen = 0
            while not self._stopped:
                yield self._snapshot(choice, zone, seen)
                seen = self._number
                async with self._changed:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(QUIET_S):
                            await self._changed.wait_for(lambda: self._number != seen or self._stopped)  # noqa: B023
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
        async with self._changed:
            self._changed.notify_all()

    def _snapshot(self, choice: Choice, zone: tzinfo, seen: int) -> LiveSnapshot:
        rows: list[Row] = []
        for number, record in reversed(self._newest):
            if number <= seen or len(rows) == MAX_ROWS:
                break
            if choice.takes(record):
                rows.append(Row.of(record, zone))
        figures = self._minute.figures(int(time.time()))
        return LiveSnapshot(figures, health_of(self._numbers, self._store_ms), self._channels, rows)

    async def _run(self) -> None:
        """Read the log while somebody follows."""
        try:
            tail = await asyncio.to_thread(queries.Tail, self._home)
            known = await asyncio.to_thread(self._begin)
            asked = 0.0
            while True:
                if time.monotonic() - asked > QUIET_S:
                    asked = time.monotonic()
                    self._store_ms = (time.monotonic() - asked) * 1000 if await self._answers() else None
                    with suppress(StoreAway):
                        self._channels = [ChannelLine.of(each) for each in await self._channels_now()]
                ended = await asyncio.to_thread(tail.poll)
                self._take(record for _, record in ended if record.id not in known)
                known = frozenset() if ended else known
                async with self._changed:
                    self._changed.notify_all()
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
            self._home, names, since_ms=since_ms, unusable=[]
        ):
            counted.add(id_)
            at = (arrival_ms(id_) + (duration_ms or 0)) // 1000
            self._minute.add(at, outcome, first_byte_ms, charge or 0)
        records = queries.select(self._home, newest_first=True, unusable=[])
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
            self._minute.add(now, str(record.outcome), record.first_byte_ms, record.charge_micros)


class Minute:
    """The requests of the last minute, second by second."""

    def __init__(self) -> None:
        self._seconds: dict[int, _Second] = {}

    def add(self, at: int, outcome: str, first_byte_ms: int | None, charge_micros: int) -> None:
        """Count a request that ended at a time, in seconds since 1970."""
        second = self._seconds.get(at)
        if second is None:
            for old in [each for each in self._seconds if each < at - 2 * SECONDS]:
                del self._seconds[old]
            second = self._seconds[at] = _Second()
        second.requests += 1
        second.failed += outcome not in WELL
        second.refused += outcome == Outcome.REFUSED
        second.charge_micros += charge_micros
        if first_byte_ms is not None and len(second.first_bytes) < MOST_SAMPLES:
            second.first_bytes.append(first_byte_ms)

    def figures(self, now: int) -> Figures:
        """Return the figures of the minute before `now`, of which the last second is not over."""
        seconds = [self._seconds.get(at, _NONE) for at in range(now - SECONDS, now)]
        requests = sum(second.requests for second in seconds)
        failed = sum(second.failed for second in seconds)
        waits = sorted(wait for second in seconds for wait in second.first_bytes)
        charged = sum(second.charge_micros for second in seconds) * 60
        rate = requests / SECONDS
        return Figures(
            rate=f"{rate:.1f}" if rate < 100 else f"{rate:,.0f}",
            requests=f"{count(requests)} in the last minute",
            failed=share(failed / requests) if requests else "\u2013",
            failures=f"{count(failed)} failed, {count(sum(second.refused for second in seconds))} refused",
            trouble=bool(failed),
            first_byte=span(_at(waits, 0.5)) or "\u2013",
            slow=f"95 % within {span(_at(waits, 0.95))}" if waits else "no answer in the last minute",
            money=f"{charged / MICROS:,.2f}" if charged >= 10_000 or not charged else f"{charged / MICROS:.6f}",
            rates=[second.requests for second in seconds],
            troubles=[second.failed for second in seconds],
        )


class _Second(msgspec.Struct):
    requests: int = 0
    failed: int = 0
    refused: int = 0
    charge_micros: int = 0
    first_bytes: list[int] = []


_NONE: Final = _Second()


class Figures(msgspec.Struct, frozen=True):
    """What the cards of the page say, and the two curves: requests and failures of each second."""

    rate: str
    requests: str
    failed: str
    failures: str
    trouble: bool
    first_byte: str
    slow: str
    money: str
    rates: list[int]
    troubles: list[int]


class Health(msgspec.Struct, frozen=True):
    """How the processes and the store are, in words. `well`: nobody needs to look."""

    store: str
    store_well: bool
    workers: str
    open: str


def health_of(numbers: Mapping[str, SharedNumbers], store_ms: float | None) -> Health:
    """Return how this gateway is. `store_ms`: how long the store took to answer, None where it does not."""
    workers = [name for name in numbers if name.startswith("worker ")]
    died = sum(each.sum("children_died") for each in numbers.values())
    running = sum(numbers[name].sum("open_requests") for name in workers)
    words = counted(len(workers), "worker")
    return Health(
        store="away" if store_ms is None else f"{store_ms:.1f} ms",
        store_well=store_ms is not None,
        workers=f"{words}, {count(died)} restarted" if died else words,
        open=count(running),
    )


def _at(waits: Sequence[int], part: float) -> int | None:
    return waits[min(len(waits) - 1, int(part * len(waits)))] if waits else None


LIVE_STATS: Final = web.AppKey("live_stats", LiveStats)


async def show(view: View) -> web.StreamResponse:
    """Show the page, which follows the feed."""
    check(view)
    config = view.client.config
    return view.page("now.html", choice=_choice(view), models=list(config.models), address=config.listen)


async def feed(view: View) -> web.StreamResponse:
    """Send each snapshot of the live statistics, until the session ends."""
    check(view)
    choice = _choice(view)
    clock = asyncio.get_running_loop().time
    async with aclosing(view.request.app[LIVE_STATS].follow(choice, view.zone)) as snapshots:
        first = await anext(snapshots)
        async with sse_response(view.request, sep="\n", ping_interval=PING_S) as response:
            checked = clock()
            try:
                await response.send(msgspec.json.encode(first).decode())
                async for snapshot in snapshots:
                    if not response.is_connected():
                        break
                    if clock() - checked > CHECK_S:
                        if not await view.is_still_in():
                            await response.send("left", event="left")
                            break
                        checked = clock()
                    async with asyncio.timeout(SLOWEST_S):
                        await response.send(msgspec.json.encode(snapshot).decode())
            except TimeoutError:
                log.warning("follower_too_slow")
        return response


def _choice(view: View) -> Choice:
    asked = view.search(Choice).asked
    return Choice(asked["account"], asked["model"], asked["trouble"] in ("1", "true"))


def check(view: View) -> None:
    """Raise `Refused` (403) for somebody who may read nothing: what is shown here comes from no action."""
    if not view.may(Scope.READ):
        raise Refused(403, "scope_missing", "This needs the scope `read`.")


PAGES: Final[tuple[tuple[str, str, Page], ...]] = (("GET", "/", show), ("GET", "/now/feed", feed))
