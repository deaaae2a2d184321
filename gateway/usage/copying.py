"""Which gateway of a store copies to ClickHouse: one at a time, since each has the records of all.

1. **The one that has the lease copies**; when it ends, another takes it within seconds. What both sent is one request.
2. **Nothing is missed**: the one that copies says up to which entry of the stream all is copied, and only then do the others
   skip what they knew by then. A gateway that misses entries leaves the copying to one that has them.
3. **What a gateway had before it shared a log** is in its files alone: it copies that by itself, whoever has the lease.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from gateway import durable
from gateway.config.schema import Config
from gateway.store.client.client import Client, Script
from gateway.usage import gaps, queries
from gateway.usage.clickhouse import ClickHouse, Copier
from gateway.usage.gaps import is_before, ms_of
from gateway.usage.gateways import gateways_of
from gateway.usage.installation import installation_of
from gateway.usage.keys import COPIED, COPIER, STREAM
from gateway.usage.reader import FIRST, position_of
from gateway.usage.spool import Spool

LEASE_MS: Final = 10_000
MARK: Final = "clickhouse.shared"

_TAKE: Final = Script(
    "take_lease",
    """
local holder = redis.call("GET", KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call("SET", KEYS[1], ARGV[1], "PX", ARGV[2])
return 1
""",
)
_SAY: Final = Script(
    "say_copied", 'if redis.call("GET", KEYS[1]) == ARGV[1] then redis.call("SET", KEYS[2], ARGV[2]) end return 0'
)


class SharedCopier(Copier):
    """Copies in turn with the other gateways of the store."""

    def __init__(self, database: ClickHouse, folder: Path, client: Client) -> None:
        super().__init__(database, folder)
        self._client = client
        self._installation = installation_of(folder)
        self._mark = folder / MARK
        self._known: tuple[str, str] | None = None
        """A place in the files, and an entry of the stream before which all that is up to there was written."""

    async def copy_batch(self) -> int:
        """Copy one batch if it is this gateway's turn; return its size. Raises `GatewayError` and `OSError`."""
        through = await position_of(self._client, self._installation)
        if not self._mark.exists():
            copied = await super().copy_batch()
            if not copied and through is not None:
                await asyncio.to_thread(durable.write, self._mark, b"")
            return copied
        done = (await self._client.call("GET", COPIED) or FIRST.encode()).decode()
        misses = self._misses(gaps.load(self._folder).gaps, done)
        if misses and await self._another_has_all(done):
            return await self._skip(done)
        if not await self._client.run(_TAKE, [COPIER], [self._installation, LEASE_MS]):
            return await self._skip(done)
        copied = await super().copy_batch()
        if not copied and through is not None and not misses and is_before(done, through):
            await self._client.run(_SAY, [COPIER, COPIED], [self._installation, through])
        return copied

    async def _another_has_all(self, done: str) -> bool:
        others = [each for each in await gateways_of(self._client) if each.installation != self._installation]
        return any(each.present and not self._misses(each.about.gaps, done) for each in others)

    async def _skip(self, done: str) -> int:
        """Move this gateway's place to where another one has copied all that is known here."""
        if self._known is not None and not is_before(done, self._known[1]):
            await asyncio.to_thread(durable.write, self._position, self._known[0].encode())
            self._known = None
        if self._known is None:
            place = (await asyncio.to_thread(queries.Tail, self._folder)).cursor
            if not Spool(self._folder / "spool").count():
                last = (await self._client.call("XINFO", "STREAM", STREAM))[b"last-generated-id"]
                self._known = place, last.decode()
        return 0

    @staticmethod
    def _misses(known: list[gaps.Gap], done: str) -> bool:
        """Return whether there is a gap in what is not copied yet."""
        return any(gap.last_ms > ms_of(done) for gap in known)


async def run(config: Config, url: str, stop: asyncio.Event) -> None:
    """Copy to the configuration's ClickHouse until `stop` is set."""
    client = Client.connect(url, timeout_s=5, connections=1)
    try:
        await SharedCopier(ClickHouse(config.usage.clickhouse), config.data_path / "usage", client).run(stop)
    finally:
        await client.close()
