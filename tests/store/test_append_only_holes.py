"""A store whose append-only file has holes, as a full disk leaves them after a rewrite, starts with all of its data."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.base.errors import GatewayError
from gateway.store.client.client import Client
from gateway.store.embedded import FOLDER, EmbeddedStore

VALUES = (b"plain", b"\0\0\0", b"*1\r\n$4\r\nPING\r\n", b"\0*", b"")


async def written(data: Path) -> Path:
    """Let a server write each of `VALUES` after a rewrite; return its append-only file, with the server stopped."""
    store = EmbeddedStore.start(data)
    client = Client.connect(store.url, timeout_s=10)
    for number, value in enumerate(VALUES):
        await client.call("SET", f"key {number}", value)
    await client.close()
    store.stop()
    (path,) = (data / FOLDER).glob("*.incr.aof")
    return path


def with_holes(raw: bytes, size: int) -> bytes:
    """Return a file with zero bytes before each SET and at its end."""
    return raw.replace(b"*3\r\n$3\r\nSET", bytes(size) + b"*3\r\n$3\r\nSET") + bytes(size)


@pytest.mark.parametrize("size", [1, 5000])
async def test_a_store_with_holes_in_its_file_has_all_its_data(tmp_path: Path, size: int) -> None:
    path = await written(tmp_path)
    raw = path.read_bytes()
    path.write_bytes(with_holes(raw, size))
    store = EmbeddedStore.start(tmp_path)
    try:
        client = Client.connect(store.url, timeout_s=10)
        assert [await client.call("GET", f"key {number}") for number in range(len(VALUES))] == list(VALUES)
        await client.close()
    finally:
        store.stop()
    (kept,) = path.parent.glob("*.damaged-*")
    assert kept.read_bytes() == with_holes(raw, size)
    assert path.read_bytes().startswith(raw)


async def test_other_damage_is_reported_and_changes_nothing(tmp_path: Path) -> None:
    path = await written(tmp_path)
    damaged = path.read_bytes().replace(b"*3\r\n$3\r\nSET", b"\0garbage*3\r\n$3\r\nSET", 1)
    path.write_bytes(damaged)
    with pytest.raises(GatewayError, match="cannot load"):
        EmbeddedStore.start(tmp_path)
    assert path.read_bytes() == damaged
    assert not list(path.parent.glob("*.damaged-*"))


@pytest.mark.parametrize("offset", [1, 3, 5, 30, 45, 60, 75])
async def test_a_transaction_that_a_hole_cuts_is_dropped_and_what_follows_is_kept(tmp_path: Path, offset: int) -> None:
    path = await written(tmp_path)
    whole = path.read_bytes()
    transaction = b"*1\r\n$5\r\nMULTI\r\n" + b"*3\r\n$3\r\nSET\r\n$4\r\nlost\r\n$5\r\nvalue\r\n" * 2
    after = b"*1\r\n$5\r\nMULTI\r\n*3\r\n$3\r\nSET\r\n$4\r\nkept\r\n$5\r\nafter\r\n*1\r\n$4\r\nEXEC\r\n"
    path.write_bytes(whole + transaction[:offset] + bytes(1950) + after)
    store = EmbeddedStore.start(tmp_path)
    try:
        client = Client.connect(store.url, timeout_s=10)
        assert [await client.call("GET", f"key {number}") for number in range(len(VALUES))] == list(VALUES)
        assert (await client.call("GET", "lost"), await client.call("GET", "kept")) == (None, b"after")
        await client.close()
    finally:
        store.stop()
    assert path.read_bytes() == whole + after


async def test_a_transaction_that_ends_at_a_hole_between_two_commands_is_dropped(tmp_path: Path) -> None:
    path = await written(tmp_path)
    whole = path.read_bytes()
    begun = b"*1\r\n$5\r\nMULTI\r\n*3\r\n$3\r\nSET\r\n$4\r\nlost\r\n$5\r\nvalue\r\n"
    path.write_bytes(whole + begun + bytes(10) + b"*3\r\n$3\r\nSET\r\n$4\r\nkept\r\n$5\r\nafter\r\n")
    store = EmbeddedStore.start(tmp_path)
    try:
        client = Client.connect(store.url, timeout_s=10)
        assert (await client.call("GET", "lost"), await client.call("GET", "kept")) == (None, b"after")
        await client.close()
    finally:
        store.stop()
