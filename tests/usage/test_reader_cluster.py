"""The usage log of all gateways on a cluster of three nodes: the keys of each script are in one slot."""

from __future__ import annotations

from pathlib import Path

from gateway.domain.exchange import Outcome
from gateway.store.client.client import Client
from gateway.usage.record import encode
from gateway.usage.replication import forget, gateways_of
from tests.records import arrival, end
from tests.store.cluster import client, masters
from tests.usage.test_closing import opened
from tests.usage.test_reader import Machine, machines
from tests.usage.test_reader import test_a_gateway_that_joins_later_has_a_gap_before as test_one_that_joins_later  # noqa: F401
from tests.usage.test_reader import test_a_store_that_lost_the_stream_leaves_a_gap as test_a_lost_stream  # noqa: F401

__all__ = ["client", "machines", "masters"]


async def test_records_spools_closings_and_forgetting_work_on_a_cluster(
    machines: list[Machine], client: Client, tmp_path: Path
) -> None:
    one, two, three = machines
    ids = await one.served(5)
    spooled = end(arrival())
    await two.usage.spool.append(encode(spooled))
    (lost,) = await opened(three)
    for each in (*machines, *machines):
        await each.drain()
        assert each.ids() >= ids
    assert (await one.usage.ask(spooled.id)).record == spooled
    assert await three.sink.close_lost(9_000_000_000_000) == 1
    for each in machines:
        await each.drain()
        found = await each.usage.find(lost.id)
        assert found is not None
        assert found.outcome is Outcome.GATEWAY_CRASHED
    assert (await one.usage.length(), await one.usage.waiting()) == (0, 0)
    (gone,) = [each for each in await gateways_of(client) if each.installation == three.usage.installation]
    await forget(client, gone)
    assert [each.about.forgotten_ms > 0 for each in await gateways_of(client)].count(True) == 1
