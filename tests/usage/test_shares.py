"""Several gateways share one database: each sink takes a share, and nothing is lost or doubled whoever dies."""

from __future__ import annotations

import asyncio
import random
import signal
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from gateway.store.client.client import Client
from gateway.usage import completeness, queries, sink
from gateway.usage.database import FilesUnusable
from gateway.usage.home import Home, postgres
from gateway.usage.log import UsageLog
from gateway.usage.stream import GROUP, HEARD, STREAM
from tests.forked import FORKED
from tests.patience import PATIENCE_S
from tests.postgres import PostgresServer
from tests.records import arrival, end, usage_sink
from tests.usage.test_database import rolled_up, summed


class Machine:
    """One gateway: its usage log and its sink."""

    def __init__(self, client: Client, home: Home, max_entries: int = 2000) -> None:
        self.usage = UsageLog(client, home, max_entries=max_entries)
        self.sink = usage_sink(self.usage, retention_months=13, crashed_after_s=600)

    async def drain(self) -> None:
        self.sink._last_said = self.sink._last_look = -1000.0  # both are due at once
        while await self.sink.move_batch():
            pass

    async def served(self, count: int) -> set[str]:
        """Write the arrivals and ends of `count` requests; return their ids."""
        opened = [msgspec.structs.replace(arrival(), gateway=self.usage.gateway) for _ in range(count)]
        await asyncio.gather(*(self.usage.submit_arrival(record) for record in opened))
        await asyncio.gather(*(self.usage.end(end(record)) for record in opened))
        return {record.id for record in opened}

    def ids(self) -> set[str]:
        return {record.id for record in queries.select(self.usage.home) if record.outcome}


@pytest.fixture
async def machines(client: Client, database_url: str, tmp_path: Path) -> list[Machine]:
    """Three gateways that share a database, each of which has said that it is there."""
    three = [Machine(client, postgres(database_url, tmp_path / name)) for name in ("one", "two", "three")]
    for each in three:
        await each.drain()
    return three


async def age(client: Client, machine: Machine, ms: int) -> None:
    """Have a gateway last heard of `ms` earlier."""
    await client.call("ZINCRBY", HEARD, -ms, machine.usage.installation)


async def test_the_records_of_all_are_in_the_log_once_whichever_sink_has_written_them(
    machines: list[Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "BATCH", 7)
    monkeypatch.setattr(sink, "PAGES", 1)
    ids = set().union(*[await each.served(40) for each in machines])
    wrote = [0, 0, 0]
    more = True
    while more:
        before = await machines[0].usage.length()
        more = False
        for number, each in enumerate(machines):
            more |= await each.sink.move_batch()
            wrote[number] += before - (before := await each.usage.length())
    assert min(wrote) > 40, "each has taken its share"
    for each in machines:
        assert each.ids() == ids
    assert rolled_up(machines[0].usage.home) == summed(machines[0].usage.home)


async def test_what_a_sink_had_taken_that_died_is_written_by_another(
    machines: list[Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, _ = machines
    ids = await one.served(10)
    assert len((await one.sink.reader.read())[STREAM]) == 20
    await two.drain()
    assert two.ids() == set()
    assert (await two.usage.find(min(ids))) is not None, "it is found while it waits"
    monkeypatch.setattr(sink, "CLAIM_MS", 0)
    monkeypatch.setattr(sink, "CLAIM_S", 0)
    await two.drain()
    assert (two.ids(), await two.usage.length()) == (ids, 0)
    again = Machine(one.usage.client, one.usage.home)
    await again.drain()
    assert rolled_up(one.usage.home) == summed(one.usage.home)


async def test_arrivals_and_ends_of_two_sinks_at_once_are_one_row_each(machines: list[Machine]) -> None:
    chance = random.Random(3)
    opened = [arrival() for _ in range(300)]
    lines = [*opened, *opened, *map(end, opened), *map(end, opened)]
    chance.shuffle(lines)
    shares = [lines[number::3] for number in range(3)]

    def write(number: int) -> None:
        for start in range(0, len(shares[number]), 25):
            machines[number].sink.database.write(shares[number][start : start + 25])

    await asyncio.gather(*(asyncio.to_thread(write, number) for number in range(3)))
    home = machines[0].usage.home
    assert [record.id for record in queries.select(home)] == sorted(record.id for record in opened)
    assert rolled_up(home) == summed(home)
    tail = queries.Tail(home, queries.START)
    assert sorted(record.id for _, record in tail.poll(1000)) == sorted(record.id for record in opened)


async def test_a_follower_misses_no_end_while_several_sinks_write(machines: list[Machine]) -> None:
    home = machines[0].usage.home
    machines[0].sink.database.write([arrival()])
    tail, found = queries.Tail(home, queries.START), list[str]()
    records = [end(arrival()) for _ in range(900)]

    def write(number: int) -> None:
        for start in range(number * 10, 900, 30):
            machines[number].sink.database.write(records[start : start + 10])

    writing = [asyncio.create_task(asyncio.to_thread(write, number)) for number in range(3)]
    while not all(task.done() for task in writing):
        found += [record.id for _, record in await asyncio.to_thread(tail.poll)]
    found += [record.id for _, record in tail.poll()]
    found += [record.id for _, record in tail.poll()]
    assert sorted(found) == sorted(record.id for record in records)


async def test_while_the_database_is_away_the_stream_has_the_records_and_then_the_spool(
    client: Client, database_url: str, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    machine = Machine(client, postgres(database_url, tmp_path), max_entries=30)
    ids = await machine.served(5)
    await machine.drain()
    postgres_server.kill()
    try:
        waiting = await machine.served(25)
        machine.usage._measured = -10.0
        ids |= await machine.served(1)
        with capture_logs() as logs:
            for _ in range(3):
                assert not await machine.sink.move_batch()
        assert [line["event"] for line in logs] == ["sink_waits"]
        assert PostgresServer.password not in str(logs)
        ids |= await machine.served(5)
        assert machine.usage.spool.count() > 0
        assert await machine.usage.oldest_ms() is not None
        assert (await machine.usage.find(min(waiting))) is not None
        with pytest.raises(FilesUnusable, match=r"usage\.database cannot be used"):
            await machine.usage.find(max(ids))
        ids |= waiting
    finally:
        postgres_server.start()
    await machine.drain()
    await machine.drain()
    assert machine.ids() == ids
    assert (await machine.usage.length(), machine.usage.spool.count()) == (0, 0)
    assert rolled_up(machine.usage.home) == summed(machine.usage.home)


async def test_a_gateway_that_ends_in_order_is_no_longer_a_reader(machines: list[Machine], client: Client) -> None:
    one, *_ = machines
    stop = asyncio.Event()
    stop.set()
    await one.sink.run(stop)
    names = {each[b"name"].decode() for each in await client.call("XINFO", "CONSUMERS", STREAM, GROUP)}
    assert names == {each.usage.installation for each in machines[1:]}
    assert completeness.notes(one.usage.home) == []


async def test_sinks_killed_at_random_lose_and_double_no_record(
    client: Client, store_url: str, database_url: str, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    chance, ids = random.Random(5), set[str]()
    usage = UsageLog(client, postgres(database_url, tmp_path / "usage"))

    async def start(number: int) -> asyncio.subprocess.Process:
        arguments = ("-m", "tests.sink_process", str(tmp_path / str(number)), store_url, database_url)
        return await asyncio.create_subprocess_exec(FORKED, *arguments)

    sinks = [await start(number) for number in range(3)]
    for turn in range(12):
        opened = [arrival() for _ in range(300)]
        await asyncio.gather(*(usage.submit_arrival(record) for record in opened))
        await asyncio.gather(*(usage.end(end(record)) for record in opened))
        ids |= {record.id for record in opened}
        await asyncio.sleep(chance.random() * 0.1)
        if turn == 6:
            postgres_server.kill()
            postgres_server.start()
        number = chance.randrange(3)
        sinks[number].send_signal(signal.SIGKILL)
        await sinks[number].wait()
        sinks[number] = await start(number)
    async with asyncio.timeout(PATIENCE_S):
        while await usage.length():
            await asyncio.sleep(0.1)
    for process in sinks:
        process.terminate()
        await process.wait()
    assert [record.id for record in queries.select(usage.home)] == sorted(ids)
    assert {record.outcome for record in queries.select(usage.home)} == {end(arrival()).outcome}
    assert rolled_up(usage.home) == summed(usage.home)
