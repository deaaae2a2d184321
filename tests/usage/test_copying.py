"""One gateway of a store copies to ClickHouse; another takes over, and nothing is missed."""

from __future__ import annotations

import asyncio

from gateway.store.client.client import Client
from gateway.usage import clickhouse
from gateway.usage.clickhouse import ClickHouse, SharedCopier
from gateway.usage.gaps import Gap
from gateway.usage.stream import COPIED, COPIER
from tests.records import arrival, end
from tests.usage.test_clickhouse import Server, server_without_engine
from tests.usage.test_reader import Machine, machines

__all__ = ["machines", "server_without_engine"]


def copier_of(machine: Machine, server: Server) -> SharedCopier:
    return SharedCopier(ClickHouse(server.url), machine.usage.folder, machine.usage.client)


async def read(machines: list[Machine]) -> None:
    for each in (*machines, *machines):
        await each.drain()


async def test_one_gateway_copies_and_another_takes_over_and_nothing_is_missed(
    machines: list[Machine], client: Client, server_without_engine: Server
) -> None:
    one, two, _ = machines
    own = end(arrival())
    two.sink.database.write([own])  # of the time before it shared a log
    copiers = [copier_of(each, server_without_engine) for each in machines[:2]]
    assert [await each.copy_batch() for each in (copiers[0], copiers[1], copiers[1])] == [0, 1, 0]
    assert any(own.id in data for data in server_without_engine.data)
    server_without_engine.data.clear()
    ids = await one.served(5)
    await read(machines)
    assert [await each.copy_batch() for each in copiers] == [5, 0]
    assert [await each.copy_batch() for each in copiers] == [0, 0], "now it is known that all is copied"
    assert await copiers[1].copy_batch() == 0
    ids |= await two.served(3)
    await read(machines)
    await client.call("DEL", COPIER)  # the one that copied has ended
    assert await copiers[1].copy_batch() == 3, "it begins where the other one had copied all"
    assert all(any(id_ in data for data in server_without_engine.data) for id_ in ids)
    assert await copiers[0].copy_batch() == 0


async def test_a_gateway_that_misses_entries_leaves_the_copying_to_one_that_has_them(
    machines: list[Machine], client: Client, server_without_engine: Server
) -> None:
    one, two, three = machines
    copiers = [copier_of(each, server_without_engine) for each in (one, two)]
    for each in copiers:
        await each.copy_batch()
    await one.served(2)
    await read(machines)
    one.sink.reader.reading.add(Gap(1, 9_000_000_000_000))
    await one.sink.reader.save()
    await one.drain()
    assert [await each.copy_batch() for each in copiers] == [0, 2]
    assert await client.call("GET", COPIER) == two.usage.installation.encode()
    await asyncio.gather(*(client.call("ZREM", "gw:{usage}:heard", each.usage.installation) for each in (two, three)))
    await client.call("DEL", COPIER)
    assert await copiers[0].copy_batch() == 2, "no other gateway is there: it copies what it has"
    assert await copiers[0].copy_batch() == 0
    assert await client.call("GET", COPIED) is None, "it does not say that all is copied"


async def test_the_lease_ends_by_itself(machines: list[Machine], client: Client, server_without_engine: Server) -> None:
    copier = copier_of(machines[0], server_without_engine)
    await copier.copy_batch()
    await copier.copy_batch()
    assert 0 < await client.call("PTTL", COPIER) <= clickhouse.LEASE_MS
