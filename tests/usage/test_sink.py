"""The sink: no record is lost and none is stored twice, through kills, outages and full disks."""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import signal
import sqlite3
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
from structlog.testing import capture_logs

from gateway.base.errors import StoreAway
from gateway.config.channel import Channel, Timers
from gateway.config.schema import Config, UsageSettings
from gateway.domain.exchange import Outcome
from gateway.store.accounts import Accounts
from gateway.store.client.client import Client
from gateway.store.embedded import EmbeddedStore
from gateway.store.money.wallet import Hold, Wallet
from gateway.usage import queries, sink
from gateway.usage.database import UsageFiles, path_of
from gateway.usage.home import Home
from gateway.usage.log import FIELD, UsageLog
from gateway.usage.record import Record, encode
from gateway.usage.sink import Sink
from gateway.usage.stream import DROPPED, Spool, write_lines
from tests.forked import FORKED
from tests.patience import PATIENCE_S, wait_until
from tests.records import arrival, end, id_at, usage_sink
from tests.usage.test_database import rolled_up, summed


# No record is lost and none is stored twice, through kills of the sink, outages of the store and full disks.
@pytest.fixture
def usage(client: Client, home: Home) -> UsageLog:
    return UsageLog(client, home)


def sink_of(usage: UsageLog, crashed_after_s: float = 600) -> Sink:
    return usage_sink(usage, retention_months=13, crashed_after_s=crashed_after_s)


async def drain(worker: Sink) -> None:
    while await worker.move_batch():
        pass


async def pending(usage: UsageLog) -> int:
    """Return how many entries the sink has not said to have written."""
    return await usage.length()


async def served(usage: UsageLog, count: int) -> list[Record]:
    """Write the arrivals and ends of `count` requests; return the ends."""
    opened = [arrival() for _ in range(count)]
    await asyncio.gather(*(usage.submit_arrival(record) for record in opened))
    ended = [end(record) for record in opened]
    await asyncio.gather(*(usage.end(record) for record in ended))
    return ended


async def test_the_next_sink_moves_what_a_killed_sink_had_read(usage: UsageLog) -> None:
    await drain(sink_of(usage))
    ended = await served(usage, 5)
    assert [len(page) for page in (await sink_of(usage).reader.read()).values()] == [10]
    assert await pending(usage) == 10
    await drain(sink_of(usage))
    assert list(queries.select(usage.home)) == ended
    assert await pending(usage) == 0


async def test_the_next_sink_writes_again_what_a_killed_sink_had_written_without_saying_so(usage: UsageLog) -> None:
    await drain(sink_of(usage))
    ended = await served(usage, 5)
    killed = sink_of(usage)
    (entries,) = (await killed.reader.read()).values()
    killed.home.write(killed._records(line for _, line in entries if line))
    await drain(sink_of(usage))
    assert list(queries.select(usage.home)) == ended
    assert rolled_up(usage.home) == summed(usage.home)
    assert (await usage.length(), await pending(usage)) == (0, 0)


async def test_the_spool_is_replayed_once(usage: UsageLog) -> None:
    opened = arrival()
    for _ in range(2):
        await usage.spool.append(encode(opened))
        await usage.spool.append(encode(end(opened)))
    await usage.submit_arrival(opened)
    await drain(sink_of(usage))
    assert list(queries.select(usage.home)) == [end(opened)]
    assert rolled_up(usage.home) == summed(usage.home)
    assert usage.spool.files() == []


async def test_a_record_that_cannot_be_decoded_is_set_aside_and_stops_no_others(usage: UsageLog) -> None:
    good = arrival()
    await usage.client.call("XADD", usage.streams[0], "*", FIELD, b"\xff{")
    write_lines(usage.spool.folder, [b'{"id": "no id", "arrived_at": ""}', encode(good)])
    await drain(sink_of(usage))
    assert list(queries.select(usage.home)) == [good]
    unreadable = [path.read_bytes() for path in (usage.folder / "unreadable").iterdir()]
    assert sorted(unreadable) == [b"\xff{\n", b'{"id": "no id", "arrived_at": ""}\n'][::-1]


@pytest.mark.parametrize(
    "wrong",
    [
        *({"charge_micros": charge} for charge in (2**63, -(2**63) - 1, 2**63 - 1)),
        {"status": 2**70},
        {"account": "\ud800"},
        {"attempts": None},
        {"status": "200"},
        {"price": {"nested": "deeply"}},
    ],
    ids=str,
)
async def test_a_record_that_sqlite_cannot_store_is_set_aside_and_stops_no_others(
    usage: UsageLog, wrong: dict[str, Any]
) -> None:
    good, bad = end(arrival()), end(arrival())
    values = {**msgspec.to_builtins(bad), **wrong}
    line = json.dumps(values).encode()
    if "price" in wrong:
        line = line.replace(b'{"nested": "deeply"}', b'{"nested": ' + b"[" * 100_000 + b"]" * 100_000 + b"}")
    await usage.client.call("XADD", usage.streams[0], "*", FIELD, line)
    await usage.client.call("XADD", usage.streams[0], "*", FIELD, encode(good))
    write_lines(usage.spool.folder, [line])
    with capture_logs() as lines:
        await drain(sink_of(usage))
    assert list(queries.select(usage.home)) == [good]
    assert [entry["event"] for entry in lines] == ["usage_record_unreadable"] * 2
    assert [path.read_bytes() for path in (usage.folder / "unreadable").iterdir()] == [line + b"\n"] * 2
    assert (await usage.length(), await pending(usage)) == (0, 0)


async def test_the_sink_joins_its_group_again_when_the_store_lost_the_stream(usage: UsageLog) -> None:
    worker = sink_of(usage)
    await drain(worker)
    await usage.client.call("FLUSHALL")
    ended = await served(usage, 3)
    assert await worker.move_batch() is False
    await drain(worker)
    assert list(queries.select(usage.home)) == ended


async def test_records_stay_in_the_stream_while_the_files_cannot_be_written(client: Client, tmp_path: Path) -> None:
    usage = UsageLog(client, UsageFiles(tmp_path))
    worker = sink_of(usage)
    await served(usage, 1)
    await drain(worker)
    path = path_of(tmp_path, UsageFiles(tmp_path).months()[0])
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("CREATE TRIGGER full BEFORE INSERT ON requests BEGIN SELECT raise(ABORT, 'disk is full'); END")
    ended = await served(usage, 4)
    await drain(worker)
    assert await usage.length() == 8
    other.execute("DROP TRIGGER full")
    other.close()
    await drain(worker)
    assert len(list(queries.select(usage.home))) == 1 + len(ended)
    assert (await usage.length(), await pending(usage)) == (0, 0)


async def test_a_request_that_never_ended_is_closed_once_the_stream_is_empty(
    usage: UsageLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "HOUSEKEEPING_S", 0)
    now = round(time.time() * 1000)
    crashed, late, young = (arrival(id_at(now - ago_ms), usage.gateway) for ago_ms in (61_000, 61_000, 1_000))
    await asyncio.gather(*(usage.submit_arrival(record) for record in (crashed, late, young)))
    await usage.end(end(late))
    await drain(sink_of(usage, crashed_after_s=60))
    outcomes = {row.id: row.outcome for row in queries.select(usage.home)}
    assert outcomes == {crashed.id: Outcome.GATEWAY_CRASHED, late.id: Outcome.COMPLETED, young.id: None}


@pytest.mark.parametrize(("floor", "charged"), [(0, 0), (7, 7)])
async def test_a_request_that_never_ended_has_its_account_where_money_was_held(
    usage: UsageLog, monkeypatch: pytest.MonkeyPatch, floor: int, charged: int
) -> None:
    monkeypatch.setattr(sink, "HOUSEKEEPING_S", 0)
    accounts, wallet = Accounts(usage.client), Wallet(usage.client)
    for account in ("poor", "rich"):
        await accounts.create(account)
        await wallet.credit(account, "opening", 1000)
    held, not_held = (arrival(gateway=usage.gateway) for _ in range(2))
    await asyncio.gather(*(usage.submit_arrival(record) for record in (held, not_held)))
    terms = {"amount": 100, "floor": floor, "lease_ms": 1, "fingerprint": "x", "max_holds": 9}
    assert (await wallet.hold("rich", held.id, **terms)).outcome is Hold.HELD  # type: ignore[arg-type]
    while not await wallet.sweep("rich"):
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.002)
    await drain(sink_of(usage, crashed_after_s=0))
    stored = {row.id: row for row in queries.select(usage.home)}
    crashed = {"outcome": Outcome.GATEWAY_CRASHED}
    assert stored[not_held.id] == msgspec.structs.replace(not_held, **crashed)
    assert stored[held.id] == msgspec.structs.replace(held, account="rich", charge_micros=charged, **crashed)
    assert rolled_up(usage.home) == summed(usage.home)
    await usage.end(end(held, account="rich"))
    await drain(sink_of(usage, crashed_after_s=600))
    assert queries.find(usage.home, held.id) == end(held, account="rich"), "an actual end that comes late replaces it"


MONTH_S = 31 * 86_400


class TestRetention:
    """Of 13 months; the files are of 16, 15 and 11 months ago, and of now."""

    @pytest.fixture
    async def kept(self, usage: UsageLog, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        monkeypatch.setattr(sink, "HOUSEKEEPING_S", 0)
        for age in (16, 15, 11):
            await usage.submit_arrival(arrival(id_at(round((time.time() - age * MONTH_S) * 1000))))
        await drain(sink_of(usage))
        return usage.home.months()

    async def dropped(self, usage: UsageLog, kept: list[str], after_s: float = sink.DROPS_AFTER_S) -> int:
        """Return how many months go within this time."""
        worker = sink_of(usage)
        await drain(worker)
        worker._drops_at -= after_s
        await drain(worker)
        return len([month for month in kept if month not in usage.home.months()])

    async def test_a_month_a_day_goes_when_it_was_too_old_for_an_hour(self, usage: UsageLog, kept: list[str]) -> None:
        await usage.submit_arrival(arrival())
        assert await self.dropped(usage, kept, 0) == 0
        with structlog.testing.capture_logs() as logs:
            assert await self.dropped(usage, kept) == 1
        assert [(each["log_level"], each["month"]) for each in logs if each["event"] == "usage_month_dropped"] == [
            ("warning", kept[0])
        ]
        assert await self.dropped(usage, kept) == 1, "one a day, whichever sink"
        for _ in range(2):
            await usage.client.call("DEL", DROPPED)  # a day is over
            assert await self.dropped(usage, kept) == 2

    async def test_nothing_goes_unless_both_clocks_and_the_newest_request_say_so(
        self, usage: UsageLog, kept: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ahead_s = 40 * MONTH_S
        assert await self.dropped(usage, kept) == 0, "no request is newer"
        with monkeypatch.context() as patch:
            real = time.time
            patch.setattr(time, "time", lambda: real() + ahead_s)
            assert await self.dropped(usage, kept) == 0, "the gateway's clock alone is ahead"
        with monkeypatch.context() as patch:

            async def ahead_ms(_: Client) -> int:
                return round((time.time() + ahead_s) * 1000)

            patch.setattr(sink, "now_ms", ahead_ms)
            assert await self.dropped(usage, kept) == 0, "the store's clock alone is ahead"
        await usage.submit_arrival(arrival(id_at(round((time.time() + ahead_s) * 1000))))
        await drain(sink_of(usage))
        assert await self.dropped(usage, kept[2:]) == 0, "the newest request alone is ahead"

    async def test_a_clock_that_is_ahead_for_minutes_takes_nothing(
        self, usage: UsageLog, kept: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def ahead_ms(_: Client) -> int:
            return round(time.time() * 1000)

        worker = sink_of(usage)
        with monkeypatch.context() as patch:
            real = time.time
            patch.setattr(time, "time", lambda: real() + 40 * MONTH_S)
            patch.setattr(sink, "now_ms", ahead_ms)
            await usage.submit_arrival(arrival(id_at(round(time.time() * 1000))))
            await drain(worker)
            worker._drops_at -= sink.DROPS_AFTER_S - 60
            await drain(worker)
        await drain(worker)
        assert set(kept) <= set(usage.home.months())


def test_a_request_may_take_as_long_as_the_slowest_channel_and_a_margin() -> None:
    channels = {
        name: Channel("http://127.0.0.1/v1", timers=Timers(total=total), drain_limit=5)
        for name, total in (("fast", 10), ("slow", 1000))
    }
    assert sink.crashed_after_s(Config(channels=channels)) == 60 + 1005 + 60


def config_of(usage: UsageLog) -> Config:
    database = "" if isinstance(usage.home, UsageFiles) else usage.home._url
    return Config(data=str(usage.folder.parent), usage=UsageSettings(database=database))


async def start(usage: UsageLog, url: str) -> asyncio.subprocess.Process:
    config = config_of(usage)
    arguments = (config.data, url, config.usage.database)
    return await asyncio.create_subprocess_exec(FORKED, "-m", "tests.sink_process", *arguments)


async def test_a_terminated_sink_drains_the_stream_and_exits_with_0(
    usage: UsageLog, store_url: str, tmp_path: Path
) -> None:
    await served(usage, 1)
    process = await start(usage, store_url)
    await wait_until(lambda: len(list(queries.select(usage.home))) == 1)
    ended = await served(usage, 3000)
    process.terminate()
    assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0
    assert len(list(queries.select(usage.home))) == 1 + len(ended)
    assert (await usage.length(), await pending(usage)) == (0, 0)


async def test_a_second_sink_waits_until_the_first_has_ended(usage: UsageLog, store_url: str) -> None:
    stop_first, stop_second = asyncio.Event(), asyncio.Event()
    config = config_of(usage)
    first = asyncio.create_task(sink.run(config, store_url, stop_first))
    await served(usage, 1)
    await wait_until(lambda: len(usage.home.months()) == 1)
    second = asyncio.create_task(sink.run(config, store_url, stop_second))
    stop_first.set()
    await first
    await served(usage, 1)
    await wait_until(lambda: len(list(queries.select(usage.home))) == 2)
    stop_second.set()
    await second


async def test_a_sink_killed_at_any_moment_loses_and_doubles_no_record(
    usage: UsageLog, store_url: str, tmp_path: Path
) -> None:
    chance = random.Random(4)
    ids: set[str] = set()
    for _ in range(6):
        process = await start(usage, store_url)
        before = len(list(queries.select(usage.home)))
        for _ in range(6):
            ids |= {record.id for record in await served(usage, 400)}
        await wait_until(lambda before=before: len(list(queries.select(usage.home))) > before)  # type: ignore[misc]
        ids |= {record.id for record in await served(usage, chance.randrange(400))}
        await asyncio.sleep(chance.random() * 0.05)
        process.kill()
        await process.wait()
    await drain(sink_of(usage))
    assert [row.id for row in queries.select(usage.home)] == sorted(ids)
    assert {row.outcome for row in queries.select(usage.home)} == {Outcome.COMPLETED}
    assert rolled_up(usage.home) == summed(usage.home)
    assert (await usage.length(), await pending(usage)) == (0, 0)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[EmbeddedStore]:
    server = EmbeddedStore.start(tmp_path / "store")
    yield server
    server.stop()


async def test_records_are_spooled_while_the_store_is_frozen_and_stored_once_afterwards(
    store: EmbeddedStore, tmp_path: Path
) -> None:
    client = Client.connect(store.url, timeout_s=1)
    usage = UsageLog(client, UsageFiles(tmp_path / "usage"))
    stop = asyncio.Event()
    running = asyncio.create_task(sink.run(Config(data=str(tmp_path)), store.url, stop))
    ended = {record.id: record for record in await served(usage, 50)}
    os.kill(store.pid, signal.SIGSTOP)
    refused = [arrival() for _ in range(50)]
    errors = await asyncio.gather(*(usage.submit_arrival(record) for record in refused), return_exceptions=True)
    assert {type(error) for error in errors} == {StoreAway}
    refusals = [end(record, status=503, outcome=Outcome.REFUSED, charge_micros=0) for record in refused]
    await asyncio.gather(*(usage.end(record) for record in refusals))
    os.kill(store.pid, signal.SIGCONT)
    ended |= {record.id: record for record in [*refusals, *await served(usage, 50)]}
    await wait_until(lambda: len(list(queries.select(usage.home))) == len(ended))
    stop.set()
    await running
    assert {row.id: row for row in queries.select(usage.home)} == ended
    assert rolled_up(usage.home) == summed(usage.home)
    assert (await usage.length(), usage.spool.files()) == (0, [])
    await client.close()


async def test_the_spool_is_replayed_without_a_store(store: EmbeddedStore, tmp_path: Path) -> None:
    store.stop()
    client = Client.connect(store.url, timeout_s=0.1)
    usage = UsageLog(client, UsageFiles(tmp_path / "usage"))
    opened = arrival()
    with pytest.raises(StoreAway):
        await usage.submit_arrival(opened)
    assert await sink_of(usage).move_batch() is False
    assert queries.find(usage.home, opened.id) == opened
    assert usage.spool.files() == []
    await client.close()


# The files of the spool are complete and on the disk.
def lines(spool: Spool) -> list[bytes]:
    return [line for file in spool.files() for line in file.read_bytes().splitlines()]


async def test_lines_are_kept_in_their_order_and_those_at_once_and_of_two_processes_share_a_few_files(
    tmp_path: Path,
) -> None:
    spool, other = Spool(tmp_path / "spool"), Spool(tmp_path / "spool")
    for line in (b"1", b"2", b"3"):
        await spool.append(line)
    assert lines(spool) == [b"1", b"2", b"3"]
    await asyncio.gather(other.append(b"4"), *(spool.append(b"%d" % number) for number in range(5, 500)))
    assert sorted(map(int, lines(spool))) == list(range(1, 500))
    assert len(spool.files()) < 15


async def test_a_disk_that_cannot_be_written_fails_every_append_and_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "spool").symlink_to("/dev/full")
    spool = Spool(tmp_path / "spool")
    results = await asyncio.gather(*(spool.append(b"x") for _ in range(3)), return_exceptions=True)
    assert [isinstance(result, OSError) for result in results] == [True, True, True]
    (tmp_path / "spool").unlink()
    await spool.append(b"again")
    assert lines(spool) == [b"again"]


async def test_a_disk_that_is_full_half_way_leaves_no_file(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            await spool.append(b"x" * 2_000_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(spool.folder.iterdir()) == []


async def test_a_cancelled_append_does_not_cancel_others(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    cancelled, other = (asyncio.create_task(spool.append(line)) for line in (b"cancelled", b"other"))
    await asyncio.sleep(0)
    cancelled.cancel()
    await other
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert b"other" in lines(spool)
