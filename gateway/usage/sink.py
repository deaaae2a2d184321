"""The process that drains the usage log's stream and spool into files.

1. **Kept first, taken away after**: an entry leaves the stream, a file the spool, only when its records are
   on the disk. A kill at any moment means that something is written twice, and the id makes that one.
2. **One sink at a time has a folder**: the kernel holds its lock, and gives it back however the sink ends.
   The next one begins with what the last one had read and not taken away.
3. **A request that never ends is closed** as `gateway_crashed`, but only when nothing waits that could be its
   end. Whose it was is known only of those that held money: an arrival comes before that is decided, and a second line
   for each request would cost all of them a call.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import sqlite3
import time
from collections.abc import Iterable
from typing import BinaryIO, Final

import msgspec
import structlog

from gateway.config.schema import Config
from gateway.errors import GatewayError, StoreError
from gateway.exchange import Outcome
from gateway.request_id import month
from gateway.store.accounts import Accounts
from gateway.store.client.client import Client
from gateway.store.money.wallet import Wallet
from gateway.usage import queries
from gateway.usage.database import UsageDatabase, months_ago
from gateway.usage.log import FIELD, UsageLog
from gateway.usage.record import Record, decode
from gateway.usage.spool import keep

log = structlog.get_logger("gateway.usage.sink")

GROUP: Final = "sink"
BATCH: Final = 2000
FILES: Final = 200
PAUSE_S: Final = 0.2
"""Between two looks at a stream that was empty: what comes meanwhile shares one transaction."""

LAST_DRAIN_S: Final = 3.0
HOUSEKEEPING_S: Final = 60.0
MARGIN_S: Final = 60.0
LOST: Final = 200
"""Requests without an end for whose account all accounts are asked, in one round of housekeeping."""


async def run(config: Config, url: str, stop: asyncio.Event) -> None:
    """Drain into the configuration's folder until `stop` is set, and then what is left, for a few seconds at
    most.
    """
    folder = config.data_path / "usage"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    client = Client.connect(url, timeout_s=5, connections=1)
    sink = Sink(
        UsageLog(client, folder),
        retention_months=config.usage.retention_months,
        crashed_after_s=crashed_after_s(config),
    )
    try:
        with (folder / "sink.lock").open("ab") as lock:
            if await _alone(lock, stop):
                await sink.run(stop)
    finally:
        await client.close()


def crashed_after_s(config: Config) -> float:
    """Seconds after which a request must have ended, whatever its channels did."""
    slowest = max((channel.timers.total + channel.drain_limit for channel in config.channels.values()), default=0)
    return config.port.body_timeout + slowest + MARGIN_S


class Sink:
    """Moves records from one stream and one spool to one folder."""

    def __init__(self, usage: UsageLog, *, retention_months: int, crashed_after_s: float) -> None:
        self.usage = usage
        self.rows = UsageDatabase(usage.folder)
        self._wallet = Wallet(usage.client)
        self._retention_months = retention_months
        self._crashed_after_s = crashed_after_s
        self._joined = False
        self._from = "0"
        self._cleaned = time.monotonic()
        self._failing = False

    async def run(self, stop: asyncio.Event) -> None:
        """Drain until `stop` is set, and then what is left."""
        while not stop.is_set():
            if not await self.step():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), PAUSE_S)
        deadline = time.monotonic() + LAST_DRAIN_S
        while await self.step() and time.monotonic() < deadline:
            pass
        self.rows.close()

    async def step(self) -> bool:
        """Move one batch; whether more is waiting. What fails is tried again at the next step, from where it
        was.
        """
        try:
            more = self._replay()
            more |= await self._drain()
            if time.monotonic() - self._cleaned >= HOUSEKEEPING_S:
                await self._clean(idle=not more)
        except (GatewayError, sqlite3.Error, OSError) as error:
            self._joined = False
            if not self._failing:
                log.error("sink_waits", reason=f"{type(error).__name__}: {error}")
            self._failing = True
            return False
        if self._failing:
            log.warning("sink_goes_on")
        self._failing = False
        return more

    def _replay(self) -> bool:
        files = self.usage.spool.files()[:FILES]
        if files:
            self.rows.write(self._records(line for file in files for line in file.read_bytes().splitlines()))
            for file in files:
                file.unlink()
        return len(files) == FILES

    async def _drain(self) -> bool:
        if not self._joined:
            await self._join()
        stream, call = self.usage.stream, self.usage.client.call
        question = ("XREADGROUP", "GROUP", GROUP, GROUP, "COUNT", BATCH, "STREAMS", stream, self._from)
        entries = [entry for page in (await call(*question) or {}).values() for entry in page[0]]
        if entries:
            self.rows.write(self._records(fields[FIELD] for _, fields in entries if fields))
            ids = [number for number, _ in entries]
            # Deleted first: an entry that is read again and gone is acknowledged; the other way round it would stay.
            await asyncio.gather(
                self.usage.client.submit("XDEL", stream, *ids), self.usage.client.submit("XACK", stream, GROUP, *ids)
            )
        if self._from == "0" and len(entries) < BATCH:
            self._from = ">"
            return True
        return len(entries) == BATCH

    async def _join(self) -> None:
        with contextlib.suppress(StoreError):  # it is there
            await self.usage.client.call("XGROUP", "CREATE", self.usage.stream, GROUP, "0", "MKSTREAM")
        self._joined, self._from = True, "0"

    async def _clean(self, *, idle: bool) -> None:
        """What is due once a minute: the alarm, retention, and the requests that never ended."""
        self._cleaned = time.monotonic()
        waiting = await self.usage.length()
        if waiting > self.usage.most // 10:
            log.error("usage_log_lags", entries=waiting, full_at=self.usage.most)
        for dropped in self.rows.drop_before(months_ago(self._retention_months)):
            log.info("usage_month_dropped", month=dropped)
        if idle:
            before_ms = round((time.time() - self._crashed_after_s) * 1000)
            lost = await self._lost(self.rows.under_way(before_ms, LOST))
            self.rows.write(lost)
            closed = len(lost) + self.rows.close_crashed(before_ms)
            if closed:
                log.warning("requests_never_ended", closed_as="gateway_crashed", count=closed)

    async def _lost(self, ids: list[str]) -> list[Record]:
        """Those of the requests that never ended for which an account held money, as what it says became of them."""
        ends = []
        if ids:
            async for account in Accounts(self.usage.client).all():
                for id, charged in (await self._wallet.ends(account.id, ids)).items():  # noqa: A001
                    opened = queries.find(self.usage.folder, id)
                    if opened is not None:
                        told = {"outcome": Outcome.GATEWAY_CRASHED, "account": account.id, "charge_micros": charged}
                        ends.append(msgspec.structs.replace(opened, **told))
        return ends

    def _records(self, lines: Iterable[bytes]) -> list[Record]:
        """What can be read; the rest is set aside, since it must neither be lost nor stop the others."""
        records = []
        for line in lines:
            try:
                record = decode(line)
                month(record.id)
                records.append(record)
            except (msgspec.MsgspecError, ValueError):
                log.error("usage_record_unreadable", set_aside="unreadable")
                keep(self.usage.folder / "unreadable", [line])
        return records


async def _alone(lock: BinaryIO, stop: asyncio.Event) -> bool:
    """Wait for the lock; False when `stop` was set first."""
    while not stop.is_set():
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), PAUSE_S)
    return False
