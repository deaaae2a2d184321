"""The search for one request among the entries of the stream that the sink has not removed yet.

The store searches, a page at a time, and returns only the entries that name the request: a page takes it a few
milliseconds, and other calls are served between two pages.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from gateway.request_id import arrival_ms
from gateway.store.client.client import Client, Script
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


class Waiting:
    """The entries of one stream. `longest_ms`: how long a request may take to end."""

    def __init__(self, client: Client, stream: str, longest_ms: int) -> None:
        self._client = client
        self._stream = stream
        self._longest_ms = longest_ms
        self._turn = asyncio.Lock()

    async def find(self, id: str) -> Record | None:  # noqa: A002 - the field's name
        """Return the end of a request if it waits here, else its arrival. Raises `StoreAway`."""
        try:
            arrived = arrival_ms(id)
        except ValueError:
            return None
        start, last = str(max(0, arrived - MAX_CLOCK_SKEW_MS)), str(arrived + self._longest_ms + MAX_CLOCK_STEP_MS)
        arrival: Record | None = None
        async with self._turn:  # one search at a time in a process
            while start:
                cursor, lines = await self._client.run(_SEARCH, [self._stream], [start, last, PAGE, id])
                for line in lines:
                    record = _decoded(line)
                    if record is not None and record.id == id:
                        if record.outcome is not None:
                            return record
                        arrival = record
                start = f"({cursor.decode()}" if cursor else ""
        return arrival


def _decoded(line: bytes) -> Record | None:
    """Return a record; None for an entry that the sink will set aside."""
    try:
        return decode(line)
    except msgspec.MsgspecError:
        return None
