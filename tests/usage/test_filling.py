"""A gap is filled from the files of another gateway."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from gateway.domain.exchange import Outcome
from gateway.store.client.client import Client
from gateway.usage import gap_filling, queries, replication, sink
from gateway.usage.database import set_aside
from gateway.usage.gaps import SKEW_MS, Gap
from gateway.usage.stream import FILLED, WANTED
from tests.records import arrival, id_at
from tests.usage.test_database import rolled_up, summed
from tests.usage.test_reader import Machine, age, machines

__all__ = ["machines"]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "FILL_S", 0)
    monkeypatch.setattr(gap_filling, "ASK_S", 0)
    monkeypatch.setattr(gap_filling, "PAGE", 7)


async def turns(machines: list[Machine], count: int) -> None:
    for _ in range(count):
        for each in machines:
            await each.drain()


async def test_a_gateway_that_was_away_for_too_long_has_everything_after_a_while(
    machines: list[Machine], client: Client
) -> None:
    one, two, three = machines
    under_way = arrival()
    await one.usage.submit_arrival(under_way)
    await turns(machines, 1)
    await age(client, three, replication.KEPT_MS + 1000)
    ids = await one.served(20)
    open_still = arrival()
    await one.usage.submit_arrival(open_still)
    await one.drain()
    await two.drain()
    await three.drain()
    assert len(three.gaps) == 1
    assert not three.ids()
    first_ms = three.gaps[0].first_ms
    await turns(machines, 2)
    assert three.gaps
    assert three.gaps[0].first_ms == first_ms
    await turns(machines, 6)
    assert three.gaps == []
    assert three.ids() == ids
    found = {record.id: record.outcome for record in queries.select(three.usage.folder)}
    assert found[under_way.id] is found[open_still.id] is None
    assert rolled_up(three.usage.folder) == summed(three.usage.folder)
    assert (await three.usage.ask(id_at(round(time.time() * 1000) - 60_000))).unasked == []
    assert not await client.call("EXISTS", WANTED, f"{FILLED}:{three.usage.installation}")


async def test_a_gateway_that_joins_later_has_what_was_before(
    machines: list[Machine], client: Client, tmp_path: Path
) -> None:
    one, *_ = machines
    old_ms = round(time.time() * 1000) - 40 * 86_400_000
    await one.usage.spool.append(b'{"id":"%b","arrived_at":"","outcome":"completed"}' % id_at(old_ms).encode())
    ids = await one.served(10)
    await turns(machines, 2)
    late = Machine(client, tmp_path / "late")
    await turns([late, *machines], 8)
    assert late.gaps == []
    assert late.ids() == one.ids() > ids
    assert {record.outcome for record in queries.select(late.usage.folder)} == {Outcome.COMPLETED}


async def test_what_came_after_a_gap_of_all_gateways_is_filled(
    machines: list[Machine], client: Client, tmp_path: Path
) -> None:
    one, *_ = machines
    now_ms = round(time.time() * 1000)
    shared = Gap(0, now_ms - 40 * 86_400_000)
    for each in machines:
        each.sink.reader.reading.add(shared)
    young = id_at(now_ms - 86_400_000)
    await one.usage.spool.append(b'{"id":"%b","arrived_at":"","outcome":"completed"}' % young.encode())
    ids = await one.served(10)
    await turns(machines, 2)
    late = Machine(client, tmp_path / "late")
    await turns([late, *machines], 8)
    assert late.ids() == one.ids() == ids | {young}
    (gap,) = late.gaps
    assert (gap.first_ms, gap.last_ms) == (0, shared.last_ms + SKEW_MS + 1)
    await turns([late, *machines], 2)
    assert late.gaps == [gap]
    assert not await client.call("EXISTS", WANTED)


async def test_nothing_is_filled_from_a_gateway_that_has_the_same_gap_or_is_away(
    machines: list[Machine], client: Client
) -> None:
    one, two, three = machines
    gap = Gap(1_790_000_000_000, 1_790_000_001_000)
    for each in (one, two):
        each.sink.reader.reading.add(gap)
    await turns([one, two], 3)
    await age(client, three, 60_000)
    one.sink._filling._asked = -1.0
    await turns([one, two], 3)
    await asyncio.gather(one.sink.reader.save(), two.sink.reader.save())
    assert (one.gaps, two.gaps) == ([gap], [gap])


async def test_nothing_is_filled_from_files_of_which_one_was_set_aside(
    machines: list[Machine], client: Client, tmp_path: Path
) -> None:
    ids = await machines[0].served(10)
    await turns(machines, 2)
    for each in machines:
        each.sink.database.close()
        for file in each.usage.folder.glob("usage-*.sqlite"):
            set_aside(file)
    late = Machine(client, tmp_path / "late")
    await turns([late, *machines], 8)
    assert late.gaps
    assert not ids & late.ids()


async def test_another_gateway_is_asked_where_one_cannot_read_its_files(
    machines: list[Machine], client: Client, tmp_path: Path
) -> None:
    damaged, *others = sorted(machines, key=lambda each: each.usage.installation)  # the first is asked first
    ids = await others[0].served(20)
    await turns(machines, 2)
    damaged.sink.database.close()
    for file in damaged.usage.folder.glob("usage-*.sqlite"):
        set_aside(file)
    late = Machine(client, tmp_path / "late")
    await turns([late, *machines], 12)
    assert late.gaps == []
    assert late.ids() == ids
