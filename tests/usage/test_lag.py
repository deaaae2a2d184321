"""A list says that the files are behind, without asking the store, whatever keeps the sink from reading."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from gateway.base.ids import utc
from gateway.server.own_records import notes_of
from gateway.store.client.client import Client
from gateway.usage import gaps
from tests.usage.test_reader import Machine, machines

__all__ = ["machines"]


def let_pass(folder: Path, seconds: float) -> int:
    """Have the sink last read everything `seconds` earlier; return when that was."""
    at = time.time() - seconds
    os.utime(folder / gaps.READ, (at, at))
    return round(at * 1000)


async def test_a_list_says_that_the_sink_has_not_read_for_a_while(machines: list[Machine]) -> None:
    one, *_ = machines
    folder = one.usage.folder
    assert gaps.notes(folder) == []
    since = let_pass(folder, 60)
    note = f"requests that arrived or ended after {utc(since)} may be missing here: {gaps.LATE}"
    assert gaps.notes(folder) == gaps.notes(folder, since - 1000, None) == [note]
    assert notes_of(folder, []) == [f"{note[0].upper()}{note[1:]}."]
    assert gaps.notes(folder, None, since - gaps.LONGEST_MS - gaps.SKEW_MS - 10_000) == []
    await one.drain()
    assert gaps.notes(folder) == []


async def test_a_sink_that_runs_and_cannot_write_is_behind(machines: list[Machine]) -> None:
    one, *_ = machines
    await one.served(1)
    let_pass(one.usage.folder, 60)
    before = one.usage.folder / "usage"
    one.sink.database.folder = before
    before.write_bytes(b"a file in the place of the folder")
    await one.drain()
    assert len(gaps.notes(one.usage.folder)) == 1


async def test_what_is_stopped_in_order_lacks_nothing_unless_other_gateways_go_on(
    machines: list[Machine], client: Client, tmp_path: Path
) -> None:
    stopped = asyncio.Event()
    stopped.set()
    await machines[0].sink.run(stopped)
    let_pass(machines[0].usage.folder, 60)
    assert len(gaps.notes(machines[0].usage.folder)) == 1


async def test_the_only_gateway_lacks_nothing_after_it_was_stopped_in_order(client: Client, tmp_path: Path) -> None:
    only = Machine(client, tmp_path)
    await only.drain()
    assert (tmp_path / gaps.READ).exists()
    stopped = asyncio.Event()
    stopped.set()
    await only.sink.run(stopped)
    assert not (tmp_path / gaps.READ).exists()
