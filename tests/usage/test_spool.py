"""The files of the spool are complete and on the disk."""

from __future__ import annotations

import asyncio
import resource
from pathlib import Path

import pytest

from gateway.usage.stream import Spool


def lines(spool: Spool) -> list[bytes]:
    return [line for file in spool.files() for line in file.read_bytes().splitlines()]


async def test_lines_are_kept_in_the_order_in_which_they_were_appended(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    for line in (b"1", b"2", b"3"):
        await spool.append(line)
    assert lines(spool) == [b"1", b"2", b"3"]


async def test_lines_that_are_appended_at_once_share_a_few_files(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    await asyncio.gather(*(spool.append(b"%d" % number) for number in range(500)))
    assert sorted(map(int, lines(spool))) == list(range(500))
    assert len(spool.files()) < 10


async def test_processes_do_not_disturb_each_other(tmp_path: Path) -> None:
    one, other = Spool(tmp_path), Spool(tmp_path)
    await asyncio.gather(one.append(b"one"), other.append(b"other"))
    assert sorted(lines(one)) == [b"one", b"other"]


async def test_a_disk_that_cannot_be_written_fails_every_append_and_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "spool").symlink_to("/dev/full")
    spool = Spool(tmp_path / "spool")
    results = await asyncio.gather(*(spool.append(b"x") for _ in range(3)), return_exceptions=True)
    assert [isinstance(result, OSError) for result in results] == [True, True, True]
    (tmp_path / "spool").unlink()
    await spool.append(b"again")
    assert lines(spool) == [b"again"]


async def test_a_disk_that_is_full_half_way_leaves_no_file(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            await spool.append(b"x" * 2_000_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(spool.folder.iterdir()) == []


async def test_a_cancelled_append_does_not_cancel_others(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    cancelled, other = (asyncio.create_task(spool.append(line)) for line in (b"cancelled", b"other"))
    await asyncio.sleep(0)
    cancelled.cancel()
    await other
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert b"other" in lines(spool)
