"""That a request never arrived is said only when every gateway of the store was asked."""

from __future__ import annotations

import asyncio
import socket
import time

import msgspec
import pytest

from gateway.base.ids import arrival_ms
from gateway.store.client.client import Client
from gateway.usage import gaps, replication
from gateway.usage.record import encode
from gateway.usage.replication import forget, gateways_of, unknown_to_store
from gateway.usage.stream import STREAM
from tests.records import arrival, end, id_at
from tests.usage.test_reader import Machine, age, machines

__all__ = ["machines"]


def an_id(ago_ms: int) -> str:
    return id_at(round(time.time() * 1000) - ago_ms)


async def test_nothing_is_unasked_where_every_gateway_has_handed_over_all(machines: list[Machine]) -> None:
    for each in machines:
        assert (await each.usage.ask(an_id(60_000))).unasked == []
        assert (await each.usage.ask("no id")).unasked == []


async def test_a_request_of_just_now_is_not_said_to_be_missing(machines: list[Machine]) -> None:
    one, *_ = machines
    unasked = (await one.usage.ask(an_id(0))).unasked
    assert len(unasked) == 2
    assert all("has not said yet whether it has it: ask again in 10 seconds" in each for each in unasked)


async def test_a_gateway_that_is_not_heard_of_is_named_with_its_host(machines: list[Machine], client: Client) -> None:
    one, two, _ = machines
    await age(client, two, 3_600_000)
    before, since = an_id(2 * 3_600_000), an_id(60_000)
    assert (await one.usage.ask(before)).unasked == [], "it had handed over all when it was last heard of"
    (text,) = (await one.usage.ask(since)).unasked
    assert text.startswith(f"gateway {socket.gethostname()} ({two.usage.gateway}) was last heard of at ")
    assert text.endswith(f": ask there; if it has gone for good, `gateway gateways forget {two.usage.gateway}`")
    assert next(iter((await one.usage.known()).notes())).startswith(
        f"gateway {socket.gethostname()} ({two.usage.gateway})"
    )


async def test_lists_name_what_other_gateways_may_have_in_the_words_of_the_search(
    machines: list[Machine], client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, three = machines
    monkeypatch.setattr(replication, "LOOK_S", 0)
    assert gaps.notes(one.usage.folder) == []
    await three.usage.spool.append(encode(end(arrival())))
    three.usage.max_entries = 0  # the stream is full
    await three.drain()
    for each in (two, three):
        await age(client, each, 3_600_000)
    await one.drain()
    notes = gaps.notes(one.usage.folder)
    assert len(notes) == 2
    assert notes == list((await one.usage.known()).notes())
    (of_three,) = gaps.notes(one.usage.folder, until_ms=round(time.time() * 1000) - 3 * gaps.DAY_MS, with_hosts=False)
    assert of_three.startswith(f"gateway {three.usage.gateway} was last heard of at ")
    assert of_three.endswith(", and had 1 files to hand over: requests of it may be missing here")
    await two.drain()
    three.usage.max_entries = 2000
    await three.drain()
    await one.drain()
    assert gaps.notes(one.usage.folder) == []


async def test_a_gateway_that_was_stopped_in_order_need_not_be_asked(machines: list[Machine], client: Client) -> None:
    one, two, three = machines
    stop = asyncio.Event()
    stop.set()
    await two.sink.run(stop)
    await three.usage.spool.append(encode(end(arrival())))
    three.usage.max_entries = 0
    await three.sink.run(stop)
    await age(client, two, 3_600_000)
    await one.drain()
    (text,) = (await one.usage.ask(an_id(60_000))).unasked
    assert f"({three.usage.gateway})" in text, "it has not handed over all"
    assert [
        each.about.stopped for each in await gateways_of(client) if each.installation == two.usage.installation
    ] == [True]
    await two.drain()  # it is started again
    assert not any(each.about.stopped for each in await gateways_of(client))


async def test_a_gateway_that_was_forgotten_is_still_named_for_the_time_of_which_nothing_is_known(
    machines: list[Machine], client: Client
) -> None:
    one, two, _ = machines
    await age(client, two, 3_600_000)
    (gone,) = [each for each in await gateways_of(client) if each.installation == two.usage.installation]
    await forget(client, gone)
    (text,) = (await one.usage.ask(an_id(60_000))).unasked
    assert "and forgotten at" in text
    assert (await one.usage.ask(an_id(2 * 3_600_000))).unasked == []
    assert (await one.usage.ask(id_at(round(time.time() * 1000) + 1000))).unasked[0].startswith("gateway "), "the third"
    groups = await client.call("XINFO", "GROUPS", STREAM)
    assert len(groups) == 2


async def test_a_gateway_that_was_forgotten_is_named_though_the_store_was_emptied(
    machines: list[Machine], client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replication, "LOOK_S", 0)
    one, two, three = machines
    then = an_id(60_000)
    for each in (two, three):
        await age(client, each, 3_600_000)
    (gone,) = [each for each in await gateways_of(client) if each.installation == two.usage.installation]
    await forget(client, gone)
    await one.drain()
    await client.call("FLUSHALL")
    for _ in range(2):
        texts = (await one.usage.ask(then)).unasked
        assert any(f"({two.usage.gateway})" in text and "and forgotten at" in text for text in texts)
        assert any(f"({three.usage.gateway})" in text and "forget" in text for text in texts)
        assert len([note for note in gaps.notes(one.usage.folder) if "was last heard of" in note]) == 2
        one.sink.reader.leave()
        await one.drain()
    away = unknown_to_store(await gateways_of(client), gaps.load(one.usage.folder).away)
    await forget(client, next(each for each in away if each.installation == three.usage.gateway))
    assert [
        text
        for text in (await one.usage.ask(then)).unasked
        if f"({three.usage.gateway})" in text and "forgotten at" in text
    ]


async def test_what_an_open_request_is_said_of_after_its_gateway_was_forgotten(
    machines: list[Machine], client: Client
) -> None:
    one, two, _ = machines
    under_way = msgspec.structs.replace(arrival(), gateway=two.usage.gateway)
    await two.usage.submit_arrival(under_way)
    await one.drain()
    await age(client, two, 3_600_000)
    (text,) = (await one.usage.ask(under_way.id)).unasked
    assert text.endswith(f"ask there; if it has gone for good, `gateway gateways forget {two.usage.gateway}`")
    (gone,) = [each for each in await gateways_of(client) if each.installation == two.usage.installation]
    await forget(client, gone)
    (text,) = (await one.usage.ask(under_way.id)).unasked
    assert "and forgotten at" in text
    assert "ask there" not in text


async def test_a_caller_learns_the_same_of_the_request_of_another_as_of_one_that_is_nowhere(
    machines: list[Machine], client: Client
) -> None:
    one, two, three = machines
    ended, under_way = end(arrival()), msgspec.structs.replace(arrival(), gateway=two.usage.gateway)
    await one.usage.end(ended)
    await two.usage.submit_arrival(under_way)
    for each in machines:
        await each.drain()

    async def answers() -> list[list[str]]:
        asked = (ended.id, under_way.id, id_at(arrival_ms(ended.id)))
        return [(await one.usage.ask(id_, account="another")).unasked for id_ in asked]

    for machine, ago_ms in ((two, 15_000), (three, 3_600_000), (two, -14_999)):
        await age(client, machine, ago_ms)
        of_ended, of_open, of_nothing = await answers()
        assert of_ended == of_open == of_nothing
        assert of_nothing


async def test_records_that_another_gateway_has_not_handed_over_are_named(
    machines: list[Machine], client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, _ = machines
    held = end(arrival(an_id(60_000)))
    await two.usage.spool.append(encode(held))
    two.usage.max_entries = 0  # the stream is full
    await two.drain()
    found = await one.usage.ask(held.id)
    assert found.record is None
    assert "and had 1 files to hand over" in found.unasked[0]
    assert (await two.usage.ask(held.id)).record == held, "its own gateway has it at once"
    two.usage.max_entries = 2000
    await two.drain()
    assert (await one.usage.ask(held.id)).record == held, "it is found in the stream, long after its time"
    await one.drain()
    assert (await one.usage.ask(held.id)).record == held
    assert (await one.usage.ask(an_id(60_000))).unasked == []


async def test_the_spool_of_this_gateway_is_named(machines: list[Machine]) -> None:
    one, *_ = machines
    await one.usage.spool.append(encode(end(arrival())))
    (text,) = (await one.usage.ask(an_id(60_000))).unasked
    assert text.startswith("1 files of records wait in the spool of this gateway")


async def test_a_caller_is_told_that_a_gateway_away_may_have_the_end_of_its_request(
    machines: list[Machine], client: Client
) -> None:
    one, two, _ = machines
    opened = msgspec.structs.replace(arrival(an_id(60_000)), gateway=two.usage.gateway)
    await two.usage.submit_arrival(opened)
    await one.drain()
    await age(client, two, 3_600_000)
    found = await one.usage.ask(opened.id, "alice")
    assert (found.record, len(found.unasked)) == (None, 1)
