"""Replication of the usage log: each gateway's sink reads the stream of all, and says where it runs and how far it is.

1. **Each gateway has a position in the stream, which is kept with it**: a store that loses the newest entries in a failover
   loses the newest positions as well, so nothing is skipped. A position on the disk would be beyond entries that came later.
2. **An entry is removed when every gateway that is present has written it**, one at least. For one that was heard of within a
   day, entries are kept while they take no more than half of the stream's room.
3. **A gateway from which entries were removed knows that**, and from when to when: see `gateway.usage.gaps`.
4. **A month whose file was damaged and set aside is a gap**, until another gateway of the store has filled it. A file whose
   requests are all here again is renamed once more, so that nothing is said to be missing: it may be deleted.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.base.errors import GatewayError, StoreError
from gateway.base.ids import arrival_ms, utc
from gateway.base.log import log
from gateway.store.client.client import Client, Script
from gateway.usage import gaps
from gateway.usage.database import MARK, files_aside, rename
from gateway.usage.gaps import LONGEST_MS, SKEW_MS, Away, Gap, is_before, ms_of
from gateway.usage.stream import GATEWAYS, HEARD, LATE, STREAM, TRIMMED, short

KEPT_MS: Final = 86_400_000
"""How long entries are kept for a gateway that was not heard of."""
BATCH: Final = 4000
"""Entries that the store returns at once, at most: about 5 ms of its time."""
PAGES: Final = 5
"""Such pages that are written at once, at most: the more requests share a transaction, the less each of them takes."""
TURN_S: Final = 1.0
"""How often a gateway says that it is present while there is nothing to read."""
LOOK_S: Final = 10.0
"""How often it is looked for gateways that have not handed over all."""
SAVE_S: Final = 5.0
"""How often the position is written to the disk, for the case that the store loses the stream."""

FIRST: Final = "0-0"
_TURN: Final = Script.load(Path(__file__).with_name("turn.lua"))


Entry = tuple[bytes, dict[bytes, bytes]]

PRESENT_MS: Final = 20_000
"""A gateway that was not heard of for longer does not count as present."""

_TIME: Final = Script("time", 'return redis.call("TIME")')

REPLACED: Final = ".replaced-"
"""What stands in place of `MARK` in the name of a file whose requests are all here again."""


class Reader:
    """Reads the stream for the gateway that has `folder`."""

    def __init__(self, client: Client, folder: Path, installation: str, *, room: int) -> None:
        self._client = client
        self._folder = folder
        self._installation = installation
        self._room = room
        self._position: str | None = None
        self._looked_aside = False
        self._read_at = 0.0
        self._last_turn = self._last_saved = self._last_look = -LOOK_S
        self.reading = gaps.load(folder)
        self.length = 0
        """The stream's length at the last turn."""

    async def read(self) -> list[Entry]:
        """Return the next entries; the same ones until `advance` is called. Raises `StoreAway` and `OSError`."""
        if self._position is None:
            self._position = await self._join()
        self._read_at = time.time()
        found: list[Entry] = []
        after = self._position
        for _ in range(PAGES):
            page: list[Entry] = await self._client.call("XRANGE", STREAM, f"({after}", "+", "COUNT", BATCH) or []
            found += page
            if len(page) < BATCH:
                break
            after = page[-1][0].decode()
        return found

    async def advance(self, entries: list[Entry], about: About) -> None:
        """Say that the entries are on the disk, and what the gateway says about itself. Raises `StoreAway` and `OSError`."""
        if self._position is None or not (entries or time.monotonic() - self._last_turn >= TURN_S):
            return
        await self._turn(self._position, entries[-1][0].decode() if entries else self._position, about)
        if len(entries) < BATCH:
            gaps.has_read(self._folder, self._read_at)
        if time.monotonic() - self._last_look >= LOOK_S:
            await self._look_for_away()

    async def stop(self, about: About) -> None:
        """Say that this gateway ends in order, unless the store is away. Raises `OSError`."""
        with suppress(GatewayError):
            if self._position is not None:
                await self._turn(self._position, self._position, about)
                if about.stopped and all(each.about.forgotten_ms for each in await self._others()):
                    gaps.ended(self._folder)
        await self.save()

    def leave(self) -> None:
        """Join again before the next reading: the store may be another one."""
        self._position = None

    async def _look_for_away(self) -> None:
        """Keep which other gateways may have requests that they have not handed over."""
        self._last_look = time.monotonic()
        others = await self._others()
        found = away_of([*others, *unknown_to_store(others, self.reading.away)])
        if found != self.reading.away:
            self.reading.away = found
            await self.save()

    async def _others(self) -> list[PeerGateway]:
        return [each for each in await gateways_of(self._client) if each.installation != self._installation]

    async def save(self) -> None:
        """Write to the disk what is known of the reading."""
        if self._position is not None:
            self.reading.position = self._position
        self._last_saved = time.monotonic()
        await asyncio.to_thread(gaps.save, self._folder, self.reading)

    def lose(self, month: str) -> None:
        """Keep that what was written of a month is missing. Blocks; raises `OSError`."""
        gap = gap_of(month, round(time.time() * 1000))
        self.reading.add(gap)
        log.error("usage_log_gap", missing=str(gap), reason=f"the file of {month} is lost")
        gaps.save(self._folder, self.reading)

    async def _join(self) -> str:
        """Take a place among the readers, and return from where on to read."""
        self.reading = gaps.load(self._folder)
        if not self._looked_aside:
            await asyncio.to_thread(self._look_aside)
        about = msgspec.json.encode(About(host=socket.gethostname(), gaps=self.reading.gaps))
        lost = False
        with suppress(StoreError):  # the group exists
            await self._client.call("XGROUP", "CREATE", STREAM, self._installation, FIRST, "MKSTREAM")
            lost = bool(self.reading.position)
        await self._client.call("HSET", GATEWAYS, self._installation, about)
        if lost:
            missed = Gap(ms_of(self.reading.position), await now_ms(self._client))
            await self._miss(missed, "the store has lost its position")
        return await position_of(self._client, self._installation) or FIRST

    def _look_aside(self) -> None:
        """Keep the gaps of all files that were set aside, also before a kill."""
        found = gaps_of(self._folder)
        for gap in found:
            self.reading.add(gap)
        if found:
            gaps.save(self._folder, self.reading)
        self._looked_aside = True

    async def _turn(self, expected: str, following: str, about: About) -> None:
        keys, terms = [STREAM, HEARD, GATEWAYS, TRIMMED], [PRESENT_MS, KEPT_MS, self._room]
        text = msgspec.json.encode(about)
        reply = await self._client.run(_TURN, keys, [self._installation, expected, following, text, *terms])
        position, trimmed, self.length, *_ = _texts(reply)
        self._last_turn = time.monotonic()
        if is_before(expected, trimmed):
            reason = "it is new" if expected == FIRST else "it was away for longer than entries are kept"
            await self._miss(Gap(ms_of(expected), ms_of(trimmed)), reason)
        elif is_before(following, position):
            await self._miss(
                Gap(ms_of(following), ms_of(position)), "another gateway has the same `usage/installation`"
            )
        self._position = position
        if time.monotonic() - self._last_saved >= SAVE_S and self.reading.position != position:
            await self.save()

    async def _miss(self, gap: Gap, reason: str) -> None:
        """Keep a gap. Requests that were written late are missing where these were written in the gap."""
        late = await self._client.call("ZRANGE", LATE, gap.first_ms - SKEW_MS, gap.last_ms + SKEW_MS, "BYSCORE")
        first_ms = min([gap.first_ms, *(int(note.partition(b":")[0]) for note in late)])
        self.reading.add(Gap(first_ms, gap.last_ms))
        log.error("usage_log_gap", missing=str(Gap(first_ms, gap.last_ms)), reason=reason)
        await self.save()


async def position_of(client: Client, installation: str) -> str | None:
    """Return up to which entry a gateway has read the stream; None where it has no position. Raises `StoreAway`."""
    try:
        groups = await client.call("XINFO", "GROUPS", STREAM)
    except StoreError:  # there is no stream
        return None
    positions = {group[b"name"].decode(): group[b"last-delivered-id"].decode() for group in groups}
    return positions.get(installation)


def _texts(reply: list[Any]) -> list[Any]:
    return [value.decode() if isinstance(value, bytes) else value for value in reply]


class About(msgspec.Struct):
    """Self-description of a gateway, kept in the store. `files`: files of records in its folder that are not in the stream yet.

    `stopped`: it ended in order, with nothing left to hand over. `forgotten_ms`: when an operator said that it has gone, else 0.
    """

    host: str = ""
    files: int = 0
    gaps: list[Gap] = []
    stopped: bool = False
    forgotten_ms: int = 0


class PeerGateway(msgspec.Struct):
    """One gateway of the store. `heard_ms`: when it was last heard of. `behind_ms`: time of the stream that it has not read."""

    installation: str
    about: About
    heard_ms: int
    behind_ms: int
    now_ms: int

    @property
    def name(self) -> str:
        """Its host, and the name that its records have."""
        return f"{self.about.host} ({short(self.installation)})"

    @property
    def present(self) -> bool:
        """Whether it was heard of just now."""
        return not self.about.stopped and self.now_ms - self.heard_ms <= PRESENT_MS

    @property
    def heard(self) -> str:
        """When it was last heard of, in ISO 8601."""
        return utc(self.heard_ms)


async def gateways_of(client: Client) -> list[PeerGateway]:
    """Return the gateways of a store, also forgotten ones. Raises `StoreAway`."""
    abouts, heard, now, exists = await asyncio.gather(
        client.call("HGETALL", GATEWAYS),
        client.call("ZRANGE", HEARD, 0, -1, "WITHSCORES"),
        now_ms(client),
        client.call("EXISTS", STREAM),
    )
    positions, last = await _positions(client) if exists else ({}, 0)
    when = {name.decode(): int(at) for name, at in heard}
    found = [
        PeerGateway(name, _about(text), when.get(name, 0), max(0, last - positions.get(name, last)), now)
        for name, text in sorted((key.decode(), value) for key, value in abouts.items())
    ]
    return sorted(found, key=lambda gateway: gateway.about.host)


def away_of(gateways: Iterable[PeerGateway]) -> list[Away]:
    """Return the gateways that may have records which are nowhere else: not present, with files to hand over, or forgotten.

    One that has not been heard of yet has just joined.
    """
    return [
        Away(short(each.installation), each.about.host, each.heard_ms, each.about.files, each.about.forgotten_ms)
        for each in gateways
        if each.about.forgotten_ms or each.about.files or (each.heard_ms and not (each.present or each.about.stopped))
    ]


def unknown_to_store(known: Iterable[PeerGateway], away: Iterable[Away]) -> list[PeerGateway]:
    """Return the gateways that the disk remembers, and of which the store knows nothing: it was emptied, or is an earlier copy."""
    names = {short(each.installation) for each in known}
    now = round(time.time() * 1000)
    return [
        PeerGateway(each.name, About(each.host, each.files, forgotten_ms=each.forgotten_ms), each.heard_ms, 0, now)
        for each in away
        if each.name not in names
    ]


async def now_ms(client: Client) -> int:
    """Return the time by the clock of the store, or in a cluster of the node that has the usage log. Raises `StoreAway`."""
    seconds, micros = await client.run(_TIME, [STREAM])
    return int(seconds) * 1000 + int(micros) // 1000


async def forget(client: Client, gateway: PeerGateway) -> None:
    """Remove a gateway that has gone for good: nothing is kept for it any more, and its open requests are closed.

    That it was there is still known, since it may have had records that it had not handed over. Raises `StoreAway`.
    """
    about = msgspec.structs.replace(gateway.about, forgotten_ms=gateway.now_ms)
    await client.call("HSET", GATEWAYS, gateway.installation, msgspec.json.encode(about))
    await client.call("ZADD", HEARD, "NX", gateway.heard_ms, gateway.installation)
    with suppress(StoreError):  # there is no stream
        await client.call("XGROUP", "DESTROY", STREAM, gateway.installation)


async def _positions(client: Client) -> tuple[dict[str, int], int]:
    """Return up to when each gateway has read the stream, and when its last entry was written."""
    groups, stream = await asyncio.gather(
        client.call("XINFO", "GROUPS", STREAM), client.call("XINFO", "STREAM", STREAM)
    )
    positions = {group[b"name"].decode(): _ms(group[b"last-delivered-id"]) for group in groups}
    return positions, _ms(stream[b"last-generated-id"])


def _about(text: bytes) -> About:
    """Return what a gateway said; of a later version's text, what is understood."""
    try:
        return msgspec.json.decode(text, type=About)
    except msgspec.MsgspecError:
        return About(host="unknown", files=1)


def _ms(entry: bytes | str) -> int:
    text = entry if isinstance(entry, str) else entry.decode()
    return int(text.partition("-")[0])


def gap_of(month: str, lost_ms: int) -> Gap:
    """Return when the entries were written that were in the file of a month, which was lost."""
    first = datetime.strptime(month, "%Y-%m").replace(tzinfo=UTC)
    after = (first + timedelta(days=31)).replace(day=1)
    first_ms, after_ms = (round(moment.timestamp() * 1000) for moment in (first, after))
    return Gap(first_ms, max(first_ms, min(lost_ms, after_ms + LONGEST_MS)))


def gaps_of(folder: Path) -> list[Gap]:
    """Return the gaps that the files of a folder are, or were, which were set aside. Blocks."""
    return list(map(_gap_of, files_aside(folder)))


def mark_replaced(folder: Path, gaps: Iterable[Gap]) -> None:
    """Rename the files in whose time there is no gap any more. Blocks; raises `OSError`."""
    left = list(gaps)
    for aside in files_aside(folder):
        own = _gap_of(aside)
        if not any(gap.first_ms <= own.last_ms and own.first_ms <= gap.last_ms for gap in left):
            replaced = aside.with_name(aside.name.replace(MARK, REPLACED))
            rename(aside, replaced)
            log.warning(
                "usage_file_replaced", file=str(replaced), note="its requests are here again: it may be deleted"
            )


def _gap_of(aside: Path) -> Gap:
    name, _, renamed = aside.name.partition(MARK)
    return gap_of(name.removeprefix("usage-").removesuffix(".sqlite"), arrival_ms(renamed))
