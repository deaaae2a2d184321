"""The usage log as the gateway's processes see it: a stream that the sink drains, a spool where there is no
stream.

1. **An arrival is kept before an upstream is called**, or the request is refused.
2. **The stream is never trimmed**: only the sink takes away, after it has kept. A stream that is full,
   because nobody drains it, leaves the store's memory to the balances: what comes then goes to the spool.
3. **Anything may be written twice**: the id makes it one.
4. **A request's arrival and end go to the same folder**: every machine has a stream of its own.
5. **What a store acknowledged and its successor forgot is kept again**: the end tells all that the arrival did.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from gateway import crash_points
from gateway.errors import GatewayError, StoreAway
from gateway.request_id import arrival_ms
from gateway.store.client.client import Client
from gateway.store.client.replay_buffer import ReplayBuffer
from gateway.usage import queries
from gateway.usage.clickhouse import ClickHouse
from gateway.usage.record import Record, decode, encode
from gateway.usage.spool import Spool

FIELD: Final = b"record"
MOST: Final = 200_000
"""Entries above which the stream counts as full: some 100 MB of the store's memory."""

MOST_RECENT: Final = 512 * 1024
"""Bytes of compressed ends that each process remembers: ten to twenty thousand."""

MEASURE_S: Final = 1.0
CLOCKS_APART_MS: Final = 60_000
PAGE: Final = 1000


class UsageLog:
    """Arrivals, ends, and the record of one request. `folder` holds the files of the sink and the spool; `elsewhere`
    knows the requests that ended on other machines.
    """

    def __init__(self, client: Client, folder: Path, *, most: int = MOST, elsewhere: ClickHouse | None = None) -> None:
        self._elsewhere = elsewhere
        self.client = client
        self.folder = folder
        self.spool = Spool(folder / "spool")
        self.most = most
        self.stream = f"gw:usage:{_installation(folder)}"
        self._recent = ReplayBuffer(MOST_RECENT)
        self._spooling: set[asyncio.Task[None]] = set()
        self._full = False
        self._measured = -MEASURE_S

    def submit_arrival(self, record: Record) -> asyncio.Future[object]:
        """Send an arrival with the other calls of this tick; somebody must await the future.

        It ends when the arrival is kept, or in `StoreAway`: then the request must be refused, and the arrival
        is in the spool, unless the disk does not take it either.
        """
        line = encode(record)
        kept: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._send(line).add_done_callback(partial(self._arrived, line, kept))
        crash_points.point("arrival.sent")
        return kept

    async def end(self, record: Record) -> None:
        """Keep the end of a request, in the stream or in the spool. Raises `StoreAway` where neither takes
        it.
        """
        line = encode(record)
        crash_points.point("record.before")
        try:
            await self._send(line)
        except GatewayError:
            await self._spool(line)
        else:
            self._recent.add(line)
        crash_points.point("record.after")

    async def repeat(self) -> int:
        """Keep again what ended lately, in a store that may have forgotten it; returns how many. Raises `StoreAway`."""
        recent = list(self._recent)
        for start in range(0, len(recent), PAGE):
            await asyncio.gather(*map(self._send, recent[start : start + PAGE]))
        return len(recent)

    async def find(self, id: str, account: str | None = None) -> Record | None:  # noqa: A002 - the field's name
        """A request's record as far as it is known; None where it never arrived, or longer ago than records
        are kept.

        With `account`, only that account's: a record of nobody (refused before an account was found, or not yet ended)
        is told to operators alone. Raises `StoreAway` where nothing can be said
        without the store.
        """
        record = await asyncio.to_thread(queries.find, self.folder, id)
        if record is None or record.outcome is None:
            # The sink keeps before it takes away: what left the stream is in the files at the second look.
            waiting = await self._find_in_stream(id)
            if waiting is None or waiting.outcome is None:
                waiting = await asyncio.to_thread(queries.find, self.folder, id) or waiting
            record = waiting
        if record is None and self._elsewhere is not None:
            record = await self._elsewhere.find(id)
        return record if record is None or account in (None, record.account) else None

    async def length(self) -> int:
        """How many entries the sink has not taken away yet."""
        return int(await self.client.call("XLEN", self.stream))

    def _send(self, line: bytes) -> asyncio.Future[Any]:
        now = time.monotonic()
        if now - self._measured >= MEASURE_S:
            self._measured = now
            self.client.submit("XLEN", self.stream).add_done_callback(self._learn)
        if self._full:
            return asyncio.ensure_future(self._spool(line))
        return self.client.submit("XADD", self.stream, "*", FIELD, line)

    def _learn(self, length: asyncio.Future[Any]) -> None:
        if length.exception() is None:
            self._full = length.result() >= self.most

    def _arrived(self, line: bytes, kept: asyncio.Future[object], sent: asyncio.Future[Any]) -> None:
        error = sent.exception()
        if error is not None:
            spooling = asyncio.get_running_loop().create_task(self._refuse(line, kept, error))
            self._spooling.add(spooling)
            spooling.add_done_callback(self._spooling.discard)
        elif not kept.done():
            kept.set_result(None)

    async def _refuse(self, line: bytes, kept: asyncio.Future[object], error: BaseException) -> None:
        """Tell who waits for an arrival that the store did not keep it, once the spool has it."""
        refusal = StoreAway(f"the arrival could not be kept in the store: {error}")
        try:
            await self._spool(line)
        except StoreAway as nowhere:
            refusal = nowhere
        if not kept.done():
            kept.set_exception(refusal)

    async def _spool(self, line: bytes) -> None:
        try:
            await self.spool.append(line)
        except OSError as error:
            raise StoreAway(
                f"the usage log can be written neither to the store nor to the disk ({error.strerror})"
            ) from None

    async def _find_in_stream(self, id: str) -> Record | None:  # noqa: A002
        try:
            start = str(max(0, arrival_ms(id) - CLOCKS_APART_MS))
        except ValueError:
            return None
        found: Record | None = None
        for _ in range(2 * self.most // PAGE):
            page = await self.client.call("XRANGE", self.stream, start, "+", "COUNT", PAGE)
            for _, fields in page:
                line = fields[FIELD]
                if id.encode() in line and (record := decode(line)).id == id:
                    if record.outcome is not None:
                        return record
                    found = record
            if len(page) < PAGE:
                break
            start = f"({page[-1][0].decode()}"
        return found


def _installation(folder: Path) -> str:
    """What tells this folder's stream from those of other machines at the same store: one request, one
    folder.
    """
    path = folder / "installation"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        name = uuid4().hex
        passing = path.with_suffix(f".{name}")
        passing.write_text(name)
        with contextlib.suppress(FileExistsError):
            os.link(passing, path)  # of two processes at once the first one wins
        passing.unlink()
    return path.read_text()
