"""The process that drains the usage log's stream and spool into the database.

1. **Written first, removed afterwards**: an entry leaves the stream, and a file the spool, only when its records are on the
   disk. After a kill at any moment a record may be written twice; records with the same id are merged.
2. **One sink at a time owns a folder**: the kernel holds its lock, and releases it however the sink ends. The next sink
   begins with what the last one had read and not removed.
3. **A request whose end never arrives is closed** as `gateway_crashed`, but only when nothing waits that could be its end. Its
   account is known only where money was held: the arrival is written before the account is authenticated, and a second line
   for each request would cost each of them a call.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import time
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from gateway.config.schema import Config
from gateway.errors import GatewayError, StoreError, cannot_use
from gateway.exchange import Outcome
from gateway.log import Logger
from gateway.store.accounts import Accounts
from gateway.store.client.client import Client
from gateway.store.money.wallet import Wallet
from gateway.usage import queries
from gateway.usage.database import UsageDatabase, months_ago
from gateway.usage.log import FIELD, UsageLog
from gateway.usage.record import Record, checked
from gateway.usage.spool import write_lines

log = Logger("gateway.usage.sink")

GROUP: Final = "sink"
BATCH: Final = 2000
"""Entries of the stream that share a transaction, at most."""
SPOOL_BATCH: Final = 200
"""Files of the spool that share a transaction, at most."""
PAUSE_S: Final = 0.2
"""Seconds between two reads of an empty stream: the entries that arrive in between share one transaction."""

LAST_DRAIN_S: Final = 3.0
HOUSEKEEPING_S: Final = 60.0
MARGIN_S: Final = 60.0
LOST_BATCH: Final = 200
"""Requests without an end whose account is looked up, among all accounts, in one round of housekeeping."""

_FIRST_ENTRY: Final = "0"
_NEW_ENTRIES: Final = ">"
"""Where `XREADGROUP` begins: at the entries that this consumer read and did not acknowledge, or at those not yet read."""


async def run(config: Config, url: str, stop: asyncio.Event) -> None:
    """Drain into the configuration's folder until `stop` is set, and then what is left, for a few seconds at
    most.
    """
    folder = config.data_path / "usage"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = (folder / "sink.lock").open("ab")
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
    """Moves records from one stream and one spool to the database of one folder."""

    def __init__(self, usage: UsageLog, *, retention_months: int, crashed_after_s: float) -> None:
        self.usage = usage
        self.database = UsageDatabase(usage.folder)
        self._wallet = Wallet(usage.client)
        self._retention_months = retention_months
        self._crashed_after_s = crashed_after_s
        self._joined = False
        self._start = _FIRST_ENTRY
        self._last_housekeeping = time.monotonic()
        self._failing = False
        self._reported: set[Path] = set()

    async def run(self, stop: asyncio.Event) -> None:
        """Drain until `stop` is set, and then what is left."""
        while not stop.is_set():
            if not await self.move_batch():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), PAUSE_S)
        deadline = time.monotonic() + LAST_DRAIN_S
        while await self.move_batch() and time.monotonic() < deadline:
            pass
        self.database.close()

    async def move_batch(self) -> bool:
        """Move one batch; return whether more is waiting. After an error the next call moves the same batch again."""
        try:
            more = self._replay_spool()
            more |= await self._drain_stream()
            if time.monotonic() - self._last_housekeeping >= HOUSEKEEPING_S:
                await self._housekeep(idle=not more)
        except (GatewayError, OSError) as error:
            self._joined = False
            if not self._failing:
                log.error("sink_waits", reason=str(error))
            self._failing = True
            return False
        if self._failing:
            log.warning("sink_goes_on")
        self._failing = False
        return more

    def _replay_spool(self) -> bool:
        waiting = self.usage.spool.files()
        files = {file: lines for file in waiting[:SPOOL_BATCH] if (lines := self._lines(file)) is not None}
        if files:
            self.database.write(self._records(line for lines in files.values() for line in lines))
            for file in files:
                file.unlink()
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

    async def _drain_stream(self) -> bool:
        if not self._joined:
            await self._join()
        stream, client = self.usage.stream, self.usage.client
        command = ("XREADGROUP", "GROUP", GROUP, GROUP, "COUNT", BATCH, "STREAMS", stream, self._start)
        entries = [entry for (page,) in (await client.call(*command) or {}).values() for entry in page]
        if entries:
            self.database.write(self._records(fields[FIELD] for _, fields in entries if fields))
            ids = [id for id, _ in entries]  # noqa: A001
            # Deleted first: an entry that is read again and gone is acknowledged; the other way round it would stay.
            await asyncio.gather(client.submit("XDEL", stream, *ids), client.submit("XACK", stream, GROUP, *ids))
        if self._start == _FIRST_ENTRY and len(entries) < BATCH:
            self._start = _NEW_ENTRIES
            return True
        return len(entries) == BATCH

    async def _join(self) -> None:
        with contextlib.suppress(StoreError):  # the group exists
            await self.usage.client.call("XGROUP", "CREATE", self.usage.stream, GROUP, _FIRST_ENTRY, "MKSTREAM")
        self._joined, self._start = True, _FIRST_ENTRY

    async def _housekeep(self, *, idle: bool) -> None:
        """Report a stream that grows, drop old months and, when `idle`, close the requests that never ended."""
        self._last_housekeeping = time.monotonic()
        waiting = await self.usage.length()
        if waiting > self.usage.max_entries // 10:
            log.error("usage_log_lags", entries=waiting, full_at=self.usage.max_entries)
        for dropped in self.database.drop_before(months_ago(self._retention_months)):
            log.info("usage_month_dropped", month=dropped)
        if idle:
            before_ms = round((time.time() - self._crashed_after_s) * 1000)
            ends = await self._ends_of_holds(self.database.open_ids(before_ms, LOST_BATCH))
            self.database.write(ends)
            closed = len(ends) + self.database.close_crashed(before_ms)
            if closed:
                log.warning("requests_never_ended", closed_as="gateway_crashed", count=closed)

    async def _ends_of_holds(self, ids: list[str]) -> list[Record]:
        """Return ends for those requests that held money: with the account, and what it was charged for them."""
        ends = []
        if ids:
            async for account in Accounts(self.usage.client).all():
                for id, charged in (await self._wallet.ends(account.id, ids)).items():  # noqa: A001
                    arrival = queries.find(self.usage.folder, id)
                    if arrival is not None:
                        changes = {"outcome": Outcome.GATEWAY_CRASHED, "account": account.id, "charge_micros": charged}
                        ends.append(msgspec.structs.replace(arrival, **changes))
        return ends

    def _records(self, lines: Iterable[bytes]) -> list[Record]:
        """Return the records that can be stored; write the other lines to `unreadable`, so that they stop no others."""
        records = []
        for line in lines:
            try:
                records.append(checked(line))
            except ValueError:
                log.error("usage_record_unreadable", set_aside="unreadable")
                write_lines(self.usage.folder / "unreadable", [line])
        return records


async def _alone(lock: BinaryIO, stop: asyncio.Event) -> bool:
    """Wait until this process has the lock and return True, or False when `stop` was set first."""
    while not stop.is_set():
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), PAUSE_S)
    return False
