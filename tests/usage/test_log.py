"""An arrival is written to the stream, or the request is refused; and a record is found wherever it is."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.base.errors import Misconfigured, StoreAway
from gateway.base.ids import month
from gateway.domain.exchange import Outcome
from gateway.store.client.client import Client
from gateway.store.client.durability import Masters
from gateway.store.embedded import EmbeddedStore
from gateway.usage import log
from gateway.usage import log as module
from gateway.usage.database import UsageFiles, path_of
from gateway.usage.home import Home
from gateway.usage.log import FIELD, UsageLog
from gateway.usage.record import Record, decode, encode
from tests.patience import PATIENCE_S
from tests.records import arrival, end, id_at, writer


@pytest.fixture
def usage(client: Client, home: Home) -> UsageLog:
    return UsageLog(client, home)


@pytest.fixture
async def frozen(tmp_path: Path) -> AsyncIterator[UsageLog]:
    """A usage log whose store does not reply."""
    store = EmbeddedStore.start(tmp_path / "store")
    client = Client.connect(store.url, timeout_s=0.5)
    await client.call("PING")
    os.kill(store.pid, signal.SIGSTOP)
    yield UsageLog(client, UsageFiles(tmp_path / "usage"))
    os.kill(store.pid, signal.SIGCONT)
    await client.close()
    store.stop()


async def streamed(usage: UsageLog) -> list[Record]:
    return [decode(fields[FIELD]) for _, fields in await usage.client.call("XRANGE", usage.streams[0], "-", "+")]


def spooled(usage: UsageLog) -> list[Record]:
    return [decode(line) for file in usage.spool.files() for line in file.read_bytes().splitlines()]


async def test_an_arrival_and_its_end_go_into_the_stream(usage: UsageLog) -> None:
    opened = arrival()
    await usage.submit_arrival(opened)
    await usage.end(end(opened))
    assert await streamed(usage) == [opened, end(opened)]
    assert await usage.length() == 2
    assert spooled(usage) == []


async def test_an_arrival_shares_the_round_trip_of_its_tick(usage: UsageLog) -> None:
    await usage.submit_arrival(arrival())
    before = await usage.client.call("INFO", "stats")
    other = usage.client.submit("GET", "gw:other")
    written = usage.submit_arrival(arrival())
    await asyncio.gather(other, written)
    after = await usage.client.call("INFO", "stats")
    assert after["total_commands_processed"] - before["total_commands_processed"] == 3
    assert after["total_reads_processed"] - before["total_reads_processed"] == 2


async def test_while_the_store_is_away_an_arrival_is_refused_and_spooled(frozen: UsageLog) -> None:
    opened = arrival()
    with pytest.raises(StoreAway):
        await frozen.submit_arrival(opened)
    await frozen.end(end(opened, outcome=Outcome.REFUSED))
    assert spooled(frozen) == [opened, end(opened, outcome=Outcome.REFUSED)]


async def test_an_arrival_that_the_store_refuses_is_refused_and_spooled(usage: UsageLog) -> None:
    await usage.client.call("SET", usage.streams[0], "x")
    opened = arrival()
    with pytest.raises(StoreAway):
        await usage.submit_arrival(opened)
    assert spooled(usage) == [opened]


async def test_with_neither_store_nor_disk_an_arrival_is_refused_and_ends_are_kept_in_memory(frozen: UsageLog) -> None:
    frozen.spool.folder.symlink_to("/dev/full")
    with pytest.raises(StoreAway, match="nor to the disk"):
        await frozen.submit_arrival(arrival())
    kept = [end(arrival()) for _ in range(3)]
    with capture_logs() as logs:
        await asyncio.gather(*map(frozen.end, kept))
    assert [entry["event"] for entry in logs] == ["records_not_written"]
    assert await frozen.write_down() == 0
    frozen.spool.folder.unlink()
    assert await frozen.write_down() == 3
    assert sorted(spooled(frozen), key=lambda record: record.id) == kept
    assert await frozen.write_down() == 0


async def test_ends_in_memory_are_written_to_the_store_that_is_back(usage: UsageLog) -> None:
    usage.spool.folder.symlink_to("/dev/full")
    await usage.client.call("SET", usage.streams[0], "in the way")
    kept = [end(arrival()) for _ in range(3)]
    await asyncio.gather(*map(usage.end, kept))
    await usage.client.call("DEL", usage.streams[0])
    assert await usage.write_down() == 3
    assert await streamed(usage) == kept


async def test_ends_of_refused_requests_leave_memory_for_those_that_were_charged(
    usage: UsageLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "MAX_REFUSED_BYTES", 1000)
    kept = log.Unwritten()
    for _ in range(20):
        kept.add(end(arrival(), attempts=[], charge_micros=0, outcome=Outcome.REFUSED), "full")
    few = len(kept)
    assert 0 < few < 20
    for _ in range(20):
        kept.add(end(arrival()), "full")
    assert len(kept) == few + 20


async def test_while_the_stream_is_full_records_go_to_the_spool(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MEASURE_S", 0.0)
    usage = UsageLog(client, UsageFiles(tmp_path), max_entries=3)
    for _ in range(10):
        await usage.submit_arrival(arrival())
    assert 3 <= await usage.length() <= 4
    assert len(spooled(usage)) == 10 - await usage.length()
    await client.call("DEL", usage.streams[0])
    await usage.submit_arrival(arrival())
    await usage.submit_arrival(arrival())
    assert await usage.length() >= 1


async def test_a_full_stream_and_a_full_disk_refuse_the_arrival(client: Client, tmp_path: Path) -> None:
    usage = UsageLog(client, UsageFiles(tmp_path), max_entries=0)
    await usage.submit_arrival(arrival())
    usage.spool.folder.symlink_to("/dev/full")
    with pytest.raises(StoreAway):
        await usage.submit_arrival(arrival())


async def test_a_request_is_found_in_the_stream_before_it_is_in_the_files(usage: UsageLog) -> None:
    opened = arrival()
    await usage.submit_arrival(arrival())
    await usage.submit_arrival(opened)
    assert (await usage.ask(opened.id)).record == opened
    await usage.end(end(opened))
    assert (await usage.ask(opened.id)).record == end(opened)


async def test_a_request_is_found_among_many_others_in_the_stream(
    usage: UsageLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "SEARCHED", 10)
    wanted = arrival()
    await usage.submit_arrival(wanted)
    await asyncio.gather(*(usage.submit_arrival(arrival()) for _ in range(45)))
    await usage.end(end(wanted))
    assert (await usage.ask(wanted.id)).record == end(wanted)


async def test_a_request_whose_arrival_is_in_the_files_and_whose_end_waits_has_ended(usage: UsageLog) -> None:
    opened = arrival()
    writer(usage.home).write([opened])
    assert (await usage.ask(opened.id)).record == opened
    await usage.end(end(opened))
    assert (await usage.ask(opened.id)).record == end(opened)


async def test_other_calls_are_served_while_many_entries_are_searched(usage: UsageLog) -> None:
    await fill(usage, 80_000)
    finding = asyncio.create_task(usage.ask(id_at(round(time.time() * 1000))))
    calls = 0
    while not finding.done():
        await usage.client.call("PING")
        calls += 1
    assert calls > 50, "a search of 400 pages lets other calls through between two pages"


async def test_a_request_is_found_when_the_clock_went_back_an_hour_before_it_arrived(usage: UsageLog) -> None:
    await usage.submit_arrival(arrival())  # the ids of the stream stay at this time
    back = arrival(id_at(round(time.time() * 1000) - 3_600_000))
    await usage.submit_arrival(back)
    await usage.end(end(back))
    assert (await usage.ask(back.id)).record == end(back)


async def test_a_request_is_found_after_the_stores_clock_was_ahead(usage: UsageLog) -> None:
    ahead = f"{round(time.time() * 1000) + 40 * 86_400_000}-0"
    await usage.client.call("XADD", usage.streams[0], ahead, "record", "{}")  # the ids of the stream stay at this time
    opened = arrival()
    await usage.submit_arrival(opened)
    assert (await usage.ask(opened.id)).record == opened
    await usage.end(end(opened))
    assert (await usage.ask(opened.id)).record == end(opened)


async def test_a_request_of_long_ago_is_found_when_it_was_written_late(usage: UsageLog) -> None:
    ended = end(arrival(id_at(round(time.time() * 1000) - 30 * 86_400_000)))
    await usage.end(end(arrival()))
    await usage.end(ended)
    assert (await usage.ask(ended.id)).record == ended


async def fill(usage: UsageLog, count: int) -> None:
    """Write entries of other requests, all of now."""
    await usage.submit_arrival(arrival())
    other = encode(end(arrival()))
    script = 'for i = 1, ARGV[1] do redis.call("XADD", KEYS[1], "*", "record", ARGV[2]) end'
    await usage.client.call("EVAL", script, 1, usage.streams[0], count - 1, other)


async def test_a_request_in_a_damaged_file_is_not_said_to_have_never_arrived(client: Client, tmp_path: Path) -> None:
    usage = UsageLog(client, UsageFiles(tmp_path))
    ended, in_stream = end(arrival()), end(arrival())
    rows = writer(usage.home)
    rows.write([ended])
    rows.close()
    path_of(usage.folder, month(ended.id)).write_bytes(b"garbage" * 1000)
    await usage.end(in_stream)
    assert (await usage.ask(in_stream.id)).record == in_stream
    (unasked,) = (await usage.ask(ended.id)).unasked
    assert "cannot be used: file is not a database" in unasked


@pytest.mark.parametrize("content", [b"", b"0123", b"\xff" * 32])
async def test_a_damaged_installation_file_is_named(client: Client, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "installation").write_bytes(content)
    with pytest.raises(Misconfigured, match=f"{tmp_path}/installation is damaged"):
        UsageLog(client, UsageFiles(tmp_path))


async def test_an_account_finds_only_its_own_requests(usage: UsageLog) -> None:
    own, other, without = end(arrival()), end(arrival(), account="other"), end(arrival(), account="")
    writer(usage.home).write([own, other, without])
    assert (await usage.ask(own.id, "demo")).record == own
    assert (await usage.ask(other.id, "demo")).record is None
    assert (await usage.ask(without.id, "demo")).record is None
    assert (await usage.ask(without.id)).record == without


async def test_without_the_store_a_record_in_the_files_is_found_and_any_other_id_raises(frozen: UsageLog) -> None:
    ended = end(arrival())
    writer(frozen.home).write([ended])
    assert (await frozen.ask(ended.id)).record == ended
    with pytest.raises(StoreAway):
        await frozen.ask(arrival().id)


async def test_each_folder_is_a_gateway_of_its_own_that_stays_the_same(client: Client, tmp_path: Path) -> None:
    one, again, other = (UsageLog(client, UsageFiles(tmp_path / name)) for name in ("one", "one", "other"))
    assert one.installation == again.installation != other.installation
    assert one.gateway == again.gateway != other.gateway


async def test_ends_that_a_store_lost_are_written_again_to_the_one_that_took_over(tmp_path: Path) -> None:
    store = EmbeddedStore.start(tmp_path / "store")
    client = Client.connect(store.url)
    usage, masters = UsageLog(client, UsageFiles(tmp_path / "usage")), Masters(client)
    assert await masters.replay_after_failover(usage.repeat) == [0]
    opened = arrival()
    await usage.submit_arrival(opened)
    await usage.end(end(opened))
    await client.call("DEL", usage.streams[0])  # as on a replica that was behind
    assert await masters.replay_after_failover(usage.repeat) == [0], "the master has not changed"
    assert await streamed(usage) == []
    await asyncio.to_thread(store.stop)
    store = EmbeddedStore.start(tmp_path / "store")
    try:
        async with asyncio.timeout(PATIENCE_S):
            while (await asyncio.gather(masters.replay_after_failover(usage.repeat), return_exceptions=True))[0] != [1]:
                await asyncio.sleep(0.01)
        assert await streamed(usage) == [end(opened)]
        assert await masters.replay_after_failover(usage.repeat) == [0]
    finally:
        await client.close()
        store.stop()
