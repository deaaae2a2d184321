"""The search for one request: in the home, among the entries that are not in it yet, and in ClickHouse; and who was not asked.

That a request never arrived may be said only where `SearchResult.unasked` is empty, too: `gateways.Others` names the gateways of
the store that may know of it.

The store itself searches among the entries that no sink has written yet, a page at a time, and returns only those that name the
request: a page takes it a few milliseconds, and other calls are served between two pages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from gateway.base.ids import arrival_ms
from gateway.store.client.client import Client, Script
from gateway.usage import queries
from gateway.usage.database import UnusableFile
from gateway.usage.gateways import Others
from gateway.usage.home import Home
from gateway.usage.record import Record, decode

if TYPE_CHECKING:
    from gateway.usage.clickhouse import ClickHouse

PAGE: Final = 200
MAX_CLOCK_SKEW_MS: Final = 60_000
"""How much earlier than the time in its id a request's entries may be. They may be any time later."""

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


class SearchResult(msgspec.Struct, frozen=True):
    """What is known of a request. `unasked` has a sentence for each reason why more may be known elsewhere: of one without a
    `record` that it arrived, of one whose record is open how it ended.
    """

    record: Record | None
    unasked: list[str] = []


class Search:
    """Searches for requests of all gateways of the store. `clickhouse` has those that are too old for the home.

    `known` returns what the home may not have.
    """

    def __init__(
        self,
        client: Client,
        home: Home,
        streams: Sequence[str],
        known: Callable[[], Awaitable[Others]],
        clickhouse: ClickHouse | None,
    ) -> None:
        self._client = client
        self._home = home
        self._streams = streams
        self._known = known
        self._clickhouse = clickhouse
        self._turn = asyncio.Lock()

    async def ask(self, id: str, account: str | None = None) -> SearchResult:  # noqa: A002 - the field's name
        """Return a request's record as far as it is known, or who else may know of it.

        With `account`, return only that account's: a record without one (refused before an account was found, or not yet
        ended) is for operators alone. Raises `StoreAway` where the store is needed and does not answer.
        """
        record, unusable = await self._look(id)
        if record is None or account not in (None, record.account):
            # What the other gateways hold is asked first: what they write afterwards is found by the second search.
            known = await self._known()
            record, unusable = await self._look(id)
        if record is None or account not in (None, record.account):
            # A caller learns the same of a request of another account as of one that is nowhere. An arrival has no account: whose
            # request it is, and how it ended, another gateway may know.
            return SearchResult(None, [*map(str, unusable), *known.unasked(id, ended=account is not None)])
        if record.outcome:
            return SearchResult(record)
        return SearchResult(record, [*map(str, unusable), *(await self._known()).may_have_end(record)])

    async def _look(self, id: str) -> tuple[Record | None, list[UnusableFile]]:  # noqa: A002
        """Return a request's record as far as it is known here, and the error of a home that may have it, or its end."""
        unusable: list[UnusableFile] = []
        try:
            record = await asyncio.to_thread(queries.find, self._home, id)
        except UnusableFile as error:
            record = None
            unusable.append(error)
        if record is None or record.outcome is None:
            waiting = await self._waiting(id)
            if not unusable and (waiting is None or waiting.outcome is None):
                # A sink writes an entry before it removes it: one that left the stream meanwhile is in the home by now.
                waiting = await asyncio.to_thread(queries.find, self._home, id) or waiting
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
        async with self._turn:  # one search at a time in a process
            for stream in self._streams:
                after = start
                while after:
                    cursor, lines = await self._client.run(_SEARCH, [stream], [after, "+", PAGE, id])
                    for record in filter(None, map(_decoded, lines)):
                        if record.id == id and record.outcome is not None:
                            return record
                        arrival = record if record.id == id else arrival
                    after = f"({cursor.decode()}" if cursor else ""
        return arrival


def _decoded(line: bytes) -> Record | None:
    """Return a record; None for an entry that the sink will set aside."""
    try:
        return decode(line)
    except msgspec.MsgspecError:
        return None
