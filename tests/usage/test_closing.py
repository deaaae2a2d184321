"""A gateway closes its own requests, and never one that may run on, or whose end may wait, elsewhere."""

from __future__ import annotations

import time

import msgspec
import pytest

from gateway.admin.actions.requests import verdict
from gateway.base.ids import arrival_ms
from gateway.domain.exchange import Outcome
from gateway.store.client.client import Client
from gateway.usage import queries, sink
from gateway.usage.gaps import Gap
from gateway.usage.record import Record
from gateway.usage.replication import forget, gateways_of
from tests.records import arrival, end, id_at
from tests.usage.test_reader import Machine, age, machines

__all__ = ["machines"]


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "HOUSEKEEPING_S", 0)


async def opened(machine: Machine, count: int = 1) -> list[Record]:
    """Write arrivals of an hour ago that never end."""
    ms = round(time.time() * 1000) - 3_600_000
    records = [msgspec.structs.replace(arrival(id_at(ms)), gateway=machine.usage.gateway) for _ in range(count)]
    for record in records:
        await machine.usage.submit_arrival(record)
    return records


def outcomes(machine: Machine) -> set[Outcome | None]:
    return {record.outcome for record in queries.select(machine.usage.folder)}


async def test_only_the_gateway_that_received_a_request_closes_it_and_all_learn_of_it(machines: list[Machine]) -> None:
    one, two, three = machines
    await opened(one, 3)
    for each in (two, three, two, three):
        await each.drain()
        assert outcomes(each) == {None}
    for each in (one, two, three):
        await each.drain()
        assert outcomes(each) == {Outcome.GATEWAY_CRASHED}
        assert len(each.ids()) == 3


async def test_an_open_request_of_a_gateway_that_is_away_is_not_said_to_be_under_way(
    machines: list[Machine], client: Client
) -> None:
    one, two, _ = machines
    (record,) = await opened(one)
    await two.drain()
    assert (await two.usage.ask(record.id)).unasked == []
    await age(client, one, 60_000)
    found = await two.usage.ask(record.id)
    assert found.record == record
    (text,) = found.unasked
    assert f"({one.usage.gateway}), which received it, was last heard of at" in text
    assert verdict(found).startswith("arrived; how it ended is not known here:\n- gateway ")
    at = arrival_ms(record.id) + 1000
    two.sink.reader.reading.add(Gap(at, at + 1))
    await two.sink.reader.save()
    assert len((await two.usage.ask(record.id)).unasked) == 2


async def test_the_requests_of_a_forgotten_gateway_are_closed(machines: list[Machine], client: Client) -> None:
    one, two, three = machines
    await opened(one)
    await two.drain()
    (gone,) = [each for each in await gateways_of(client) if each.installation == one.usage.installation]
    await forget(client, gone)
    for each in (two, three):
        await each.drain()
        assert outcomes(each) == {Outcome.GATEWAY_CRASHED}


async def test_an_end_that_waited_in_the_spool_of_its_gateway_replaces_a_presumed_one(
    machines: list[Machine], client: Client
) -> None:
    one, two, _ = machines
    (record,) = await opened(one)
    (gone,) = [each for each in await gateways_of(client) if each.installation == one.usage.installation]
    await forget(client, gone)
    await two.drain()
    await one.usage.spool.append(msgspec.json.encode(end(record)))
    await one.drain()
    await two.drain()
    assert outcomes(two) == outcomes(one) == {Outcome.COMPLETED}


async def test_a_request_whose_end_may_be_in_a_gap_is_not_closed(machines: list[Machine]) -> None:
    one, *_ = machines
    (record,) = await opened(one)
    at = arrival_ms(record.id) + 600_000
    one.sink.reader.reading.add(Gap(at, at + 1))
    await one.drain()
    assert outcomes(one) == {None}
