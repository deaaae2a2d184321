"""Reads the whole ledger of an account, from the archive and from the store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from gateway.store.client.client import Client
from gateway.store.money.archive import Archive, Archived
from gateway.store.money.audit import Ledger, Snapshot
from gateway.store.money.budgets import budget_fields
from gateway.store.money.scripts import keys_of

PAGE_SIZE: Final = 1000


async def read_ledger(
    client: Client, account: str, read_snapshot: Callable[..., Awaitable[list[Any]]], archive: Archive | None
) -> tuple[Snapshot, Ledger]:
    """Return a snapshot of the account and its ledger up to then. Starts again if lines were archived meanwhile."""
    keys = keys_of(account)
    while True:
        fields = await budget_fields(client, account)
        snapshot = Snapshot.of(await read_snapshot(*fields), fields)
        ledger, start = Ledger(snapshot.archived), "-"
        if archive is not None:
            entries = archive.entries(account, snapshot.archived)
            ledger = await asyncio.to_thread(Ledger.after, snapshot.archived, entries)
        while lines := await client.call("XRANGE", keys.ledger, start, snapshot.last_line, "COUNT", PAGE_SIZE):
            for line, fields in lines:
                ledger.add(line, fields)
            start = "(" + lines[-1][0].decode()
        if Archived.of(await client.call("HGET", keys.wallet, "archived")) == snapshot.archived:
            return snapshot, ledger
