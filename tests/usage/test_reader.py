"""Every gateway of a store has every record; one that was away for too long knows its gap; the store's memory stays bounded."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from gateway.store.client.client import Client
from gateway.usage import gaps, queries, replication
from gateway.usage.gaps import Gap
from gateway.usage.log import UsageLog
from gateway.usage.record import encode
from gateway.usage.replication import forget, gateways_of
from gateway.usage.stream import HEARD, STREAM, TRIMMED
from tests.records import arrival, end, id_at, usage_sink
from tests.usage.test_database import rolled_up, summed

LONG_AGO_MS = 3_600_000


class Machine:
    """One gateway: its usage log and its sink."""

    def __init__(self, client: Client, folder: Path, max_entries: int = 2000) -> None:
        self.usage = UsageLog(client, folder, max_entries=max_entries)
        self.sink = usage_sink(self.usage, retention_months=13, crashed_after_s=600)

    async def drain(self) -> None:
        while await self.sink.move_batch():
            pass
        self.sink.reader._last_turn = -1000.0  # the next turn is due at once
        await self.sink.move_batch()

    async def served(self, count: int) -> set[str]:
        """Write the arrivals and ends of `count` requests; return their ids."""
        opened = [msgspec.structs.replace(arrival(), gateway=self.usage.gateway) for _ in range(count)]
        await asyncio.gather(*(self.usage.submit_arrival(record) for record in opened))
        await asyncio.gather(*(self.usage.end(end(record)) for record in opened))
        return {record.id for record in opened}

    def ids(self) -> set[str]:
        return {record.id for record in queries.select(self.usage.folder) if record.outcome}

    @property
    def gaps(self) -> list[Gap]:
        return gaps.load(self.usage.folder).gaps


@pytest.fixture
async def machines(client: Client, tmp_path: Path) -> list[Machine]:
    """Three gateways, each of which has read the stream."""
    three = [Machine(client, tmp_path / name) for name in ("one", "two", "three")]
    for each in three:
        await each.drain()
    return three


async def age(client: Client, machine: Machine, ms: int) -> None:
    """Have a gateway last heard of `ms` earlier."""
    await client.call("ZINCRBY", HEARD, -ms, machine.usage.installation)


async def fill(client: Client, count: int) -> None:
    """Write ends of `count` other requests, as fast as the store can."""
    line = encode(end(arrival(id_at(1_800_000_000_000))))
    script = 'for i = 1, ARGV[1] do redis.call("XADD", KEYS[1], "*", "record", ARGV[2]) end'
    await client.call("EVAL", script, 1, STREAM, count, line)


async def test_each_gateway_has_the_records_of_all(machines: list[Machine], client: Client) -> None:
    ids = set().union(*[await each.served(20) for each in machines])
    for each in machines:
        await each.drain()
    assert len(ids) == 60
    for each in machines:
        assert each.ids() == ids
        assert rolled_up(each.usage.folder) == summed(each.usage.folder)
        assert each.gaps == []
    assert await client.call("XLEN", STREAM) == 0


async def test_entries_stay_until_every_present_gateway_has_written_them(
    machines: list[Machine], client: Client
) -> None:
    one, two, three = machines
    ids = await one.served(10)
    await one.drain()
    await two.drain()
    assert await client.call("XLEN", STREAM) == 20
    assert (await two.usage.waiting(), await three.usage.waiting()) == (0, 20)
    await three.drain()
    assert await client.call("XLEN", STREAM) == 0
    assert three.ids() == ids


async def test_a_request_is_found_on_each_gateway_before_its_sink_has_written_it(machines: list[Machine]) -> None:
    one, two, three = machines
    (id_,) = await one.served(1)
    await two.drain()
    for each in (one, two, three):
        found = await each.usage.find(id_)
        assert found is not None
        assert found.gateway == one.usage.gateway


async def test_a_gateway_that_was_away_for_a_while_has_no_gap(machines: list[Machine], client: Client) -> None:
    one, two, three = machines
    await age(client, three, LONG_AGO_MS)
    ids = await one.served(200)
    await one.drain()
    await two.drain()
    assert await client.call("XLEN", STREAM) == 400
    await three.drain()
    assert three.ids() == ids
    assert (three.gaps, await client.call("XLEN", STREAM)) == ([], 0)


async def test_a_gateway_that_was_away_for_longer_than_entries_are_kept_names_its_gap(
    machines: list[Machine], client: Client, tmp_path: Path
) -> None:
    one, two, three = machines
    before = await three.served(5)
    for each in machines:
        await each.drain()
    await age(client, three, LONG_AGO_MS)
    lost = await one.served(5)
    for _ in range(20):  # 6,000 entries, of which the stream has room for 1,000
        await fill(client, 300)
        await one.drain()
        await two.drain()
        assert await client.call("XLEN", STREAM) <= 1000 + 300
    after = await two.served(5)
    missing = next(iter(lost))
    assert (await three.usage.ask(missing)).unasked, "also before it reads on"
    with capture_logs() as logs:
        await three.drain()
    assert [entry["event"] for entry in logs] == ["usage_log_gap"]
    assert three.ids() >= before | after
    assert not three.ids() & lost
    (gap,) = three.gaps
    assert all(gap.may_have(int(id_[:8] + id_[9:13], 16)) for id_ in lost)
    found = await three.usage.ask(missing)
    assert found.record is None
    assert f"this gateway does not have the log of what arrived {gap}" in found.unasked[0]
    assert one.usage.gateway in found.unasked[0], "it names who has it"
    assert gaps.notes(three.usage.folder) == [
        f"requests that arrived or ended {gap} may be missing here: this gateway does not have the log of that time"
    ]
    assert (await one.usage.ask(missing)).record is not None
    await one.drain()
    await two.drain()
    assert await client.call("XLEN", STREAM) == 0
    again = Machine(client, three.usage.folder)
    await again.drain()
    assert again.gaps == [gap], "it is on the disk"


async def test_entries_are_kept_no_longer_than_a_day_for_a_gateway_that_is_away(
    machines: list[Machine], client: Client
) -> None:
    one, two, three = machines
    await age(client, three, replication.KEPT_MS + 1000)
    await one.served(5)
    await one.drain()
    await two.drain()
    assert await client.call("XLEN", STREAM) == 0
    await three.drain()
    assert len(three.gaps) == 1


async def test_a_gateway_that_is_present_and_slow_holds_the_entries(machines: list[Machine], client: Client) -> None:
    one, two, three = machines
    await fill(client, 1500)
    await one.drain()
    await two.drain()
    assert await client.call("XLEN", STREAM) == 1500
    await three.drain()
    assert (three.gaps, await client.call("XLEN", STREAM)) == ([], 0)


async def test_a_gateway_that_joins_later_has_a_gap_before(
    machines: list[Machine], client: Client, tmp_path: Path
) -> None:
    one, *_ = machines
    (old,) = await one.served(1)
    for each in machines:
        await each.drain()
    late = Machine(client, tmp_path / "late")
    assert (await late.usage.ask(old)).unasked, "also before it has joined"
    await late.drain()
    (gap,) = late.gaps
    assert gap.first_ms == 0
    assert (
        (await late.usage.ask(old)).unasked[0].startswith(f"this gateway does not have the log of what arrived {gap}")
    )


async def test_the_first_gateway_of_a_store_has_no_gap(client: Client, tmp_path: Path) -> None:
    only = Machine(client, tmp_path / "only")
    await only.drain()
    await only.served(5)
    await only.drain()
    assert only.gaps == []
    assert (await only.usage.ask(arrival().id)).unasked == []


async def test_a_position_that_a_failover_lost_is_taken_up_where_the_store_has_it(
    machines: list[Machine], client: Client
) -> None:
    one, *_ = machines
    await one.served(5)
    dump = await client.call("DUMP", STREAM)
    for each in machines:
        await each.drain()
    ids = one.ids()
    await client.call("RESTORE", STREAM, 0, dump, "REPLACE")  # a replica that was behind took over
    ids |= await one.served(5)
    for each in machines:
        await each.drain()
        await each.drain()
        assert each.ids() == ids
        assert rolled_up(each.usage.folder) == summed(each.usage.folder)


async def test_a_store_that_lost_the_stream_leaves_a_gap(machines: list[Machine], client: Client) -> None:
    one, *_ = machines
    await one.served(5)
    await one.drain()
    await one.sink.reader.save()
    await client.call("DEL", STREAM, TRIMMED)
    ids = await one.served(1)
    await one.drain()
    await one.drain()
    assert ids <= one.ids()
    (gap,) = one.gaps
    assert gap.first_ms > 0


async def test_what_was_written_late_is_in_the_gap_in_which_it_was_written(
    machines: list[Machine], client: Client
) -> None:
    one, two, three = machines
    await age(client, three, replication.KEPT_MS + 1000)
    old_ms = 1_790_000_000_000
    await one.usage.spool.append(encode(end(arrival(id_at(old_ms)))))
    await one.drain()
    await two.drain()
    assert len(two.ids()) == 1
    await three.drain()
    (gap,) = three.gaps
    assert gap.may_have(old_ms)


async def test_two_gateways_with_one_name_know_that_they_miss_entries(client: Client, tmp_path: Path) -> None:
    one = Machine(client, tmp_path / "one")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "installation").write_text(one.usage.installation)
    copy = Machine(client, tmp_path / "other")
    await one.drain()
    await copy.drain()
    await one.served(5)
    await copy.drain()
    assert len(copy.ids()) == 5
    await one.drain()
    assert one.gaps, "it does not know that nothing was lost, but never says that nothing was"


async def test_a_forgotten_gateway_that_comes_back_knows_its_gap(machines: list[Machine], client: Client) -> None:
    one, two, three = machines
    await three.sink.reader.save()
    (gateway,) = [each for each in await gateways_of(client) if each.installation == three.usage.installation]
    await forget(client, gateway)
    await one.served(3)
    await one.drain()
    await two.drain()
    await three.drain()
    await three.drain()
    assert len(three.gaps) == 1
    assert all(not each.about.forgotten_ms for each in await gateways_of(client))
