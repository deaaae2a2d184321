"""The search for one request among the entries of the stream that the sink has not written yet.

The store searches, a page at a time, and returns only the entries that name the request: a page takes it a few
milliseconds, and other calls are served between two pages.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from gateway.request_id import arrival_ms
from gateway.store.client.client import Client, Script
from gateway.usage.gaps import ms_of
from gateway.usage.keys import EARLIER, LATE, STREAM
from gateway.usage.reader import FIRST, position_of
from gateway.usage.record import Record, decode

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
            found = await self._search(STREAM, id, *await self._range(arrived))
            earlier = f"{EARLIER}{self._installation}"
            if found is None and await self._client.call("XLEN", earlier):
                found = await self._search(earlier, id, *self._times(arrived))
        return found

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
        total = await self._client.call("XLEN", f"{EARLIER}{self._installation}")
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
