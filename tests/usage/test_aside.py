"""A damaged month that was set aside is a gap, which another gateway of the store fills."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gateway.base.ids import utc
from gateway.store.client.client import Client
from gateway.usage import gap_filling, gaps, queries, sink
from gateway.usage.database import UnusableFile, files_aside, path_of, set_aside
from gateway.usage.gaps import DAY_MS
from gateway.usage.replication import REPLACED, gaps_of, gateways_of
from tests.usage.test_reader import Machine, machines

__all__ = ["machines"]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "FILL_S", 0)
    monkeypatch.setattr(gap_filling, "ASK_S", 0)
    monkeypatch.setattr(gap_filling, "PAGE", 7)


def lacking(folder: Path) -> list[str]:
    """Return what a list of all requests says that it lacks."""
    unusable: list[UnusableFile] = []
    list(queries.select(folder, unusable=unusable))
    return [*map(str, unusable), *gaps.notes(folder)]


async def test_a_damaged_month_is_a_gap_until_another_gateway_has_filled_it(
    machines: list[Machine], client: Client
) -> None:
    one, *others = machines
    ids = await one.served(20)
    for each in machines:
        await each.drain()
    one.sink.database.close()
    path = path_of(one.usage.folder, utc(round(time.time() * 1000))[:7])
    path.write_bytes(b"\x01" * 40_000)
    ids |= await others[0].served(1)
    await one.drain()
    (aside,) = files_aside(one.usage.folder)
    (gap,) = one.gaps
    assert gap.first_ms == gaps_of(one.usage.folder)[0].first_ms
    found = await one.usage.ask(min(ids))
    assert found.record is None
    assert any(str(aside) in reason for reason in found.unasked)
    assert any("ask there: " in reason for reason in found.unasked)
    assert [each.about.gaps for each in await gateways_of(client) if each.installation == one.usage.installation] == [
        one.gaps
    ]
    assert len(lacking(one.usage.folder)) == 2
    for _ in range(8):
        for each in machines:
            await each.drain()
    assert one.ids() == ids
    assert (one.gaps, lacking(one.usage.folder), files_aside(one.usage.folder)) == ([], [], [])
    assert [file.name for file in one.usage.folder.glob(f"*{REPLACED}*")] == [aside.name.replace(".damaged-", REPLACED)]
    assert (await one.usage.ask(min(ids))).record is not None


async def test_what_was_set_aside_before_a_kill_is_a_gap_of_the_next_sink(client: Client, tmp_path: Path) -> None:
    first = Machine(client, tmp_path)
    await first.served(1)
    await first.drain()
    first.sink.database.close()
    aside = set_aside(path_of(tmp_path, utc(round(time.time() * 1000))[:7]))
    after = Machine(client, tmp_path)
    await after.drain()
    assert after.gaps == gaps_of(tmp_path)
    assert files_aside(tmp_path) == [aside], "nobody has filled it"


def test_a_file_set_aside_long_after_its_month_is_a_gap_of_its_month(tmp_path: Path) -> None:
    (tmp_path / "usage-2026-02.sqlite").touch()
    set_aside(tmp_path / "usage-2026-02.sqlite")
    (gap,) = gaps_of(tmp_path)
    assert (utc(gap.first_ms), utc(gap.last_ms - DAY_MS)) == ("2026-02-01T00:00:00.000Z", "2026-03-01T00:00:00.000Z")
