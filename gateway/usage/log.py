"""The usage log as the gateway's processes use it: a stream that the sink drains, and a spool while there is no stream.

1. **An arrival is written before an upstream is called**, or the request is refused.
2. **The stream is never cut to a length**: only sinks remove entries, after they have written them. When the stream is full
   because no sink writes, new entries go to the spool, so that the store's memory is left to the balances.
3. **A record may be written twice**: records with the same id are merged.
4. **Each entry is read by one of the gateways of the store**: their sinks share one consumer group. In a cluster there are several
   streams, of which the id of a request chooses one, so that no node has all of them.
5. **What a store acknowledged and its successor lost is written again**: the end has all that the arrival had.
6. **Ends that neither the store nor the disk accepts are kept in memory** until one of them does (`Unwritten`). Requests that
   reached an upstream are charged, so their ends come first: what was refused is dropped when it needs more than its share of the
   memory. While neither accepts anything, no request reaches an upstream, so the charged ones are few.
7. **That a request never arrived may be said only where `SearchResult.unasked` is empty, too** (`ask`): it is searched for in the
   home, among the entries that are not in it yet, and in ClickHouse, and `gateways.Others` names the gateways that may know of it.
   The store itself searches among the entries, a page at a time, and returns only those that name the request: a page takes it a
   few milliseconds, and other calls are served between two pages.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gateway.base import crash_points
from gateway.base.errors import GatewayError, StoreAway
from gateway.base.ids import arrival_ms, utc
from gateway.base.log import log
from gateway.domain.exchange import Exchange, Request
from gateway.domain.facts import Caller
from gateway.operations.operation import Operation
from gateway.store.client.client import Client, Script
from gateway.store.client.durability import ReplayBuffer
from gateway.store.client.steps import HOLE, Declared, Step
from gateway.usage import queries
from gateway.usage.database import UnusableFile
from gateway.usage.gateways import Others, others_of
from gateway.usage.home import Home
from gateway.usage.record import PreparedRecord, Record, WrittenRecord, caller_of, decode, encode, line_of
from gateway.usage.stream import Spool, id_of, installation_of, short, streams_of

if TYPE_CHECKING:
    from gateway.usage.clickhouse import ClickHouse

FIELD: Final = b"record"
MAX_ENTRIES: Final = 200_000
"""Entries from which on the stream counts as full: 150 to 200 MB of the store's memory, more where usage objects are large."""

MAX_RECENT_BYTES: Final = 8 * 1024 * 1024
"""Bytes of ends that each process keeps for a minute to repeat them: ten to twenty thousand ends."""

_APPEND: Final = Script("append", "return redis.call('XADD', KEYS[1], '*', ARGV[1], ARGV[2])")

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

MEASURE_S: Final = 1.0
PAGE: Final = 1000
SEARCHED: Final = 200
"""Entries among which the store searches at once."""
MAX_CLOCK_SKEW_MS: Final = 60_000
"""How much earlier than the time in its id a request's entries may be. They may be any time later."""

MAX_BYTES: Final = 64 * 1024 * 1024
MAX_REFUSED_BYTES: Final = 8 * 1024 * 1024
LOG_INTERVAL_S: Final = 10.0


class SearchResult(msgspec.Struct, frozen=True):
    """What is known of a request. `unasked` has a sentence for each reason why more may be known elsewhere: of one without a
    `record` that it arrived, of one whose record is open how it ended.
    """

    record: Record | None
    unasked: list[str] = []


class UsageLog:
    """Arrivals, ends, and the record of one request.

    `home` has the records, its folder the spool; `clickhouse` has the requests that are no longer in the home.
    """

    def __init__(
        self,
        client: Client,
        home: Home,
        *,
        max_entries: int = MAX_ENTRIES,
        callers: str = "prefix",
        clickhouse: ClickHouse | None = None,
    ) -> None:
        self.client = client
        self.home = home
        self.folder = folder = home.folder
        self.streams = streams_of(client)
        self._only = self.streams[0] if len(self.streams) == 1 else ""
        self.spool = Spool(folder / "spool")
        self.max_entries = max_entries
        self._callers = callers
        self.installation = installation_of(folder)
        self.gateway = short(self.installation)
        """The name of this gateway in the records of the requests that it received."""
        self._recent = ReplayBuffer(MAX_RECENT_BYTES)
        self._lengths: dict[str, int] = {}
        self._full = False
        self._measured = -MEASURE_S
        self._unwritten = Unwritten()
        self._clickhouse = clickhouse
        self._searching = asyncio.Lock()

    def opened(self, exchange: Exchange) -> Record:
        """Return the record of a request that arrives."""
        return WrittenRecord(
            id=exchange.id,
            arrived_at=utc(arrival_ms(exchange.id)),
            operation=exchange.request.operation,
            config=exchange.generation,
            gateway=self.gateway,
        )

    def caller_of(self, request: Request) -> tuple[str, str]:
        """Return the address and the user agent of a request as its record has them."""
        return caller_of(self._callers, request.peer, request.headers.get("User-Agent", ""))

    def submit_arrival(self, arrival: Record | bytes) -> SentArrival:
        """Send an arrival, a record or its line, with the other calls of this tick; the caller must await what is returned.

        It ends when the arrival is written, or in `StoreAway`: then the request must be refused, and the arrival is in the spool
        unless the disk does not accept it either.
        """
        line = arrival if isinstance(arrival, bytes) else encode(arrival)
        sent = self.send(line)
        crash_points.point("arrival.sent")
        return SentArrival(self, line, sent)

    async def end(self, record: Record) -> None:
        """Write the end of a request to the stream or to the spool; where neither accepts it, keep it for `write_down`.

        Raises `ValueError` or `TypeError` for a record that the database cannot store; nothing is written then.
        """
        line = line_of(record)
        crash_points.point("record.before")
        try:
            await self.send(line)
        except GatewayError:
            await self._spool_end(record, line)
        else:
            self.appended(line)

    async def end_step(self, record: Record) -> Step | None:
        """Return the step that does what `end` does; None where the stream is full, so that the record is in the spool.

        Raises `ValueError` or `TypeError` for a record that the database cannot store.
        """
        if not self.takes_ends():
            await self.end(record)
            return None
        line = line_of(record)

        async def read(_: bytes) -> None:
            self.appended(line)

        async def failed(_: GatewayError) -> None:
            await self._spool_end(record, line)

        return self.appending(line).step("", self.to_append(line), read, failed)

    def takes_ends(self) -> bool:
        """Return whether ends go to the stream, as it is not full."""
        self._measure()
        return not self._full

    def appending(self, line: bytes = b"") -> Declared:
        """Return the declared step that appends a line, whose hole `to_append` fills. A cluster has several streams for lines."""
        return Declared(_APPEND, (self._only or self._stream_of(line),), (FIELD, HOLE))

    @staticmethod
    def to_append(line: bytes) -> Sequence[bytes]:
        """Return what fills the hole of `appending`."""
        crash_points.point("record.before")
        return (line,)

    def appended(self, line: bytes) -> None:
        """Note that a line was appended by a step."""
        self._recent.add(line)
        crash_points.point("record.after")

    def prepared(self, operation: Operation, generation: int, caller: Caller, model: str) -> PreparedRecord:
        """Return the lines of one caller's requests for one model."""
        return PreparedRecord(operation, generation, self.gateway, caller, model)

    @staticmethod
    def can_store(record: Record) -> bool:
        """Return whether the database can store a record."""
        try:
            line_of(record)
        except (ValueError, TypeError):
            return False
        return True

    async def write_down(self) -> int:
        """Write the ends that neither the stream nor the spool accepted, and return how many they accept now."""
        lines = self._unwritten.take()
        count = len(lines)
        try:
            while lines and await self._accepted(lines[:PAGE]):
                del lines[:PAGE]
        finally:
            self._unwritten.put_back(lines)
        return count - len(lines)

    async def repeat(self) -> int:
        """Write the recent ends again, to a store that may have lost them; return how many. Raises `StoreAway`."""
        recent = list(self._recent)
        for start in range(0, len(recent), PAGE):
            await asyncio.gather(*map(self.send, recent[start : start + PAGE]))
        return len(recent)

    async def ask(self, id: str, account: str | None = None) -> SearchResult:  # noqa: A002 - the field's name
        """Return a request's record as far as it is known, or who else may know of it.

        With `account`, return only that account's: a record without one (refused before an account was found, or not yet
        ended) is for operators alone. Raises `StoreAway` where the store is needed and does not answer.
        """
        record, unusable = await self._look(id)
        if record is None or account not in (None, record.account):
            # What the other gateways hold is asked first: what they write afterwards is found by the second search.
            known = await self.known()
            record, unusable = await self._look(id)
        if record is None or account not in (None, record.account):
            # A caller learns the same of a request of another account as of one that is nowhere. An arrival has no account: whose
            # request it is, and how it ended, another gateway may know.
            return SearchResult(None, [*map(str, unusable), *known.unasked(id, ended=account is not None)])
        if record.outcome:
            return SearchResult(record)
        return SearchResult(record, [*map(str, unusable), *(await self.known()).may_have_end(record)])

    async def _look(self, id: str) -> tuple[Record | None, list[UnusableFile]]:  # noqa: A002
        """Return a request's record as far as it is known here, and the error of a home that may have it, or its end."""
        unusable: list[UnusableFile] = []
        try:
            record = await asyncio.to_thread(queries.find, self.home, id)
        except UnusableFile as error:
            record = None
            unusable.append(error)
        if record is None or record.outcome is None:
            waiting = await self._waiting(id)
            if not unusable and (waiting is None or waiting.outcome is None):
                # A sink writes an entry before it removes it: one that left the stream meanwhile is in the home by now.
                waiting = await asyncio.to_thread(queries.find, self.home, id) or waiting
            record = waiting
        if record is None and self._clickhouse is not None:
            record = await self._clickhouse.find(id)
        return record, unusable

    async def _waiting(self, id: str) -> Record | None:  # noqa: A002 - the field's name
        """Return the end of a request if it waits in a stream, else its arrival. Raises `StoreAway`."""
        try:
            start = f"{max(0, arrival_ms(id) - MAX_CLOCK_SKEW_MS)}"
        except ValueError:
            return None
        arrival: Record | None = None
        async with self._searching:  # one search at a time in a process
            for stream in self.streams:
                after = start
                while after:
                    cursor, lines = await self.client.run(_SEARCH, [stream], [after, "+", SEARCHED, id])
                    for record in filter(None, map(_decoded, lines)):
                        if record.id == id and record.outcome is not None:
                            return record
                        arrival = record if record.id == id else arrival
                    after = f"({cursor.decode()}" if cursor else ""
        return arrival

    async def known(self) -> Others:
        """Return what the home may not have, at this moment. Raises `StoreAway`."""
        spooled = await asyncio.to_thread(self.spool.count)
        return await others_of(self.client, self.home, self.installation, spooled)

    async def length(self) -> int:
        """Return how many entries the streams have: those that no sink has written yet. Raises `StoreAway`."""
        return sum(await asyncio.gather(*(self.client.call("XLEN", stream) for stream in self.streams)))

    async def oldest_ms(self) -> int | None:
        """Return when the oldest entry was written that no sink has written yet, by the store's clock. Raises `StoreAway`."""
        pages = await asyncio.gather(
            *(self.client.call("XRANGE", stream, "-", "+", "COUNT", 1) for stream in self.streams)
        )
        return min((int(entry[0].partition(b"-")[0]) for page in pages for entry in page or ()), default=None)

    async def _spool_end(self, record: Record, line: bytes) -> None:
        """Write an end to the spool; where that does not accept it, keep it for `write_down`."""
        try:
            await self._spool(line)
        except StoreAway as error:
            self._unwritten.add(record, str(error))
        crash_points.point("record.after")

    def _measure(self) -> None:
        """Ask for the stream's length, once a second at most."""
        now = time.monotonic()
        if now - self._measured >= MEASURE_S:
            self._measured = now
            for stream in self.streams:
                self.client.submit("XLEN", stream).add_done_callback(partial(self._set_full, stream))

    def send(self, line: bytes) -> asyncio.Future[Any]:
        """Write a line to the stream, or to the spool where that is full. The future may get `StoreAway`."""
        self._measure()
        if self._full:
            return asyncio.ensure_future(self._spool(line))
        return self.client.submit("XADD", self._only or self._stream_of(line), "*", FIELD, line)

    def _stream_of(self, line: bytes) -> str:
        """Return the stream of a request: random digits of its id choose."""
        return self.streams[int(id_of(line)[-2:], 16) % len(self.streams)]

    async def _accepted(self, lines: list[bytes]) -> bool:
        """Write lines to the stream, or else to the spool; return whether they are written."""
        results = await asyncio.gather(*map(self.send, lines), return_exceptions=True)
        if any(isinstance(result, BaseException) for result in results):
            results = await asyncio.gather(*map(self.spool.append, lines), return_exceptions=True)
        return not any(isinstance(result, BaseException) for result in results)

    def _set_full(self, stream: str, length: asyncio.Future[Any]) -> None:
        if length.exception() is None:
            self._lengths[stream] = length.result()
            self._full = sum(self._lengths.values()) >= self.max_entries

    async def written(self, line: bytes, sent: asyncio.Future[Any]) -> None:
        """Wait until an arrival that was sent is written; where the store does not accept it, write it to the spool and raise."""
        try:
            await sent
        except GatewayError as error:
            await self._spool(line)
            raise StoreAway(f"the arrival could not be kept in the store: {error}") from None

    async def _spool(self, line: bytes) -> None:
        try:
            await self.spool.append(line)
        except OSError as error:
            raise StoreAway(
                f"the usage log can be written neither to the store nor to the disk ({error.strerror})"
            ) from None


def _decoded(line: bytes) -> Record | None:
    """Return a record; None for an entry that the sink will set aside."""
    try:
        return decode(line)
    except msgspec.MsgspecError:
        return None


class SentArrival(msgspec.Struct, eq=False):
    """An arrival that was sent to a log. To await it is to know that it is written."""

    _log: UsageLog
    _line: bytes
    sent: asyncio.Future[Any]

    def __await__(self) -> Generator[object, None, None]:
        sent = self.sent
        if not sent.done() or sent.cancelled() or sent.exception() is not None:
            yield from self._log.written(self._line, sent).__await__()


class Unwritten:
    """The ends that one process keeps."""

    def __init__(self) -> None:
        self._lines: list[bytes] = []
        self._bytes = 0
        self._dropped = 0
        self._logged = -LOG_INTERVAL_S

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, record: Record, reason: str) -> None:
        """Keep an end, and log that now and then."""
        line = encode(record)
        if self._bytes + len(line) > (MAX_BYTES if record.attempts or record.charge_micros else MAX_REFUSED_BYTES):
            self._dropped += 1
        else:
            self._lines.append(line)
            self._bytes += len(line)
        if time.monotonic() - self._logged >= LOG_INTERVAL_S:
            self._logged = time.monotonic()
            log.error("records_not_written", reason=reason, in_memory=len(self._lines), dropped=self._dropped)

    def take(self) -> list[bytes]:
        """Return all lines, and keep none."""
        lines, self._lines, self._bytes = self._lines, [], 0
        return lines

    def put_back(self, lines: list[bytes]) -> None:
        """Keep lines again that could not be written."""
        self._lines = lines + self._lines
        self._bytes += sum(map(len, lines))
