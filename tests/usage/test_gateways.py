"""All gateways of a store log to one home; that a request never arrived is said only when nothing may have it."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

import msgspec
import pytest

from gateway.base.ids import arrival_ms
from gateway.store.client.client import Client
from gateway.usage.completeness import DAY_MS, notes
from gateway.usage.gateways import HomeTaken, forget, gateways_of
from gateway.usage.home import postgres
from gateway.usage.record import encode
from gateway.usage.stream import GATEWAYS, HOME
from tests.postgres import PostgresServer
from tests.records import arrival, end, id_at
from tests.usage.test_shares import Machine, age, machines

__all__ = ["machines"]


async def refusal(machine: Machine) -> str:
    """Return why a gateway does not start."""
    with pytest.raises(HomeTaken) as refused:
        await machine.sink._membership.say(0)
    assert PostgresServer.password not in str(refused.value)
    return str(refused.value)


async def test_a_second_gateway_with_files_does_not_start_and_says_what_to_do(client: Client, tmp_path: Path) -> None:
    one, two = Machine(client, tmp_path / "one"), Machine(client, tmp_path / "two")
    await one.drain()
    await one.drain()
    name = f"{socket.gethostname()} ({one.usage.gateway})"
    text = await refusal(two)
    assert text.startswith(f"usage: the log of this store is in the SQLite files of gateway {name}, ")
    assert 'set `usage: {database: "postgresql://..."}`' in text
    assert text.endswith("and run `gateway usage move` there")
    assert not await two.sink.move_batch(), "its sink writes nothing either"
    await age(client, one, 61_000)
    assert f"if it has gone for good, with its disk, `gateway gateways forget {one.usage.gateway}`" in await refusal(
        two
    )


async def test_a_gateway_whose_disk_was_replaced_starts_after_the_first_was_forgotten_and_knows_what_is_lost(
    client: Client, tmp_path: Path
) -> None:
    one, two = Machine(client, tmp_path / "one"), Machine(client, tmp_path / "two")
    await one.served(1)
    await one.drain()
    before = an_id(3_600_000)
    await age(client, one, 120_000)
    (gone,) = await gateways_of(client)
    await forget(client, gone)
    await two.drain()
    (text,) = (await two.usage.ask(before)).unasked
    assert text.endswith("the log until then, which its disk had, is lost")
    assert notes(two.usage.home, 0, DAY_MS) == [text]
    ids = await two.served(1)
    await two.drain()
    assert (two.ids(), (await two.usage.ask(id_at(round(time.time() * 1000) + 1000))).unasked) == (ids, [])
    assert "which its disk had" not in await refusal(one)


async def test_a_gateway_with_another_home_than_the_others_does_not_start(
    client: Client, database_url: str, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    files = Machine(client, tmp_path / "one")
    await files.served(1)
    await files.drain()
    shared = Machine(client, postgres(database_url, tmp_path / "two"))
    assert "run `gateway usage move` there, after its stop" in await refusal(shared)
    own = Machine(client, postgres(database_url, tmp_path / "one"))
    assert "run `gateway usage move` here, while it does not run" in await refusal(own)
    await shared.sink._membership.take()
    await shared.drain()
    assert "log to PostgreSQL: set `usage.database` here" in await refusal(Machine(client, tmp_path / "one"))
    unasked = (await Machine(client, tmp_path / "one").usage.ask(an_id(60_000))).unasked
    assert any("log to PostgreSQL" in text for text in unasked)
    postgres_server.empty()
    other = Machine(client, postgres(database_url, tmp_path / "three"))
    assert "log to another database than this one" in await refusal(other)


async def test_a_gateway_that_has_written_nothing_to_files_may_take_a_database(
    client: Client, database_url: str, tmp_path: Path
) -> None:
    await Machine(client, tmp_path).drain()
    machine = Machine(client, postgres(database_url, tmp_path))
    await machine.drain()
    assert (await client.call("GET", HOME)).startswith(b"postgresql ")


async def test_a_store_that_was_emptied_learns_the_home_again(machines: list[Machine], client: Client) -> None:
    before = await client.call("GET", HOME)
    await client.call("FLUSHALL")
    ids = await machines[0].served(1)
    await machines[0].drain()
    await machines[0].drain()
    assert await client.call("GET", HOME) == before
    assert machines[0].ids() >= ids


def an_id(ago_ms: int) -> str:
    return id_at(round(time.time() * 1000) - ago_ms)


async def test_nothing_is_unasked_where_every_gateway_is_there(machines: list[Machine]) -> None:
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
    assert (await one.usage.ask(before)).unasked == [], "it had an empty spool when it was last heard of"
    (text,) = (await one.usage.ask(since)).unasked
    assert text.startswith(f"gateway {socket.gethostname()} ({two.usage.gateway}) was last heard of at ")
    assert text.endswith(
        f": start it, so that it writes them; if it has gone for good, `gateway gateways forget {two.usage.gateway}`"
    )
    assert next(iter((await one.usage.known()).notes())).startswith(
        f"gateway {socket.gethostname()} ({two.usage.gateway})"
    )


async def test_lists_name_what_other_gateways_may_have_in_the_words_of_the_search(
    machines: list[Machine], client: Client
) -> None:
    one, two, three = machines
    assert notes(one.usage.home) == []
    await three.sink._membership.say(1)
    for each in (two, three):
        await age(client, each, 3_600_000)
    await one.drain()
    found = notes(one.usage.home)
    assert len(found) == 2
    assert found == list((await one.usage.known()).notes())
    (of_three,) = notes(one.usage.home, until_ms=round(time.time() * 1000) - 3 * DAY_MS, with_hosts=False)
    assert of_three.startswith(f"gateway {three.usage.gateway} was last heard of at ")
    assert of_three.endswith(", and had 1 files of records in its spool: requests of it may be missing here")
    for each in (two, three, one):
        await each.drain()
    assert notes(one.usage.home) == []


async def test_a_gateway_that_was_stopped_in_order_need_not_be_asked(machines: list[Machine], client: Client) -> None:
    one, two, three = machines
    stop = asyncio.Event()
    stop.set()
    await two.sink.run(stop)
    assert len(await client.call("HGETALL", GATEWAYS)) == 2
    (three.usage.folder / "spool" / "x.jsonl").mkdir(parents=True)  # a file that cannot be read
    await three.sink.run(stop)
    await age(client, three, 3_600_000)
    await one.drain()
    (text,) = (await one.usage.ask(an_id(60_000))).unasked
    assert f"({three.usage.gateway})" in text, "it has not written all"
    await two.drain()  # it is started again
    assert len(await client.call("HGETALL", GATEWAYS)) == 3


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


async def test_what_an_open_request_is_said_of_after_its_gateway_was_forgotten(
    machines: list[Machine], client: Client
) -> None:
    one, two, _ = machines
    under_way = msgspec.structs.replace(arrival(), gateway=two.usage.gateway)
    await two.usage.submit_arrival(under_way)
    await one.drain()
    await age(client, two, 3_600_000)
    (text,) = (await one.usage.ask(under_way.id)).unasked
    assert text.endswith(f"if it has gone for good, `gateway gateways forget {two.usage.gateway}`")
    (gone,) = [each for each in await gateways_of(client) if each.installation == two.usage.installation]
    await forget(client, gone)
    (text,) = (await one.usage.ask(under_way.id)).unasked
    assert "and forgotten at" in text
    assert "start it" not in text


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


async def test_records_in_the_spool_of_another_gateway_are_named(machines: list[Machine]) -> None:
    one, two, _ = machines
    held = end(arrival(an_id(60_000)))
    await two.usage.spool.append(encode(held))
    await two.sink._membership.say(two.usage.spool.count())
    found = await one.usage.ask(held.id)
    assert found.record is None
    assert "and had 1 files of records in its spool" in found.unasked[0]
    await two.drain()
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


async def test_gateways_that_serve_something_else_are_told_apart(
    machines: list[Machine], client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    served = [{"models": "a", "groups": "g"}, {"models": "b", "groups": "g", "plugins": "p"}, {}]
    for machine, settings in zip(machines, served, strict=True):
        machine.sink._membership._settings = settings
        await machine.drain()
    await machines[0].drain()
    one, two, three = [
        next(each for each in await gateways_of(client) if each.installation == machine.usage.installation)
        for machine in machines
    ]
    assert (two.differs(one), one.differs(two)) == (["models", "plugins"], ["models", "plugins"])
    assert (one.differs(one), three.differs(one), one.differs(three), two.differs(None)) == ([], [], [], [])
    assert "configurations_differ" in capsys.readouterr().out
    served[1] |= served[0]
    del served[1]["plugins"]
    await machines[1].drain()
    await machines[0].drain()
    assert "configurations_agree" in capsys.readouterr().out
    await age(client, machines[1], 61_000)
    served[1]["models"] = "c"
    assert [each.differs(one) for each in await gateways_of(client)] == [[], [], []], (
        "one that does not run serves nothing"
    )
