"""Several gateways write one log: shares, requests that never ended, and what may be missing."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import time
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from gateway.admin.actions.requests import verdict
from gateway.base.ids import arrival_ms, utc
from gateway.domain.exchange import Outcome
from gateway.server.own_records import notes_of
from gateway.store.client.client import Client
from gateway.usage import completeness, queries, sink
from gateway.usage.completeness import DAY_MS, LATE, LONGEST_MS, READ, SKEW_MS, notes
from gateway.usage.database import UsageFiles
from gateway.usage.gateways import HomeTaken, forget, gateways_of
from gateway.usage.home import Home, postgres
from gateway.usage.log import UsageLog
from gateway.usage.record import Record, encode
from gateway.usage.stream import GATEWAYS, HEARD, HOME, STREAM
from tests.forked import FORKED
from tests.patience import PATIENCE_S
from tests.postgres import PostgresServer
from tests.records import arrival, end, id_at, usage_sink
from tests.usage.test_database import rolled_up, summed


# Several gateways share one database: each sink takes a share, and nothing is lost or doubled whoever dies.
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

    async def stopped(self) -> None:
        """Run the sink with a stop in order."""
        stop = asyncio.Event()
        stop.set()
        await self.sink.run(stop)

    async def forgotten(self) -> None:
        known = await gateways_of(self.usage.client)
        await forget(self.usage.client, next(each for each in known if each.installation == self.usage.installation))

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
    assert (await two.usage.ask(min(ids))).record is not None, "it is found while it waits"
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
            machines[number].sink.home.write(shares[number][start : start + 25])

    await asyncio.gather(*(asyncio.to_thread(write, number) for number in range(3)))
    home = machines[0].usage.home
    assert [record.id for record in queries.select(home)] == sorted(record.id for record in opened)
    assert rolled_up(home) == summed(home)
    tail = queries.Tail(home, queries.START)
    assert sorted(record.id for _, record in tail.poll(1000)) == sorted(record.id for record in opened)


async def test_a_follower_misses_no_end_while_several_sinks_write(machines: list[Machine]) -> None:
    home = machines[0].usage.home
    machines[0].sink.home.write([arrival()])
    tail, found = queries.Tail(home, queries.START), list[str]()
    records = [end(arrival()) for _ in range(900)]

    def write(number: int) -> None:
        for start in range(number * 10, 900, 30):
            machines[number].sink.home.write(records[start : start + 10])

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
    tail = queries.Tail(machine.usage.home)
    postgres_server.kill()
    try:
        begun_away = queries.Tail(machine.usage.home)
        assert tail.poll() == begun_away.poll() == []
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
        assert (await machine.usage.ask(min(waiting))).record is not None
        unasked = " ".join((await machine.usage.ask(max(ids))).unasked)
        assert "usage.database cannot be used" in unasked
        ids |= waiting
    finally:
        postgres_server.start()
    assert begun_away.poll() == [], "it begins now"
    await machine.drain()
    await machine.drain()
    assert machine.ids() == ids
    followed = {record.id for _, record in tail.poll()}
    assert followed == {record.id for _, record in begun_away.poll()} < ids and len(followed) == len(ids) - 5
    assert (await machine.usage.length(), machine.usage.spool.count()) == (0, 0)
    assert rolled_up(machine.usage.home) == summed(machine.usage.home)


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


# A request that never ended is closed by any sink, unless its end may wait in the spool of its gateway.
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
    await one.forgotten()
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
    await one.forgotten()
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
    two.sink.home.write([record])
    await client.call("DEL", STREAM)
    await client.call("XADD", STREAM, "1-1", "record", encode(end(record)))
    one.sink.reader.begin_again()
    assert len((await one.sink.reader.read())[STREAM]) == 1, "its sink has it, and dies"
    await two.drain()
    assert outcomes(two) == {None}
    one.sink.reader.begin_again()
    await one.drain()
    assert outcomes(two) == {Outcome.COMPLETED}


# A list says that the log is late, and which gateways may have records, without asking the store.
def let_pass(folder: Path, seconds: float) -> int:
    """Have the home last had everything `seconds` earlier; return when that was."""
    at = time.time() - seconds
    os.utime(folder / READ, (at, at))
    return round(at * 1000)


async def test_a_list_says_that_the_log_is_late(client: Client, home: Home) -> None:
    one = Machine(client, home)
    await one.drain()
    assert notes(home) == []
    since = let_pass(one.usage.folder, 60)
    note = f"requests that arrived or ended after {utc(since)} may be missing here: {LATE}"
    assert notes(home) == notes(home, since - 1000, None) == [note]
    assert notes_of(home, []) == [f"{note[0].upper()}{note[1:]}."]
    assert notes(home, None, since - LONGEST_MS - SKEW_MS - 10_000) == []
    await one.drain()
    assert notes(home) == []


async def test_a_sink_that_runs_and_cannot_write_is_late(client: Client, tmp_path: Path) -> None:
    one = Machine(client, UsageFiles(tmp_path))
    await one.drain()
    await one.served(1)
    let_pass(tmp_path, 60)
    before = tmp_path / "usage"
    one.sink.home.folder = before
    before.write_bytes(b"a file in the place of the folder")
    await one.drain()
    assert len(notes(UsageFiles(tmp_path))) == 1


async def test_a_log_is_late_while_another_sink_has_entries_that_it_does_not_write(machines: list[Machine]) -> None:
    one, two, _ = machines
    await one.served(1)
    await two.sink.reader.read()
    await asyncio.sleep(0.01)
    began = time.time()
    await one.drain()
    assert (one.usage.folder / READ).stat().st_mtime < began


async def test_what_is_stopped_in_order_lacks_nothing(client: Client, home: Home) -> None:
    only = Machine(client, home)
    await only.drain()
    assert (only.usage.folder / READ).exists()
    await only.stopped()
    assert not (only.usage.folder / READ).exists()


def test_a_damaged_file_about_other_gateways_is_none(tmp_path: Path) -> None:
    (tmp_path / completeness.AWAY).write_bytes(b"{")
    assert notes(UsageFiles(tmp_path)) == []


# All gateways of a store log to one home; that a request never arrived is said only when nothing may have it.
async def refusal(machine: Machine) -> str:
    """Return why a gateway does not start."""
    with pytest.raises(HomeTaken) as refused:
        await machine.sink._membership.say(0)
    assert PostgresServer.password not in str(refused.value)
    return str(refused.value)


async def test_a_second_gateway_with_files_does_not_start_and_says_what_to_do(client: Client, tmp_path: Path) -> None:
    one, two = Machine(client, UsageFiles(tmp_path / "one")), Machine(client, UsageFiles(tmp_path / "two"))
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
    one, two = Machine(client, UsageFiles(tmp_path / "one")), Machine(client, UsageFiles(tmp_path / "two"))
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
    files = Machine(client, UsageFiles(tmp_path / "one"))
    await files.served(1)
    await files.drain()
    shared = Machine(client, postgres(database_url, tmp_path / "two"))
    assert "run `gateway usage move` there, after its stop" in await refusal(shared)
    own = Machine(client, postgres(database_url, tmp_path / "one"))
    assert "run `gateway usage move` here, while it does not run" in await refusal(own)
    await shared.sink._membership.take()
    await shared.drain()
    assert "log to PostgreSQL: set `usage.database` here" in await refusal(
        Machine(client, UsageFiles(tmp_path / "one"))
    )
    unasked = (await Machine(client, UsageFiles(tmp_path / "one")).usage.ask(an_id(60_000))).unasked
    assert any("log to PostgreSQL" in text for text in unasked)
    postgres_server.empty()
    other = Machine(client, postgres(database_url, tmp_path / "three"))
    assert "log to another database than this one" in await refusal(other)


async def test_a_gateway_that_has_written_nothing_to_files_may_take_a_database(
    client: Client, database_url: str, tmp_path: Path
) -> None:
    await Machine(client, UsageFiles(tmp_path)).drain()
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
    await two.stopped()
    assert len(await client.call("HGETALL", GATEWAYS)) == 2
    (three.usage.folder / "spool" / "x.jsonl").mkdir(parents=True)  # a file that cannot be read
    await three.stopped()
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
    await two.forgotten()
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
    await two.forgotten()
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
    begun = arrival()
    one.sink.home.write([begun])
    found = await one.usage.ask(begun.id)  # its end may be in that file, too
    assert (found.record, found.unasked) == (begun, [text])


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
