"""The usage log on a cluster of three nodes: several streams share the entries, and the keys of a script are in one slot."""

from __future__ import annotations

from gateway.domain.exchange import Outcome
from gateway.store.client.client import Client
from gateway.usage.gateways import forget, gateways_of
from gateway.usage.record import encode
from gateway.usage.stream import STREAMS
from tests.records import arrival, end
from tests.store.cluster import client, masters
from tests.usage.test_shares import Machine, machines, opened

__all__ = ["client", "machines", "masters"]


async def test_records_spools_closings_and_forgetting_work_on_a_cluster(
    machines: list[Machine], client: Client
) -> None:
    one, two, three = machines
    ids = await one.served(60)
    lengths = [await client.call("XLEN", stream) for stream in one.usage.streams]
    assert (len(lengths), sum(lengths), max(lengths) < 60) == (STREAMS, 120, True)
    assert (await two.usage.find(min(ids))) is not None, "it is found in its stream"
    spooled = end(arrival())
    await two.usage.spool.append(encode(spooled))
    (lost,) = await opened(three)
    for each in machines:
        await each.drain()
        assert each.ids() >= ids
    assert (await one.usage.ask(spooled.id)).record == spooled
    assert await one.sink.close_lost(9_000_000_000_000) == 1
    await two.drain()
    found = await one.usage.find(lost.id)
    assert found is not None
    assert found.outcome is Outcome.GATEWAY_CRASHED
    assert await one.usage.length() == 0
    (gone,) = [each for each in await gateways_of(client) if each.installation == three.usage.installation]
    await forget(client, gone)
    assert [each.about.forgotten_ms > 0 for each in await gateways_of(client) if each.installation == gone.installation]
