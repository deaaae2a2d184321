"""A request that never ended is closed by any sink, unless its end may wait in the spool of its gateway."""

from __future__ import annotations

import time

import msgspec
import pytest

from gateway.admin.actions.requests import verdict
from gateway.domain.exchange import Outcome
from gateway.store.client.client import Client
from gateway.usage import queries, sink
from gateway.usage.gateways import forget, gateways_of
from gateway.usage.record import Record, encode
from gateway.usage.stream import STREAM
from tests.records import arrival, end, id_at
from tests.usage.test_shares import Machine, age, machines

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
    return {record.outcome for record in queries.select(machine.usage.home)}


async def test_any_gateway_closes_the_requests_of_one_that_is_there_or_has_ended_in_order(
    machines: list[Machine],
) -> None:
    one, two, three = machines
    await opened(one, 3)
    await two.drain()
    await three.drain()
    assert outcomes(two) == {Outcome.GATEWAY_CRASHED}
    assert len(two.ids()) == 3


async def test_an_open_request_of_a_gateway_that_is_away_is_not_closed_nor_said_to_be_under_way(
    machines: list[Machine], client: Client
) -> None:
    one, two, three = machines
    (record,) = await opened(one)
    await age(client, one, 120_000)
    await two.drain()
    assert outcomes(two) == {None}
    found = await two.usage.ask(record.id)
    assert found.record == record
    (text,) = found.unasked
    assert f"({one.usage.gateway}), which received it, was last heard of at" in text
    assert verdict(found).startswith("arrived; how it ended is not known here:\n- gateway ")
    (gone,) = [each for each in await gateways_of(client) if each.installation == one.usage.installation]
    await forget(client, gone)
    await three.drain()
    await three.drain()
    assert outcomes(two) == {Outcome.GATEWAY_CRASHED}


async def test_a_request_whose_end_may_wait_in_a_spool_is_not_closed_until_it_is_empty(
    machines: list[Machine], client: Client
) -> None:
    one, two, _ = machines
    (record,) = await opened(one)
    await one.usage.spool.append(encode(end(record)))
    await one.sink._membership.say(1)
    await two.drain()
    assert outcomes(two) == {None}
    await one.drain()
    assert outcomes(two) == {Outcome.COMPLETED}


async def test_an_end_that_waited_in_the_spool_of_a_forgotten_gateway_replaces_a_presumed_one(
    machines: list[Machine], client: Client
) -> None:
    one, two, _ = machines
    (record,) = await opened(one)
    (gone,) = [each for each in await gateways_of(client) if each.installation == one.usage.installation]
    await forget(client, gone)
    await two.drain()
    await two.drain()
    assert outcomes(two) == {Outcome.GATEWAY_CRASHED}
    await one.usage.spool.append(encode(end(record)))
    await one.drain()
    assert outcomes(two) == {Outcome.COMPLETED}


async def test_nothing_is_closed_while_entries_wait_that_could_be_the_end(
    machines: list[Machine], client: Client
) -> None:
    one, two, _ = machines
    (record,) = await opened(one)
    two.sink.database.write([record])
    await client.call("DEL", STREAM)
    await client.call("XADD", STREAM, "1-1", "record", encode(end(record)))
    one.sink.reader.begin_again()
    assert len((await one.sink.reader.read())[STREAM]) == 1, "its sink has it, and dies"
    await two.drain()
    assert outcomes(two) == {None}
    one.sink.reader.begin_again()
    await one.drain()
    assert outcomes(two) == {Outcome.COMPLETED}
