"""The process that moves the usage log from the stream, and this gateway's spool, to its home.

1. **Written first, removed afterwards**: an entry may leave the stream, and a file the spool, only when its records are on the
   disk. After a kill at any moment a record may be written twice; records with the same id are merged.
2. **Each sink takes a share of the entries**, as a consumer of the one group of all gateways. Entries of a sink that died, or lost
   the store, are taken over by another one after `CLAIM_MS`; a sink that starts again takes its own at once.
3. **One sink at a time owns a folder**: the kernel holds its lock, and releases it however the sink ends.
4. **While the home cannot be written, nothing is read**: the stream holds the entries, and beyond its room the spool.

It also closes requests that never ended, as `gateway_crashed` (`close_lost`):

5. **Only when nothing waits that could be the end**: all is written that is older than the margin within which a request has
   ended, and its gateway has no spool, and is there, or was forgotten, or ended in order.
6. **The end is written to the stream**, as any other. An actual end that comes late replaces it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, Final, TypeVar

import msgspec

from gateway.base.errors import GatewayError, cannot_use
from gateway.base.ids import utc
from gateway.base.log import log
from gateway.config.schema import Config
from gateway.domain.exchange import Outcome
from gateway.store.accounts import Accounts
from gateway.store.client.client import Client, Script
from gateway.store.money.wallet import Wallet
from gateway.usage import completeness
from gateway.usage.completeness import KnownGateway
from gateway.usage.database import month_before
from gateway.usage.gateways import Membership, gateways_of, now_ms
from gateway.usage.home import Home, home_of
from gateway.usage.log import FIELD, UsageLog
from gateway.usage.record import Record, checked, encode
from gateway.usage.stream import DROPPED, ENDED, GROUP, id_of, short, write_lines

SPOOL_BATCH: Final = 200
"""Files of the spool that share a transaction, at most."""
PAUSE_S: Final = 0.2
"""Seconds between two reads of an empty stream: the entries that arrive in between share one transaction."""

BATCH: Final = 4000
"""Entries that the store returns at once, at most: about 10 ms of its time."""
PAGES: Final = 5
"""Such pages that are written at once, at most: the more requests share a transaction, the less each of them takes."""
CLAIM_MS: Final = 30_000
"""How long a sink may keep entries that it has read, before another one takes them over."""
CLAIM_S: Final = 5.0
SAY_S: Final = 1.0
"""How often a gateway says that it is there."""
LOOK_S: Final = 10.0
"""How often it is looked for gateways that may have records."""
LAST_DRAIN_S: Final = 3.0
HOUSEKEEPING_S: Final = 60.0
MARGIN_S: Final = 60.0
"""Seconds after its longest time in which the end of a request is written; half of them in which it is read."""
DROPS_AFTER_S: Final = 3600.0
DROPS_EVERY_S: Final = 86_400
"""One month is dropped in this time, so that a clock that is wrong for long does not take all."""

_TAKEN: Final = Script(
    "taken",
    """
if ARGV[1] == "claimed" then
  return redis.call("XAUTOCLAIM", KEYS[1], ARGV[2], ARGV[3], ARGV[5], "0-0", "COUNT", ARGV[4])[2]
end
redis.pcall("XGROUP", "CREATE", KEYS[1], ARGV[2], "0", "MKSTREAM")
local reply = redis.call("XREADGROUP", "GROUP", ARGV[2], ARGV[3], "COUNT", ARGV[4], "STREAMS", KEYS[1], "0")
return reply and reply[1][2] or {}
""",
)
"""Return entries that were given to the consumer before, or to others for too long. Some may have been removed since."""

_REMOVE: Final = Script(
    "remove_consumer",
    """
if #redis.pcall("XPENDING", KEYS[1], ARGV[1], "-", "+", 1, ARGV[2]) == 0 then
  redis.pcall("XGROUP", "DELCONSUMER", KEYS[1], ARGV[1], ARGV[2])
end
return 0
""",
)
"""Remove the place of a gateway among the readers of a stream, unless it has entries."""

AT_ONCE: Final = 2000
LOOKED_UP: Final = 200
"""Requests without an end whose account is looked up, among all accounts, in one round."""

Result = TypeVar("Result")
Entry = tuple[bytes, bytes | None]
"""The id of an entry, and its line; None of one that was removed meanwhile."""


async def run(
    config: Config, url: str, stop: asyncio.Event, settings: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Drain into the configuration's folder until `stop` is set, and then what is left, for a few seconds at most.

    `settings`: digests that the gateways of the store are compared by, see `About`.
    """
    folder = config.data_path / "usage"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = (folder / completeness.LOCK).open("ab")
    except OSError as error:
        raise cannot_use(f"data: cannot use {error.filename or folder}", error) from None
    client = Client.connect(url, timeout_s=5, connections=1)
    sink = Sink(
        UsageLog(client, home_of(config)),
        retention_months=config.usage.retention_months,
        crashed_after_s=crashed_after_s(config),
        listen=config.listen,
        settings=settings,
    )
    with lock:
        try:
            if await _alone(lock, stop):
                await sink.run(stop)
        finally:
            await client.close()


def crashed_after_s(config: Config) -> float:
    """Return the seconds after which any request has ended: those of its slowest channel, and a margin."""
    slowest = max((channel.timers.total + channel.drain_limit for channel in config.channels.values()), default=0)
    return config.port.body_timeout + slowest + MARGIN_S


class Sink:
    """Moves records from the stream and one spool to the home."""

    def __init__(
        self,
        usage: UsageLog,
        *,
        retention_months: int,
        crashed_after_s: float,
        listen: str = "",
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.usage = usage
        self.home = usage.home
        self.reader = GroupReader(usage.client, usage.streams, usage.installation)
        self._membership = Membership(usage.client, usage.home, usage.installation, settings, listen=listen)
        self._retention_months = retention_months
        self._crashed_after_s = crashed_after_s
        self._last_housekeeping = time.monotonic()
        self._last_said = self._last_look = -LOOK_S
        self._drops_at = time.monotonic() + DROPS_AFTER_S
        self._gateways: list[KnownGateway] = []
        self._differing: dict[str, list[str]] = {}
        self._member = False
        self._failing = False
        self._reported: set[Path] = set()

    async def run(self, stop: asyncio.Event) -> None:
        """Drain until `stop` is set, and then what is left."""
        while not stop.is_set():
            completeness.turn(self.usage.folder)
            if not await self.move_batch():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), PAUSE_S)
        deadline = time.monotonic() + LAST_DRAIN_S
        while await self.move_batch() and time.monotonic() < deadline:
            pass
        await self.leave()
        self.home.close()

    async def move_batch(self) -> bool:
        """Move one batch; return whether more is waiting. After an error the next call moves the same batch again."""
        try:
            if self.home.shared and not self._member:
                await self._say()
            more = await self._replay_spool()
            await self._say()
            more |= await self._read_stream()
            self.home.check()
            if time.monotonic() - self._last_housekeeping >= HOUSEKEEPING_S:
                more |= await self._housekeep()
        except (GatewayError, OSError) as error:
            self.reader.begin_again()
            if not self._failing:
                log.error("sink_waits", reason=str(error))
            self._failing = True
            return False
        if self._failing:
            log.warning("sink_goes_on")
        self._failing = False
        return more

    async def leave(self) -> None:
        """Say that this gateway ends in order, where nothing is left in its spool and the store answers."""
        with contextlib.suppress(GatewayError, OSError):
            if not self.usage.spool.count():
                await self._membership.say(0, stopped=True)
                if self.home.shared:
                    await self._membership.leave()
                    for stream in self.usage.streams:
                        await self.usage.client.run(_REMOVE, [stream], [GROUP, self.usage.installation])
                if not self._failing:
                    completeness.ended(self.usage.folder)

    async def close_lost(self, before_ms: int) -> int:
        """Write ends for requests that arrived before `before_ms` and never ended; return how many. Raises `StoreAway`."""
        spooling = {short(each.installation) for each in await gateways_of(self.usage.client) if each.may_have_records}
        lost = await done(self.home, partial(self.home.open_requests, before_ms, spooling, AT_ONCE))
        ended = await self._ends_of_holds(lost[:LOOKED_UP])
        if ends := [ended.get(record.id) or _closed(record) for record in lost]:
            for line in map(encode, ends):
                await self.usage.send(line)
            log.warning("requests_never_ended", closed_as="gateway_crashed", count=len(ends))
        return len(ends)

    async def _ends_of_holds(self, lost: list[Record]) -> dict[str, Record]:
        """Return ends for those requests that held money: with the account, and what it was charged for them."""
        ended: dict[str, Record] = {}
        arrivals = {record.id: record for record in lost}
        if arrivals:
            client = self.usage.client
            async for account in Accounts(client).all():
                for id, charged in (await Wallet(client).ends(account.id, list(arrivals))).items():  # noqa: A001
                    ended[id] = _closed(arrivals[id], account=account.id, charge_micros=charged)
        return ended

    async def _say(self) -> None:
        """Say that this gateway is there, once a second; and keep now and then which others may have records."""
        now = time.monotonic()
        if now - self._last_said < SAY_S:
            return
        await self._membership.say(await asyncio.to_thread(self.usage.spool.count))
        self._last_said, self._member = now, True
        if now - self._last_look >= LOOK_S:
            found = await gateways_of(self.usage.client)
            own = next((each for each in found if each.installation == self.usage.installation), None)
            others = [each for each in found if each is not own]
            self._compare(own, others)
            if others != self._gateways:
                await asyncio.to_thread(completeness.save, self.usage.folder, others)
            self._gateways, self._last_look = others, now

    def _compare(self, own: KnownGateway | None, others: Iterable[KnownGateway]) -> None:
        """Log which gateways have other settings than this one, when that changes."""
        differing = {each.name: settings for each in others if (settings := each.differs(own))}
        if differing != self._differing:
            self._differing = differing
            log.warning("configurations_differ" if differing else "configurations_agree", gateways=differing)

    async def _write(self, lines: Iterable[bytes]) -> None:
        if records := self._records(lines):
            await done(self.home, partial(self.home.write, records))

    async def _replay_spool(self) -> bool:
        waiting = self.usage.spool.files()
        files = {file: lines for file in waiting[:SPOOL_BATCH] if (lines := self._lines(file)) is not None}
        if files:
            await self._write(line for lines in files.values() for line in lines)
            for file in files:
                file.unlink()
        return len(waiting) > SPOOL_BATCH and bool(files)

    async def _read_stream(self) -> bool:
        """Write this sink's share of the entries; return whether more is waiting."""
        began = time.time()
        found = await self.reader.read()
        await self._write(line for entries in found.values() for _, line in entries if line is not None)
        for stream, entries in found.items():
            await self.reader.done(stream, entries)
        if self.reader.more:
            return True
        oldest = await self.usage.oldest_ms()
        completeness.has_all(self.usage.folder, began if oldest is None else min(began, oldest / 1000))
        return False

    def _lines(self, file: Path) -> list[bytes] | None:
        """Return the lines of a file of the spool; None, with one line in the log, for one that cannot be read."""
        try:
            return [line for line in file.read_bytes().split(b"\n") if line]
        except OSError as error:
            if file not in self._reported:
                self._reported.add(file)
                log.error("spool_file_unusable", file=str(file), reason=error.strerror)
            return None

    async def _housekeep(self) -> bool:
        """Report a stream that grows, drop an old month, and close the requests that never ended.

        Return whether there is more to read now.
        """
        self._last_housekeeping = time.monotonic()
        waiting = await self.usage.length()
        if waiting > self.usage.max_entries // 10:
            log.error("usage_log_lags", entries=waiting, full_at=self.usage.max_entries)
        sure_ms = min(round(time.time() * 1000), await now_ms(self.usage.client))
        await self._drop_oldest(sure_ms)
        oldest = await self.usage.oldest_ms()
        if oldest is not None and oldest < sure_ms - MARGIN_S * 500:
            return False
        return await self.close_lost(round(sure_ms - self._crashed_after_s * 1000)) > 0

    async def _drop_oldest(self, sure_ms: int) -> None:
        """Drop the oldest month where it is too old at a time that all clocks have reached, and by the newest month with requests.

        It must have been too old for an hour, since a clock that was ahead may have made the newest month, too.
        """
        found = await done(self.home, self.home.months)
        if not found or found[0] >= month_before(min(found[-1], utc(sure_ms)[:7]), self._retention_months):
            self._drops_at = time.monotonic() + DROPS_AFTER_S
            return
        if time.monotonic() < self._drops_at:
            return
        self._drops_at = time.monotonic() + DROPS_AFTER_S
        clock_ms = min(sure_ms, await done(self.home, self.home.now_ms))
        too_old = found[0] < month_before(utc(clock_ms)[:7], self._retention_months)
        if too_old and await self.usage.client.call("SET", DROPPED, found[0], "NX", "EX", DROPS_EVERY_S):
            await done(self.home, partial(self.home.drop, found[0]))
            log.warning("usage_month_dropped", month=found[0], newest=found[-1])

    def _records(self, lines: Iterable[bytes]) -> list[Record]:
        """Return the records that can be stored; write the other lines to `unreadable`, so that they stop no others."""
        records = []
        for line in needed(lines):
            try:
                records.append(checked(line))
            except ValueError:
                log.error("usage_record_unreadable", set_aside="unreadable")
                write_lines(self.usage.folder / "unreadable", [line])
        return records


def needed(lines: Iterable[bytes]) -> list[bytes]:
    """Return the lines without the arrivals of requests whose end is among them: an end has all that its arrival has."""
    arrivals: list[bytes] = []
    ends: list[bytes] = []
    for line in lines:
        (ends if ENDED in line else arrivals).append(line)
    ended = set(map(id_of, ends))
    return [line for line in arrivals if id_of(line) not in ended] + ends


async def done(home: Home, work: Callable[[], Result]) -> Result:
    """Return the result of work that blocks: on files in this thread, which they belong to, and else in another one."""
    return await asyncio.to_thread(work) if home.shared else work()


class GroupReader:
    """Reads the share of one gateway from the streams. An entry is given to one gateway, which has it until it is `done`."""

    def __init__(self, client: Client, streams: Sequence[str], installation: str) -> None:
        self._client = client
        self._streams = streams
        self._installation = installation
        self._begun: set[str] = set()
        self._claimed = -CLAIM_S
        self.more = False

    def begin_again(self) -> None:
        """Read what this gateway has already at first: after an error, and where the store may be another one."""
        self._begun.clear()

    async def read(self) -> dict[str, list[Entry]]:
        """Return the next entries of each stream; `more` says whether there are further ones. Raises `StoreAway`."""
        self.more = len(self._begun) < len(self._streams)
        claims = time.monotonic() - self._claimed >= CLAIM_S
        pages = await asyncio.gather(*(self._read(stream, claims) for stream in self._streams))
        if claims:
            self._claimed = time.monotonic()
        self.more &= any(pages)
        self.more |= any(len(page) >= BATCH for page in pages)
        return dict(zip(self._streams, pages, strict=True))

    async def done(self, stream: str, entries: Sequence[Entry]) -> None:
        """Remove entries, whose records are in the home. Raises `StoreAway`."""
        for start in range(0, len(entries), BATCH):
            ids = [id for id, _ in entries[start : start + BATCH]]  # noqa: A001 - the store's name
            await self._client.call("XDEL", stream, *ids)  # one that is removed and not acknowledged is read as None
            await self._client.call("XACK", stream, GROUP, *ids)

    async def _read(self, stream: str, claims: bool) -> list[Entry]:
        if stream not in self._begun:
            found = await self._taken(stream, "own")
            if found:
                return found
            self._begun.add(stream)
        found = await self._taken(stream, "claimed") if claims else []
        for _ in range(PAGES if len(self._streams) == 1 else 1):
            terms = ("GROUP", GROUP, self._installation, "COUNT", BATCH, "STREAMS", stream, ">")
            reply = await self._client.call("XREADGROUP", *terms)
            page = [(id, fields[FIELD]) for pages in reply.values() for id, fields in pages[0]] if reply else []  # noqa: A001
            found += page
            if len(page) < BATCH:
                break
        return found

    async def _taken(self, stream: str, which: str) -> list[Entry]:
        reply = await self._client.run(_TAKEN, [stream], [which, GROUP, self._installation, BATCH, CLAIM_MS])
        return [(id, fields[1] if fields else None) for id, fields in reply]  # noqa: A001


async def _alone(lock: BinaryIO, stop: asyncio.Event) -> bool:
    """Wait until this process has the lock and return True, or False when `stop` was set first."""
    while not stop.is_set():
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), PAUSE_S)
    return False


def _closed(arrival: Record, **changes: object) -> Record:
    return msgspec.structs.replace(arrival, outcome=Outcome.GATEWAY_CRASHED, **changes)
