"""The directory of accounts: their ids in order, and what lists select them by. Each process keeps one of its own.

To find the ids, all keys of the store are looked at: a tenth of a second where there are 40,000 accounts. So a process does that
when it is first asked, and beside its work again after `RELOAD_S`. In between it learns from a stream of the store which accounts
were written.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right, insort
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from gateway.errors import GatewayError
from gateway.store.accounts import CHANGED, Account, account_key
from gateway.store.client.client import Client

RELOAD_S: Final = 300.0
"""After this time the directory is read again, for accounts that a gateway of an earlier version wrote."""
MOST_CHANGES: Final = 2000
"""Changes that are taken up one by one. After more, the directory is read again."""
AT_ONCE: Final = 1000
"""Accounts that are read in one go, so that the process does something else in between."""


class Entry(NamedTuple):
    """What lists select an account by. `text` is searched: its id and its external id in small letters."""

    id: str
    status: str
    group: str
    text: str

    @classmethod
    def of(cls, account: Account) -> Entry:
        """Return the entry of an account."""
        return cls(account.id, account.status, account.group, _text(account.id, account.external_id))


class Directory:
    """The accounts of one store. Every method may raise `StoreAway`."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = asyncio.Lock()
        self._ids: list[str] = []
        self._entries: dict[str, Entry] | None = None
        self._seen = ""
        self._until = 0.0
        self._reloading: asyncio.Task[None] | None = None

    async def ids(self, after: str = "") -> Sequence[str]:
        """Return the ids of all accounts behind `after`, in order."""
        async with self._lock:
            await self._refresh()
            return self._ids[bisect_right(self._ids, after) :]

    async def entries(self, after: str = "") -> Iterator[Entry]:
        """Return the entries of all accounts whose ids are behind `after`, in the order of their ids."""
        async with self._lock:
            await self._refresh()
            if self._entries is None:
                self._entries = {entry.id: entry async for entry in self._read(self._ids)}
            found = self._entries
            return (found[each] for each in self._ids[bisect_right(self._ids, after) :] if each in found)

    async def _refresh(self) -> None:
        if not self._seen or not await self._follow():
            await self._load()
        elif time.monotonic() >= self._until and (self._reloading is None or self._reloading.done()):
            self._reloading = asyncio.get_running_loop().create_task(self._reload())

    async def _reload(self) -> None:
        """Read the directory again while the one that there is still answers."""
        fresh = Directory(self._client)
        with suppress(GatewayError):
            await fresh._load()
            if self._entries is not None:
                fresh._entries = {entry.id: entry async for entry in self._read(fresh._ids)}
            async with self._lock:
                self._ids, self._entries, self._seen, self._until = (
                    fresh._ids,
                    fresh._entries,
                    fresh._seen,
                    fresh._until,
                )

    async def _load(self) -> None:
        newest = await self._client.call("XREVRANGE", CHANGED, "+", "-", "COUNT", 1)
        self._entries = None
        self._ids = sorted({key[4:-9] async for key in self._client.keys(account_key("*"))})
        self._seen = newest[0][0].decode() if newest else "0-0"
        self._until = time.monotonic() + RELOAD_S

    async def _follow(self) -> bool:
        """Take up what was written since the last time. Return whether that was possible."""
        lines: list[Any] = await self._client.call("XRANGE", CHANGED, f"({self._seen}", "+", "COUNT", MOST_CHANGES + 1)
        if len(lines) > MOST_CHANGES:
            return False
        changed = {fields[b"account"].decode() for _, fields in lines}
        if self._entries is None:
            found = changed
        else:
            entries = [entry async for entry in self._read(changed)]
            self._entries.update((entry.id, entry) for entry in entries)
            found = {entry.id for entry in entries}
        for account_id in found:
            place = bisect_right(self._ids, account_id)
            if not (place and self._ids[place - 1] == account_id):
                insort(self._ids, account_id)
        if lines:
            self._seen = lines[-1][0].decode()
        return True

    async def _read(self, ids: Iterable[str]) -> AsyncIterator[Entry]:
        waiting = list(ids)
        for first in range(0, len(waiting), AT_ONCE):
            some = waiting[first : first + AT_ONCE]
            calls = [self._client.submit("HMGET", account_key(each), "status", "group", "external_id") for each in some]
            for account_id, (status, group, external_id) in zip(some, await asyncio.gather(*calls), strict=True):
                if status is not None:
                    text = _text(account_id, (external_id or b"").decode())
                    yield Entry(account_id, status.decode(), group.decode(), text)


def _text(account_id: str, external_id: str) -> str:
    return f"{account_id}\n{external_id}".casefold()
