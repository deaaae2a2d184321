"""The directory of a process has every account that another process writes, at once; and what left no word of it, before long."""

from __future__ import annotations

import asyncio

import pytest

from gateway.store import accounts as directory
from gateway.store.accounts import CHANGED, Accounts, AccountStatus, Directory, account_key
from gateway.store.client.client import Client
from tests.patience import PATIENCE_S


async def seen(found: Directory, after: str = "") -> list[tuple[str, str]]:
    return [(entry.id, entry.status) for entry in await found.entries(after)]


async def test_changes_are_seen_at_once_whatever_was_asked_before(client: Client) -> None:
    accounts, ids, entries = Accounts(client), Directory(client), Directory(client)
    assert (list(await ids.ids()), await seen(entries)) == ([], [])
    for name in ("bob", "dora", "alice"):
        await accounts.create(name)
    assert list(await ids.ids()) == ["alice", "bob", "dora"]
    assert list(await ids.ids("alice")) == list(await ids.ids("b")) == ["bob", "dora"]
    await accounts.set_status("bob", AccountStatus.SUSPENDED)
    await accounts.create("carol")
    expected = [("alice", "active"), ("bob", "suspended"), ("carol", "active"), ("dora", "active")]
    assert await seen(entries) == await seen(ids) == expected
    assert await seen(entries, "bob") == expected[2:]


async def test_after_more_changes_than_it_takes_up_it_is_read_again(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "MOST_CHANGES", 3)
    accounts, found = Accounts(client), Directory(client)
    await accounts.create("alice")
    assert len(await found.ids()) == 1
    for number in range(9):
        await accounts.create(f"more{number}")
    assert len(await found.ids()) == 10
    assert await client.call("XLEN", CHANGED) == 10


async def test_accounts_of_an_earlier_version_are_found_before_long(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    accounts, found = Accounts(client), Directory(client)
    await accounts.create("alice")
    await found.entries()
    await client.call("COPY", account_key("alice"), account_key("robert"))  # no word of it in the stream
    assert list(await found.ids()) == ["alice"]
    monkeypatch.setattr(directory, "RELOAD_S", 0.0)
    await accounts.create("carol")
    later = Directory(client)
    assert list(await later.ids()) == ["alice", "carol", "robert"]
    await client.call("COPY", account_key("alice"), account_key("dave1"))
    async with asyncio.timeout(PATIENCE_S):
        while "dave1" not in await later.ids():
            await asyncio.sleep(0.01)
    assert [name for name, _ in await seen(later)] == ["alice", "carol", "dave1", "robert"]
