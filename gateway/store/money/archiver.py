"""Moving old lines of ledgers into the archive: first written to the disk, then trimmed, a page at a time.

1. **At every moment the balance equals the archived sum plus the sum of the ledger**: one script trims exactly the lines
   that were written, and adds them to what the account says is archived.
2. **A run may be killed at any point, and two may run at once.** What was written and not trimmed is found again by the next
   run; the script trims nothing where more is archived than this run knows of.
3. **No line moves while a late settlement may still refer to its request**; the script enforces that, by the store's clock.
"""

from __future__ import annotations

import asyncio
from typing import Final

from gateway import crash_points
from gateway.errors import StoreAway
from gateway.store.client.client import Client
from gateway.store.money.archive import Archive, Archived, ArchiveError, Entry
from gateway.store.money.scripts import KEEP_S, SKEW_S, keys_of, script

PAGE: Final = 1000
YOUNGEST_S: Final = KEEP_S + 2 * SKEW_S
"""The minimum age of a line that may move."""


class Archiver:
    """Moves lines from a store into an archive; `keep_s` and `skew_s` are as for the wallet."""

    def __init__(self, client: Client, archive: Archive, *, keep_s: float = KEEP_S, skew_s: float = SKEW_S) -> None:
        self._client = client
        self.archive = archive
        self._window = (int(keep_s * 1000), int(skew_s * 1000))
        self.script = script("archive")

    async def move(self, account: str, before_ms: int) -> int:
        """Move an account's lines from before `before_ms` of the store's clock; return how many.

        `before_ms` is `YOUNGEST_S` ago or more. Raises `ArchiveError` where the archive is not as the store says,
        `StoreAway`, and `StoreError` where a line is too young. After any of these, another run continues from there.
        """
        if not await self._lines(account, "-", before_ms):
            return 0
        moved = 0
        with self.archive.locked(account) as file:
            archived = await self._archived(account)
            await asyncio.to_thread(file.verify, archived)
            while page := await self._lines(account, f"({archived.last}", before_ms):
                if await self._archived(account) != archived:  # what another has trimmed is missing before this page
                    raise _elsewhere(account)
                await asyncio.to_thread(file.append, page)
                crash_points.point("archive.written")
                last, _ = page[-1]
                archived = await self.trim(account, archived, len(page), last)
                moved += len(page)
        return moved

    async def trim(self, account: str, archived: Archived, count: int, last: bytes) -> Archived:
        """Trim the first `count` lines, up to `last`, which are in the file; return what is archived then.

        Raises as `move` does, and `ArchiveError` where more is archived than `archived` says.
        """
        arguments = (account, archived.field, count, last, *self._window)
        replied_account, result, field = await self._client.run(self.script, keys_of(account), arguments)
        if replied_account != account.encode():
            raise StoreAway("the store's reply belongs to another call")
        if result != b"OK":
            raise _elsewhere(account)
        return Archived.of(field)

    async def _archived(self, account: str) -> Archived:
        return Archived.of(await self._client.call("HGET", keys_of(account).wallet, "archived"))

    async def _lines(self, account: str, first: str, before_ms: int) -> list[Entry]:
        ledger, last_ms = keys_of(account).ledger, max(before_ms, 1) - 1
        lines: list[Entry] = await self._client.call("XRANGE", ledger, first, last_ms, "COUNT", PAGE)
        return lines


def _elsewhere(account: str) -> ArchiveError:
    return ArchiveError(f"the ledger of `{account}` is archived elsewhere at the same time; this run moved no more")
