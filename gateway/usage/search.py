"""The search for one request: in the files, among the entries that are not in them yet, and in ClickHouse; and who was not asked.

That a request never arrived may be said only where `Found.unasked` is empty, too.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gateway.store.client.client import Client
from gateway.usage import queries
from gateway.usage.coverage import Coverage
from gateway.usage.damage import FilesUnusable, UnusableFile
from gateway.usage.record import Record
from gateway.usage.waiting import Waiting

if TYPE_CHECKING:
    from gateway.usage.clickhouse import ClickHouse


class Found(msgspec.Struct, frozen=True):
    """What is known of a request. `unasked` has a sentence for each reason why more may be known elsewhere: of one without a
    `record` that it arrived, of one whose record is open how it ended.
    """

    record: Record | None
    unasked: list[str] = []


class Search:
    """Searches for requests of all gateways of the store. `clickhouse` has those that are too old for the files."""

    def __init__(
        self, client: Client, folder: Path, installation: str, longest_ms: int, clickhouse: ClickHouse | None
    ) -> None:
        self._folder = folder
        self._clickhouse = clickhouse
        self.waiting = Waiting(client, installation, longest_ms)
        self.coverage = Coverage(client, folder, installation)

    async def ask(self, id: str, account: str | None = None) -> Found:  # noqa: A002 - the field's name
        """Return a request's record as far as it is known, or who else may know of it.

        With `account`, return only that account's: a record without one (refused before an account was found, or not yet
        ended) is for operators alone. Raises `StoreAway` where the store is needed and does not answer.
        """
        record, unusable = await self._look(id)
        if record is None or account not in (None, record.account):
            # What the other gateways hold is asked first: what they hand over afterwards is found by the second search.
            known = await self.coverage.known()
            record, unusable = await self._look(id)
        if record is None or account not in (None, record.account):
            # A caller learns the same of a request of another account as of one that is nowhere. An arrival has no account: whose
            # request it is, and how it ended, another gateway may know.
            return Found(None, [*map(str, unusable), *known.unasked(id, ended=account is not None)])
        if record.outcome:
            return Found(record)
        return Found(record, [*map(str, unusable), *(await self.coverage.known()).may_have_end(record)])

    async def find(self, id: str) -> Record | None:  # noqa: A002
        """Return a request's record as far as it is known here. Raises `StoreAway`, also for a file that cannot be read."""
        record, unusable = await self._look(id)
        if record is None and unusable:
            raise FilesUnusable(str(unusable[0]))
        return record

    async def _look(self, id: str) -> tuple[Record | None, list[UnusableFile]]:  # noqa: A002
        """Return a request's record as far as it is known here, and the error of a file that may have it, or its end."""
        unusable: list[UnusableFile] = []
        try:
            record = await asyncio.to_thread(queries.find, self._folder, id)
        except UnusableFile as error:
            record = None
            unusable.append(error)
        if record is None or record.outcome is None:
            waiting = await self.waiting.find(id)
            if not unusable and (waiting is None or waiting.outcome is None):
                # The sink writes an entry before it removes it: one that left the stream meanwhile is in the files by now.
                waiting = await asyncio.to_thread(queries.find, self._folder, id) or waiting
            record = waiting
        if record is None and self._clickhouse is not None:
            record = await self._clickhouse.find(id)
        return record, unusable
