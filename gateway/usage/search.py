"""The search for one request: in the files, among the entries that are not in them yet, and in ClickHouse; and who was not asked.

That a request never arrived may be said only where `SearchResult.unasked` is empty, too: `Completeness` names the gateways of the
store that may know of it.

The store itself searches among the entries of the stream that the sink has not written yet, a page at a time, and returns only
those that name the request: a page takes it a few milliseconds, and other calls are served between two pages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from gateway.base.ids import arrival_ms, now_ms
from gateway.store.client.client import Client, Script
from gateway.usage import gaps, queries
from gateway.usage.database import FilesUnusable, UnusableFile
from gateway.usage.gaps import LONGEST_MS, SETTLED_MS, Gap, Reading, held, is_before, ms_of
from gateway.usage.record import Record, decode
from gateway.usage.replication import FIRST, PeerGateway, away_of, gateways_of, position_of, unknown_to_store
from gateway.usage.stream import LATE, STREAM, TRIMMED, Spool, short

if TYPE_CHECKING:
    from gateway.usage.clickhouse import ClickHouse

PAGE: Final = 200
MAX_CLOCK_STEP_MS: Final = 3_660_000
"""How much later than by the time in its id a request's entries may be: the ids of a stream never go back with the clock."""
MAX_CLOCK_SKEW_MS: Final = 60_000

_SEARCH: Final = Script(
    "search",
    """
local found, page = {}, redis.call("XRANGE", KEYS[1], ARGV[1], ARGV[2], "COUNT", ARGV[3])
for _, entry in ipairs(page) do
  local line = entry[2][2]
  if line and string.find(line, ARGV[4], 1, true) then found[#found + 1] = line end
end
return {#page == tonumber(ARGV[3]) and page[#page][1] or "", found}
""",
)

_COUNT: Final = Script(
    "count",
    """
local page = redis.call("XRANGE", KEYS[1], ARGV[1], "+", "COUNT", ARGV[2])
return {#page, #page > 0 and page[#page][1] or ""}
""",
)

FORGET: Final = "`gateway gateways forget"


class SearchResult(msgspec.Struct, frozen=True):
    """What is known of a request. `unasked` has a sentence for each reason why more may be known elsewhere: of one without a
    `record` that it arrived, of one whose record is open how it ended.
    """

    record: Record | None
    unasked: list[str] = []


class Search:
    """Searches for requests of all gateways of the store. `clickhouse` has those that are too old for the files."""

    def __init__(
        self, client: Client, folder: Path, installation: str, longest_ms: int, clickhouse: ClickHouse | None
    ) -> None:
        self._folder = folder
        self._clickhouse = clickhouse
        self.waiting = Waiting(client, installation, longest_ms)
        self.completeness = Completeness(client, folder, installation)

    async def ask(self, id: str, account: str | None = None) -> SearchResult:  # noqa: A002 - the field's name
        """Return a request's record as far as it is known, or who else may know of it.

        With `account`, return only that account's: a record without one (refused before an account was found, or not yet
        ended) is for operators alone. Raises `StoreAway` where the store is needed and does not answer.
        """
        record, unusable = await self._look(id)
        if record is None or account not in (None, record.account):
            # What the other gateways hold is asked first: what they hand over afterwards is found by the second search.
            known = await self.completeness.known()
            record, unusable = await self._look(id)
        if record is None or account not in (None, record.account):
            # A caller learns the same of a request of another account as of one that is nowhere. An arrival has no account: whose
            # request it is, and how it ended, another gateway may know.
            return SearchResult(None, [*map(str, unusable), *known.unasked(id, ended=account is not None)])
        if record.outcome:
            return SearchResult(record)
        return SearchResult(record, [*map(str, unusable), *(await self.completeness.known()).may_have_end(record)])

    async def find(self, id: str) -> Record | None:  # noqa: A002
        """Return a request's record as far as it is known here. Raises `StoreAway`, also for a file that cannot be read."""
        record, unusable = await self._look(id)
        if record is None and unusable:
            raise FilesUnusable(str(unusable[0]))
        return record

    async def _look(self, id: str) -> tuple[Record | None, list[UnusableFile]]:  # noqa: A002
        """Return a request's record as far as it is known here, and the error of a file that may have it, or its end."""
        unusable: list[UnusableFile] = []
        try:
            record = await asyncio.to_thread(queries.find, self._folder, id)
        except UnusableFile as error:
            record = None
            unusable.append(error)
        if record is None or record.outcome is None:
            waiting = await self.waiting.find(id)
            if not unusable and (waiting is None or waiting.outcome is None):
                # The sink writes an entry before it removes it: one that left the stream meanwhile is in the files by now.
                waiting = await asyncio.to_thread(queries.find, self._folder, id) or waiting
            record = waiting
        if record is None and self._clickhouse is not None:
            record = await self._clickhouse.find(id)
        return record, unusable


class Waiting:
    """The entries that the sink of one gateway has not written yet. `longest_ms`: how long a request may take to end."""

    def __init__(self, client: Client, installation: str, longest_ms: int) -> None:
        self._client = client
        self._installation = installation
        self._longest_ms = longest_ms
        self._turn = asyncio.Lock()

    async def find(self, id: str) -> Record | None:  # noqa: A002 - the field's name
        """Return the end of a request if it waits here, else its arrival. Raises `StoreAway`."""
        try:
            arrived = arrival_ms(id)
        except ValueError:
            return None
        async with self._turn:  # one search at a time in a process
            return await self._search(STREAM, id, *await self._range(arrived))

    async def _search(self, stream: str, id: str, start: str, last: str) -> Record | None:  # noqa: A002
        arrival: Record | None = None
        while start:
            cursor, lines = await self._client.run(_SEARCH, [stream], [start, last, PAGE, id])
            for line in lines:
                record = _decoded(line)
                if record is not None and record.id == id:
                    if record.outcome is not None:
                        return record
                    arrival = record
            start = f"({cursor.decode()}" if cursor else ""
        return arrival

    async def count(self) -> int:
        """Return how many entries the sink has not written yet. Raises `StoreAway`."""
        total = 0
        start = f"({await position_of(self._client, self._installation) or FIRST}"
        while start:
            found, last = await self._client.run(_COUNT, [STREAM], [start, PAGE])
            total += found
            start = f"({last.decode()}" if found == PAGE else ""
        return int(total)

    async def _range(self, arrived_ms: int) -> tuple[str, str]:
        """Return between which ids the entries of a request may be that the sink has not written."""
        position = await position_of(self._client, self._installation) or FIRST
        start, last = self._times(arrived_ms)
        late = await self._client.call("ZRANGE", LATE, ms_of(position) - MAX_CLOCK_SKEW_MS, "+inf", "BYSCORE")
        if any(int(note.partition(b":")[0]) <= arrived_ms for note in late):
            return f"({position}", "+"
        newest = await self._client.call("XREVRANGE", STREAM, "+", "-", "COUNT", 1)
        if newest and ms_of(newest[0][0].decode()) > now_ms() + MAX_CLOCK_SKEW_MS:
            last = "+"  # the store's clock was ahead: until it is there again, all entries have ids of that time
        return (f"({position}" if ms_of(position) >= int(start) else start), last

    def _times(self, arrived_ms: int) -> tuple[str, str]:
        """Return between which ids the entries of a request are, by the times at which they are written."""
        return str(max(0, arrived_ms - MAX_CLOCK_SKEW_MS)), str(arrived_ms + self._longest_ms + MAX_CLOCK_STEP_MS)


def _decoded(line: bytes) -> Record | None:
    """Return a record; None for an entry that the sink will set aside."""
    try:
        return decode(line)
    except msgspec.MsgspecError:
        return None


class HandedOver(msgspec.Struct, frozen=True):
    """What the gateways of the store have handed over, at one moment: `gaps` of this one, and the others.

    `unread`: why this gateway's own records are not all in its files.
    """

    gaps: list[Gap]
    others: list[PeerGateway]
    unread: list[str]

    def unasked(self, id: str, *, ended: bool) -> list[str]:  # noqa: A002 - the field's name
        """Return a sentence for each reason why more may be known elsewhere of a request that is not found here.

        `ended`: also where only its end may be elsewhere.
        """
        try:
            arrived = arrival_ms(id)
        except ValueError:
            return []
        return self.lacks(arrived) or (list(self._ends(arrived)) if ended else [])

    def lacks(self, arrived_ms: int) -> list[str]:
        """Return a sentence for each reason why a request that arrived then may be missing here."""
        return [*self._own(arrived_ms), *self._of_others(arrived_ms)]

    def may_have_end(self, record: Record) -> list[str]:
        """Return a sentence for each reason why a request that is open here may have ended."""
        return list(self._ends(arrival_ms(record.id), record.gateway))

    def _ends(self, at: int, gateway: str | None = None) -> Iterator[str]:
        """Yield a sentence for each reason why a request that arrived then may have ended, at `gateway` if that is known."""
        for gap in self.gaps:
            if gap.touches(at, at):
                yield f"it may have ended {gap}, and this gateway does not have the log of that time"
        for each in self.others:
            received = "" if gateway is None else ", which received it,"
            if gateway not in (None, short(each.installation)) or (each.present and not each.about.files):
                continue
            if each.about.forgotten_ms:
                if gateway is not None:
                    yield from (away.note() for away in away_of([each]))
            elif gateway is not None or (not each.about.stopped and each.heard_ms - LONGEST_MS <= at):
                yield (
                    f"gateway {each.name}{received} was last heard of at {each.heard}{held(each.about.files)}: ask there; "
                    f"if it has gone for good, {FORGET} {short(each.installation)}`"
                )

    def _own(self, arrived_ms: int) -> Iterator[str]:
        yield from self.unread
        for gap in self.gaps:
            if gap.may_have(arrived_ms):
                having = [each.name for each in self.others if each.present and not _lacks(each, arrived_ms)]
                there = f"ask there: {', '.join(having)}" if having else "no other gateway has it either"
                yield f"this gateway does not have the log of what arrived {gap}: {there}"

    def _of_others(self, arrived_ms: int) -> Iterator[str]:
        for each in self.others:
            if each.about.forgotten_ms:
                if each.heard_ms - SETTLED_MS <= arrived_ms <= each.about.forgotten_ms:
                    yield from (away.note() for away in away_of([each]))
            elif each.about.stopped:  # it has handed over all, and receives nothing
                continue
            elif each.heard_ms < arrived_ms + SETTLED_MS and each.present and not each.about.files:
                yield f"gateway {each.name} has not said yet whether it has it: ask again in {SETTLED_MS // 1000} seconds"
            elif each.heard_ms < arrived_ms + SETTLED_MS or each.about.files:
                yield (
                    f"gateway {each.name} was last heard of at {each.heard}{held(each.about.files)}: ask there; "
                    f"if it has gone for good, {FORGET} {short(each.installation)}`"
                )

    def notes(self) -> Iterator[str]:
        """Yield a sentence for each reason why some requests are missing here."""
        yield from self.unread
        for gap in self.gaps:
            yield f"requests that arrived or ended {gap} may be missing here: this gateway does not have the log of that time"
        yield from (away.note() for away in away_of(self.others))


class Completeness:
    """Asks the store what each gateway has handed over."""

    def __init__(self, client: Client, folder: Path, installation: str) -> None:
        self._client = client
        self._folder = folder
        self._installation = installation

    async def known(self) -> HandedOver:
        """Return what the gateways of the store have handed over by now. Raises `StoreAway`."""
        reading, spooled = await asyncio.to_thread(self._on_disk)
        gateways, trimmed, position = await asyncio.gather(
            gateways_of(self._client),
            self._client.call("GET", TRIMMED),
            position_of(self._client, self._installation),
        )
        unread = []
        if spooled:
            unread.append(f"{spooled} files of records wait in the spool of this gateway: they are read while it runs")
        others = [gateway for gateway in gateways if gateway.installation != self._installation]
        others += unknown_to_store(gateways, reading.away)
        return HandedOver(_gaps(reading, position, trimmed), others, unread)

    def _on_disk(self) -> tuple[Reading, int]:
        return gaps.load(self._folder), len(Spool(self._folder / "spool").files())


def _gaps(reading: Reading, position: str | None, trimmed: bytes | None) -> list[Gap]:
    """Return the gaps of a gateway, with the one that it will have when it reads on."""
    if trimmed is None:
        return reading.gaps
    removed, read = trimmed.decode(), position or reading.position or FIRST
    return gaps.merged([*reading.gaps, Gap(ms_of(read), ms_of(removed))]) if is_before(read, removed) else reading.gaps


def _lacks(gateway: PeerGateway, arrived_ms: int) -> bool:
    return any(gap.may_have(arrived_ms) for gap in gateway.about.gaps)
