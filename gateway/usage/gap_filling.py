"""The filling of a gap from the files of another gateway, page by page over the store, the newest requests first.

1. **A gateway asks one that is present and has no gap at that time.** One page waits in the store at a time, so it takes a few
   megabytes there at most, and none once it is read.
2. **What is filled is no longer a gap**: after each page the gap ends earlier, and after the last one it is over.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from gateway.base.ids import arrival_ms
from gateway.base.log import log
from gateway.store.client.client import Client
from gateway.usage import queries
from gateway.usage.database import UnusableFile
from gateway.usage.gaps import LONGEST_MS, SKEW_MS, Gap
from gateway.usage.record import Record
from gateway.usage.replication import Reader, gateways_of, mark_replaced
from gateway.usage.stream import FILLED, WANTED

PAGE: Final = 2000
ASK_S: Final = 10.0
"""How long an answer may take before another gateway is asked."""
EXPIRES_S: Final = 60
MIN_MS: Final = 3 * SKEW_MS
"""For less no question is asked: a gap that others have, too, would be asked for again and again."""
AFTER_ALL_IDS: Final = "g"


class Ask(msgspec.Struct, frozen=True):
    """A question: the newest requests that arrived from `since_ms` up to `until_ms` and have an id before `before`."""

    asker: str
    since_ms: int
    until_ms: int
    before: str


class RecordPage(msgspec.Struct, frozen=True):
    """The answer to `ask`. `whole`: there are no more."""

    ask: Ask
    whole: bool
    records: list[Record]


class Filling:
    """Fills the gaps of the gateway that reads with `reader`, and answers the questions of others from its files."""

    def __init__(self, client: Client, folder: Path, installation: str, reader: Reader) -> None:
        self._client = client
        self._folder = folder
        self._own = installation
        self._reader = reader
        self._gap: Gap | None = None
        self._ask: Ask | None = None
        self._asked = -ASK_S
        self._other = ""
        self._unanswered: Counter[str] = Counter()

    async def step(self, write: Callable[[list[Record]], None]) -> bool:
        """Answer, read an answer, or ask; return whether records were written. Raises `GatewayError` and `OSError`."""
        await self._answer()
        gaps = self._reader.reading.gaps
        if self._gap not in gaps:
            self._gap = gaps[-1] if gaps else None
            self._ask = None if self._gap is None else _about(self._gap, self._own)
        if self._gap is None or self._ask is None:
            return False
        if text := await self._client.call("GETDEL", f"{FILLED}:{self._own}"):
            page = msgspec.json.decode(text, type=RecordPage)
            if page.ask == self._ask:
                write(page.records)
                await self._took(page, self._gap)
                return True
        if time.monotonic() - self._asked >= ASK_S:
            await self._ask_another(self._ask)
        return False

    async def _ask_another(self, ask: Ask) -> None:
        """Ask a gateway that was present during the gap. It has read on: no entry is removed before all present gateways have it.

        One that has a gap itself is asked for what came after it. Of several, the one is asked that left the fewest questions
        unanswered since it last answered one, and of these the one that has most.
        """
        self._asked = time.monotonic()
        others = [each for each in await gateways_of(self._client) if each.installation != self._own and each.present]
        since = {each.installation: _after_gaps(each.about.gaps, ask) for each in others}
        useful = [each for each, since_ms in since.items() if since_ms < ask.until_ms - MIN_MS]
        if useful:
            best = self._other = min(useful, key=lambda each: (self._unanswered[each], since[each]))
            self._unanswered[best] += 1
            self._ask = msgspec.structs.replace(ask, since_ms=since[best])
            await self._client.call("HSET", WANTED, best, msgspec.json.encode(self._ask))

    async def _took(self, page: RecordPage, gap: Gap) -> None:
        reading = self._reader.reading
        self._unanswered[self._other] = 0
        reading.gaps.remove(gap)
        if page.whole:
            log.warning("usage_log_gap_filled", was_missing=str(gap))
            self._gap = None
            if page.ask.since_ms > _about(gap, self._own).since_ms:
                reading.add(Gap(gap.first_ms, page.ask.since_ms))
            await asyncio.to_thread(mark_replaced, self._folder, reading.gaps)
        else:
            oldest = page.records[-1].id
            until_ms = arrival_ms(oldest) + 1
            self._ask = following = msgspec.structs.replace(page.ask, until_ms=until_ms, before=oldest)
            self._gap = Gap(gap.first_ms, max(gap.first_ms, min(gap.last_ms, until_ms)))
            reading.add(self._gap)
            await self._ask_another(following)
        await self._reader.save()

    async def _answer(self) -> None:
        text = await self._client.call("HGET", WANTED, self._own)
        if text is None:
            return
        await self._client.call("HDEL", WANTED, self._own)
        ask = msgspec.json.decode(text, type=Ask)
        if _has_gap(self._reader.reading.gaps, ask):
            return
        unusable: list[UnusableFile] = []
        found = list(islice(self._found(ask, unusable), PAGE))
        if not unusable:  # else another gateway is asked
            page = RecordPage(ask, len(found) < PAGE, found)
            await self._client.call("SET", f"{FILLED}:{ask.asker}", msgspec.json.encode(page), "EX", EXPIRES_S)

    def _found(self, ask: Ask, unusable: list[UnusableFile]) -> Iterator[Record]:
        newest = queries.select(
            self._folder, since_ms=ask.since_ms, until_ms=ask.until_ms, newest_first=True, unusable=unusable
        )
        for record in newest:
            if record.id < ask.before:
                yield record


def _about(gap: Gap, own: str) -> Ask:
    """Return the first question about a gap: also requests that arrived before it may have ended in it."""
    return Ask(own, max(0, gap.first_ms - SKEW_MS - LONGEST_MS), gap.last_ms + SKEW_MS, AFTER_ALL_IDS)


def _after_gaps(gaps: Iterable[Gap], ask: Ask) -> int:
    """Return from when on a gateway with these gaps has everything that is asked for."""
    ends = [gap.last_ms + SKEW_MS + 1 for gap in gaps if gap.touches(ask.since_ms, ask.until_ms)]
    return max([ask.since_ms, *ends])


def _has_gap(gaps: Iterable[Gap], ask: Ask) -> bool:
    return any(gap.touches(ask.since_ms, ask.until_ms) for gap in gaps)
