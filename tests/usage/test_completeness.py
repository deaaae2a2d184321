"""A list says that the log is late, and which gateways may have records, without asking the store."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from gateway.base.ids import utc
from gateway.server.own_records import notes_of
from gateway.store.client.client import Client
from gateway.usage import completeness
from gateway.usage.completeness import LATE, LONGEST_MS, READ, SKEW_MS, notes
from gateway.usage.home import Home
from tests.usage.test_shares import Machine, machines

__all__ = ["machines"]


def let_pass(folder: Path, seconds: float) -> int:
    """Have the home last had everything `seconds` earlier; return when that was."""
    at = time.time() - seconds
    os.utime(folder / READ, (at, at))
    return round(at * 1000)


async def test_a_list_says_that_the_log_is_late(client: Client, home: Home) -> None:
    one = Machine(client, home)
    await one.drain()
    assert notes(home) == []
    since = let_pass(one.usage.folder, 60)
    note = f"requests that arrived or ended after {utc(since)} may be missing here: {LATE}"
    assert notes(home) == notes(home, since - 1000, None) == [note]
    assert notes_of(home, []) == [f"{note[0].upper()}{note[1:]}."]
    assert notes(home, None, since - LONGEST_MS - SKEW_MS - 10_000) == []
    await one.drain()
    assert notes(home) == []


async def test_a_sink_that_runs_and_cannot_write_is_late(client: Client, tmp_path: Path) -> None:
    one = Machine(client, tmp_path)
    await one.drain()
    await one.served(1)
    let_pass(tmp_path, 60)
    before = tmp_path / "usage"
    one.sink.database.folder = before
    before.write_bytes(b"a file in the place of the folder")
    await one.drain()
    assert len(notes(tmp_path)) == 1


async def test_a_log_is_late_while_another_sink_has_entries_that_it_does_not_write(machines: list[Machine]) -> None:
    one, two, _ = machines
    await one.served(1)
    await two.sink.reader.read()
    await asyncio.sleep(0.01)
    began = time.time()
    await one.drain()
    assert (one.usage.folder / READ).stat().st_mtime < began


async def test_what_is_stopped_in_order_lacks_nothing(client: Client, home: Home) -> None:
    only = Machine(client, home)
    await only.drain()
    assert (only.usage.folder / READ).exists()
    stopped = asyncio.Event()
    stopped.set()
    await only.sink.run(stopped)
    assert not (only.usage.folder / READ).exists()


def test_a_damaged_file_about_other_gateways_is_none(tmp_path: Path) -> None:
    (tmp_path / completeness.AWAY).write_bytes(b"{")
    assert notes(tmp_path) == []
