"""The process that moves the usage log of all gateways from the stream, and this gateway's spool, into the database.

1. **Written first, removed afterwards**: an entry may leave the stream, and a file the spool, only when its records are on the
   disk. After a kill at any moment a record may be written twice; records with the same id are merged.
2. **One sink at a time owns a folder**: the kernel holds its lock, and releases it however the sink ends. The next sink
   begins where the last one had said that all is on the disk.
3. **What was in the spool is handed over to the stream**, so that the other gateways have it, too.

It also closes requests that never ended, as `gateway_crashed` (`Closing`):

4. **A gateway closes its own requests alone**, and those of gateways that an operator has forgotten: a request that another one
   received may still run there, or its end may wait in that one's spool.
5. **Only when nothing waits that could be the end**, neither in the stream nor in the spool nor in a gap of the reading.
6. **The end is written to the stream**, so that every gateway reads it. An actual end that comes late replaces it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from gateway.base.errors import GatewayError, cannot_use
from gateway.base.ids import arrival_ms, utc
from gateway.base.log import log
from gateway.config.schema import Config
from gateway.domain.exchange import Outcome
from gateway.store.accounts import Accounts
from gateway.store.client.client import Client
from gateway.store.money.wallet import Wallet
from gateway.usage import gaps
from gateway.usage.database import UsageDatabase, month_before, months
from gateway.usage.gap_filling import Filling
from gateway.usage.gaps import Gap
from gateway.usage.log import FIELD, UsageLog
from gateway.usage.record import Record, checked, encode
from gateway.usage.replication import BATCH, About, Reader, gateways_of, now_ms
from gateway.usage.stream import OPEN, id_of, note_late, short, write_lines

SPOOL_BATCH: Final = 200
"""Files of the spool that share a transaction, at most."""
PAUSE_S: Final = 0.2
"""Seconds between two reads of an empty stream: the entries that arrive in between share one transaction."""

LAST_DRAIN_S: Final = 3.0
HOUSEKEEPING_S: Final = 60.0
MARGIN_S: Final = 60.0
FILL_S: Final = 1.0
DROPS_AFTER_S: Final = 3600.0
DROPS_EVERY_S: Final = 86_400.0
"""One month is dropped in this time, so that a clock that is wrong for long does not take all."""

AT_ONCE: Final = 2000
LOOKED_UP: Final = 200
"""Requests without an end whose account is looked up, among all accounts, in one round."""


async def run(config: Config, url: str, stop: asyncio.Event) -> None:
    """Drain into the configuration's folder until `stop` is set, and then what is left, for a few seconds at
    most.
    """
    folder = config.data_path / "usage"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = (folder / gaps.LOCK).open("ab")
    except OSError as error:
        raise cannot_use(f"data: cannot use {error.filename or folder}", error) from None
    client = Client.connect(url, timeout_s=5, connections=1)
    sink = Sink(
        UsageLog(client, folder),
        retention_months=config.usage.retention_months,
        crashed_after_s=crashed_after_s(config),
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
    """Moves records from the stream and one spool to the database of one folder."""

    def __init__(self, usage: UsageLog, *, retention_months: int, crashed_after_s: float) -> None:
        self.usage = usage
        self.reader = Reader(usage.client, usage.folder, usage.installation, room=usage.max_entries // 2)
        self.database = UsageDatabase(usage.folder, self.reader.lose)
        self._closing = Closing(usage.client, self.database, usage.gateway)
        self._filling = Filling(usage.client, usage.folder, usage.installation, self.reader)
        self._filled = time.monotonic()
        self._retention_months = retention_months
        self._crashed_after_s = crashed_after_s
        self._last_housekeeping = time.monotonic()
        self._drops_at = time.monotonic() + DROPS_AFTER_S
        self._failing = False
        self._reported: set[Path] = set()

    async def run(self, stop: asyncio.Event) -> None:
        """Drain until `stop` is set, and then what is left."""
        while not stop.is_set():
            gaps.turn(self.usage.folder)
            if not await self.move_batch():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), PAUSE_S)
        deadline = time.monotonic() + LAST_DRAIN_S
        while await self.move_batch() and time.monotonic() < deadline:
            pass
        with contextlib.suppress(OSError):
            about = self._about()
            await self.reader.stop(msgspec.structs.replace(about, stopped=not about.files))
        self.database.close()

    async def move_batch(self) -> bool:
        """Move one batch; return whether more is waiting. After an error the next call moves the same batch again."""
        try:
            more = self._replay_spool()
            more |= await self._read_stream()
            more |= await self._fill()
            self.database.check()
            if time.monotonic() - self._last_housekeeping >= HOUSEKEEPING_S:
                more |= await self._housekeep(idle=not more)
        except (GatewayError, OSError) as error:
            self.reader.leave()
            if not self._failing:
                log.error("sink_waits", reason=str(error))
            self._failing = True
            return False
        if self._failing:
            log.warning("sink_goes_on")
        self._failing = False
        return more

    async def close_lost(self, before_ms: int) -> int:
        """Write ends for requests that arrived before `before_ms` and never ended; return how many. Raises `StoreAway`."""
        ends = await self._closing.ends(before_ms, self.reader.reading.gaps)
        if ends:
            await self._send([encode(record) for record in ends])
            log.warning("requests_never_ended", closed_as="gateway_crashed", count=len(ends))
        return len(ends)

    def _replay_spool(self) -> bool:
        waiting = self.usage.spool.files()
        files = {file: lines for file in waiting[:SPOOL_BATCH] if (lines := self._lines(file)) is not None}
        if files:
            self.database.write(self._records(line for lines in files.values() for line in lines))
            for file in files:
                self.usage.spool.replayed(file)
        return len(waiting) > SPOOL_BATCH and bool(files)

    def _lines(self, file: Path) -> list[bytes] | None:
        """Return the lines of a file of the spool; None, with one line in the log, for one that cannot be read."""
        try:
            return [line for line in file.read_bytes().split(b"\n") if line]
        except OSError as error:
            if file not in self._reported:
                self._reported.add(file)
                log.error("spool_file_unusable", file=str(file), reason=error.strerror)
            return None

    async def _read_stream(self) -> bool:
        """Write the next entries of the stream, and hand over what was in the spool; return whether more is waiting."""
        entries = await self.reader.read()
        if entries:
            self.database.write(self._records(fields[FIELD] for _, fields in entries if FIELD in fields))
        handed_over = await self._hand_over()
        await self.reader.advance(entries, self._about())
        return len(entries) >= BATCH or handed_over

    def _about(self) -> About:
        return About(host=socket.gethostname(), files=self.usage.spool.count(), gaps=self.reader.reading.gaps)

    async def _hand_over(self) -> bool:
        """Write what was in the spool to the stream, if that has room; return whether anything was written."""
        files = self.usage.spool.files_to_hand_over()[:SPOOL_BATCH]
        if not files or self.reader.length >= self.usage.max_entries // 2:
            return False
        lines = {file: found for file in files if (found := self._lines(file)) is not None}
        await self._send([line for each in lines.values() for line in each if _is_record(line)])
        for file in lines:
            file.unlink()
        return bool(lines)

    async def _fill(self) -> bool:
        """Fill a gap, or answer a gateway that has one, once a second; return whether a page was written."""
        if time.monotonic() - self._filled < FILL_S:
            return False
        self._filled = time.monotonic()
        return await self._filling.step(self.database.write)

    async def _send(self, lines: list[bytes]) -> None:
        """Write records to the stream that are older than its newest entries."""
        await note_late(self.usage.client, lines)
        await asyncio.gather(*(self.usage.client.submit("XADD", self.usage.stream, "*", FIELD, line) for line in lines))

    async def _housekeep(self, *, idle: bool) -> bool:
        """Report a stream that grows, drop an old month and, when `idle`, close the requests that never ended.

        Return whether there is more to read now.
        """
        self._last_housekeeping = time.monotonic()
        waiting = await self.usage.length()
        if waiting > self.usage.max_entries // 10:
            log.error("usage_log_lags", entries=waiting, full_at=self.usage.max_entries)
        sure_ms = min(round(time.time() * 1000), await now_ms(self.usage.client))
        self._drop_oldest(sure_ms)
        return (
            idle
            and not self.usage.spool.count()
            and await self.close_lost(round(sure_ms - self._crashed_after_s * 1000)) > 0
        )

    def _drop_oldest(self, sure_ms: int) -> None:
        """Drop the oldest month where it is too old at a time that both clocks have reached, and by the newest month with requests.

        It must have been too old for an hour, since a clock that was ahead may have made the newest month, too.
        """
        found = months(self.usage.folder)
        if not found or found[0] >= month_before(min(found[-1], utc(sure_ms)[:7]), self._retention_months):
            self._drops_at = time.monotonic() + DROPS_AFTER_S
        elif time.monotonic() >= self._drops_at:
            self.database.drop(found[0])
            self._drops_at = time.monotonic() + DROPS_EVERY_S
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
        (arrivals if OPEN in line else ends).append(line)
    ended = set(map(id_of, ends))
    return [line for line in arrivals if id_of(line) not in ended] + ends


def _is_record(line: bytes) -> bool:
    try:
        checked(line)
    except ValueError:
        return False
    return True


async def _alone(lock: BinaryIO, stop: asyncio.Event) -> bool:
    """Wait until this process has the lock and return True, or False when `stop` was set first."""
    while not stop.is_set():
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), PAUSE_S)
    return False


class Closing:
    """Finds the requests that never ended, for the gateway that is called `own` in its records."""

    def __init__(self, client: Client, database: UsageDatabase, own: str) -> None:
        self._client = client
        self._wallet = Wallet(client)
        self._database = database
        self._own = own

    async def ends(self, before_ms: int, gaps: Iterable[Gap]) -> list[Record]:
        """Return ends for requests that arrived before `before_ms` and never ended, some at a time. Raises `StoreAway`."""
        gone = {
            self._own,
            *(short(each.installation) for each in await gateways_of(self._client) if each.about.forgotten_ms),
        }
        open_ = self._database.open_requests(before_ms, gone, AT_ONCE)
        lost = [record for record in open_ if not any(_may_have_end(gap, record) for gap in gaps)]
        ended = await self._ends_of_holds(lost[:LOOKED_UP])
        return [ended.get(record.id) or _closed(record) for record in lost]

    async def _ends_of_holds(self, lost: list[Record]) -> dict[str, Record]:
        """Return ends for those requests that held money: with the account, and what it was charged for them."""
        ended: dict[str, Record] = {}
        arrivals = {record.id: record for record in lost}
        if arrivals:
            async for account in Accounts(self._client).all():
                for id, charged in (await self._wallet.ends(account.id, list(arrivals))).items():  # noqa: A001
                    ended[id] = _closed(arrivals[id], account=account.id, charge_micros=charged)
        return ended


def _closed(arrival: Record, **changes: object) -> Record:
    return msgspec.structs.replace(arrival, outcome=Outcome.GATEWAY_CRASHED, **changes)


def _may_have_end(gap: Gap, record: Record) -> bool:
    at = arrival_ms(record.id)
    return gap.touches(at, at)
