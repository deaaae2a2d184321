"""Processes and their tasks: started, started again, stopped, and what they do beside requests."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from decimal import Decimal
from pathlib import Path

import pytest
import structlog
import uvloop
from redis import Redis
from redis.exceptions import ResponseError
from structlog.testing import capture_logs

from gateway import Exchange, Plugin, Services
from gateway.alerts.alerts import Alerts
from gateway.alerts.event import Outbox
from gateway.base.errors import GatewayError, Misconfigured
from gateway.chain.services import Store
from gateway.config.schema import AlertSettings
from gateway.fake_upstream import FakeUpstream
from gateway.runtime import background, process, store_keeper, worker
from gateway.runtime import background as module
from gateway.runtime.background import SWEEP_LOCK, AlertWriter, Maintenance, Sampler
from gateway.runtime.process import BackgroundTask, run_until_terminated
from gateway.runtime.store_keeper import StoreKeeper
from gateway.runtime.supervisor import Ready, Supervisor, Work, open_listeners
from gateway.store import embedded
from gateway.store.accounts import Accounts
from gateway.store.channels import Channels
from gateway.store.client.client import Client
from gateway.store.embedded import ask
from gateway.store.money.scripts import Settlement
from gateway.testing import Running, running, services
from tests.disk import Disk, small_disk
from tests.patience import PATIENCE_S, wait_until
from tests.store.conftest import ACCOUNT, balance_and_held, new_request_id, overdue, take
from tests.store.test_embedded import LOADED_SLOWLY
from tests.whole.conftest import CHAIN, configuration
from tests.whole.raw import ask as sampler_ask
from tests.whole.raw import chat, get, read_answer


# Children are started, started again and stopped. They are real processes that append lines to a file.
@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    """A supervisor whose children are killed at the end; then the signal handlers are as before."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
    before = [signal.getsignal(number) for number in numbers]
    supervisor = Supervisor()
    yield supervisor
    supervisor.stop(timeout_s=0)
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A file to which children append lines."""
    path = tmp_path / "trace"
    path.touch()
    return path


def append(trace: Path, line: object) -> None:
    with trace.open("a") as file:
        file.write(f"{line}\n")


def waiting(trace: Path, line: str, before_line: Callable[[], None] = lambda: None) -> Work:
    """Return a child's work that is ready at once; on SIGTERM it calls `before_line` and then appends `line`."""

    def work(ready: Ready) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        ready()
        signal.sigwait([signal.SIGTERM])
        before_line()
        append(trace, line)

    return work


def failing(error: Exception) -> Work:
    def work(ready: Ready) -> None:
        raise error

    return work


def test_the_reason_why_a_child_cannot_start_is_raised_in_the_parent(supervisor: Supervisor) -> None:
    with pytest.raises(Misconfigured, match=r"^gateway.yaml:3: x: no such y$"):
        supervisor.add("child", failing(Misconfigured("gateway.yaml:3: x: no such y")))
    with pytest.raises(GatewayError, match=r"^away$") as away:
        supervisor.add("child", failing(GatewayError("away")))
    assert not isinstance(away.value, Misconfigured)


def test_a_bug_in_a_child_is_logged_and_named(supervisor: Supervisor, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(GatewayError, match=r"^the worker 2 did not start; its reason is above$"):
        supervisor.add("worker", failing(RuntimeError("a bug")), 2)
    logged = capfd.readouterr().err
    assert "a bug" in logged
    assert "worker 2" in logged


def test_a_signal_before_the_watch_begins_ends_it_at_once(supervisor: Supervisor, trace: Path) -> None:
    supervisor.add("child", waiting(trace, "ended"))
    supervisor.handle_signals()
    os.kill(os.getpid(), signal.SIGTERM)
    supervisor.watch(lambda: pytest.fail("it watches"))
    supervisor.stop(timeout_s=PATIENCE_S)
    assert trace.read_text() == "ended\n"


def test_the_last_kind_stops_first_and_those_of_one_kind_at_the_same_time(supervisor: Supervisor, trace: Path) -> None:
    def until_all_got_sigterm() -> None:
        append(trace, "sigterm")
        while trace.read_text().count("sigterm") < 3:
            time.sleep(0.01)

    supervisor.add("sink", waiting(trace, "sink"))
    for number in (1, 2, 3):
        supervisor.add("worker", waiting(trace, "worker", until_all_got_sigterm), number)
    supervisor.stop(timeout_s=PATIENCE_S)
    assert trace.read_text().split() == [*["sigterm"] * 3, *["worker"] * 3, "sink"]


def test_what_does_not_end_in_time_is_killed(supervisor: Supervisor, trace: Path) -> None:
    supervisor.add("child", waiting(trace, "ended", lambda: time.sleep(PATIENCE_S)))
    supervisor.stop(timeout_s=0.2)
    assert trace.read_text() == ""


def test_every_worker_has_a_listening_socket_of_its_own_on_one_port() -> None:
    sockets = open_listeners("127.0.0.1:0", 3)
    assert len({listener.getsockname() for listener in sockets}) == 1
    assert len({listener.fileno() for listener in sockets}) == 3
    with socket.create_connection(sockets[0].getsockname()):
        pass
    for listener in sockets:
        listener.close()


def test_a_port_of_another_gateway_is_refused_although_its_sockets_allow_sharing() -> None:
    (first,) = open_listeners("127.0.0.1:0", 1)
    address = f"127.0.0.1:{first.getsockname()[1]}"
    with pytest.raises(Misconfigured) as refused:
        open_listeners(address, 1)
    assert str(refused.value) == (
        f"cannot listen on {address}: another program listens there; stop it or change `listen:`"
    )
    first.close()


def test_an_address_that_is_not_of_this_machine_is_refused() -> None:
    with pytest.raises(Misconfigured, match=r"^cannot listen on 192\.0\.2\.1:8080: .*; stop it or change `listen:`$"):
        open_listeners("192.0.2.1:8080", 1)


def test_ctrl_c_while_it_stops_cuts_and_sigterm_does_not(supervisor: Supervisor) -> None:
    supervisor.handle_signals()
    for number, cut in ((signal.SIGINT, False), (signal.SIGTERM, False), (signal.SIGINT, True), (signal.SIGTERM, True)):
        signal.raise_signal(number)
        assert supervisor.cut == cut


def test_what_waits_for_a_child_is_called_until_it_has_ended(supervisor: Supervisor, trace: Path) -> None:
    supervisor.add("child", waiting(trace, "ended", lambda: time.sleep(0.2)))
    calls: list[str] = []
    supervisor.stop(timeout_s=PATIENCE_S, on_wait=lambda: calls.append(trace.read_text()))
    assert calls
    assert trace.read_text() == "ended\n"


# A process runs until SIGTERM, or until what it runs returns or fails.
@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    """Restore the handler of SIGTERM after each test."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("new_loop", [None, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_task_or_a_callback_that_exits_ends_nothing_else(
    new_loop: Callable[[], asyncio.AbstractEventLoop] | None,
) -> None:
    ended = []

    async def leave() -> None:
        await asyncio.sleep(0)
        sys.exit(3)

    async def work(number: int) -> None:
        for _ in range(5):
            await asyncio.sleep(0.001)
        ended.append(number)

    async def serve(stop: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        leaving = [loop.create_task(leave()) for _ in range(3)]
        working = [loop.create_task(work(number)) for number in range(10)]
        loop.call_soon(sys.exit, 3)
        loop.call_later(0.002, sys.exit, 3)
        await asyncio.wait(working)
        assert all(isinstance(task.exception(), SystemExit) for task in leaving)
        await asyncio.to_thread(ended.sort)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(stop.wait(), PATIENCE_S)
        await work(10)

    with capture_logs() as lines:
        run_until_terminated(serve, new_loop)
    assert ended == list(range(11)), "what follows SIGTERM still runs"
    assert {line["event"] for line in lines} == {"task_exited"}


def test_what_is_served_may_exit_itself() -> None:
    async def serve(stop: asyncio.Event) -> None:
        sys.exit(3)

    with pytest.raises(SystemExit):
        run_until_terminated(serve)


FREED = """
import asyncio, sys
from gateway.runtime import process

MIB = 1024 * 1024

def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 // MIB

async def serve(stop):
    bytearray(8 * MIB)  # by itself, glibc takes no mapping for so much any more once it was freed
    before = resident()
    kept = []
    for _ in range(16):
        large = bytearray(8 * MIB)
        kept.append([large, bytearray(100_000)])
    for pair in kept:
        pair[0] = None
    print(resident() - before)

process.run_until_terminated(serve)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_the_memory_of_large_bodies_is_given_back_at_once() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    command = [sys.executable, "-c", FREED]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert int(run.stdout) < 16


# A worker without uvloop: what fails in it is shown without the import that failed before.
def test_an_error_without_uvloop_has_nothing_about_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(_: object) -> None:
        raise RuntimeError("a plugin's bug")

    monkeypatch.setitem(sys.modules, "uvloop", None)
    with pytest.raises(RuntimeError, match="a plugin's bug") as raised:
        run_until_terminated(fails, worker.new_loop())
    assert (raised.value.__context__, raised.value.__cause__) == (None, None)


# A background task has ended after the exit of its context, also one that swallows cancellations or fails.
class Waits(BackgroundTask):
    """Waits for ever, and swallows the first `swallows` cancellations."""

    def __init__(self, swallows: int = 0) -> None:
        self.swallows = swallows
        self.ended = False

    async def _run(self) -> None:
        try:
            for _ in range(self.swallows):
                with suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()
            await asyncio.Event().wait()
        finally:
            self.ended = True


class Fails(BackgroundTask):
    """Raises at once."""

    async def _run(self) -> None:
        raise ValueError("broken")


@pytest.mark.parametrize("swallows", [0, 2])
async def test_it_has_ended_after_the_exit(swallows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "CANCEL_INTERVAL_S", 0.01)
    before = asyncio.all_tasks()
    async with asyncio.timeout(PATIENCE_S):
        async with Waits(swallows) as waits:
            await asyncio.sleep(0)
            assert not waits.ended
    assert waits.ended
    assert asyncio.all_tasks() == before


async def test_the_exit_raises_what_it_raised() -> None:
    with pytest.raises(ValueError, match="broken"):
        async with Fails():
            await asyncio.sleep(0)


# The embedded store of a running gateway is started again when it dies, and nothing waits for that.
@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[StoreKeeper]:
    keeper = StoreKeeper(tmp_path, print)
    yield keeper
    keeper.stop()


def kill(folder: Path) -> None:
    answer = ask(folder / "store.sock")
    assert answer is not None
    os.kill(answer.pid, signal.SIGKILL)


def ticked_until_it_serves(keeper: StoreKeeper, folder: Path) -> list[float]:
    """Return how long each tick took."""
    ticks: list[float] = []
    deadline = time.monotonic() + PATIENCE_S
    while (answer := ask(folder / "store.sock")) is None or answer.loading:
        assert time.monotonic() < deadline
        began = time.monotonic()
        keeper.tick()
        ticks.append(time.monotonic() - began)
        time.sleep(0.02)
    return ticks


def test_a_store_that_loads_slowly_holds_up_no_tick(
    keeper: StoreKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Redis.from_url(keeper.url) as redis, redis.pipeline(transaction=False) as pipeline:
        for number in range(500):
            pipeline.set(f"key {number}", "x" * 100)
        pipeline.execute()
        redis.bgrewriteaof()
        while redis.info("persistence")["aof_rewrite_in_progress"]:
            time.sleep(0.01)
    monkeypatch.setattr(embedded, "SETTINGS", (*embedded.SETTINGS, *LOADED_SLOWLY))
    monkeypatch.setattr(store_keeper, "REPORT_INTERVAL_S", 0.2)
    kill(tmp_path)
    ticks = ticked_until_it_serves(keeper, tmp_path)
    assert len(ticks) > 3, "a tick that waited for the load would be the only one"
    keeper.tick()
    with Redis.from_url(keeper.url) as redis:
        assert redis.get("key 499") == b"x" * 100
    assert "the store is loading" in capsys.readouterr().out


def test_a_store_that_cannot_start_is_started_once_its_files_are_restored(
    keeper: StoreKeeper, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kill(tmp_path)
    shutil.move(tmp_path / "appendonlydir", tmp_path / "aside")
    deadline, printed = time.monotonic() + PATIENCE_S, ""
    while "store_did_not_start" not in (printed := printed + capsys.readouterr().out):
        assert time.monotonic() < deadline
        keeper.tick()
        time.sleep(0.02)
    assert "appendonlydir is missing" in printed
    shutil.move(tmp_path / "aside", tmp_path / "appendonlydir")
    ticked_until_it_serves(keeper, tmp_path)


def written_until_full(redis: Redis, disk: Disk) -> None:
    """Rewrite the file, fill the disk, and write until the store refuses."""
    redis.bgrewriteaof()
    while redis.info("persistence")["aof_rewrite_in_progress"]:
        time.sleep(0.01)
    redis.set("first", "x" * 100)  # the page that it begins has room for a part of a later command
    disk.fill()
    with pytest.raises(ResponseError, match="MISCONF"):
        for number in range(1_000_000):
            redis.set(f"key {number}", "x" * 1000)


@pytest.mark.parametrize("looked", [False, True])
def test_no_command_is_lost_where_the_disk_was_full(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], looked: bool
) -> None:
    with small_disk(tmp_path / "disk", 8) as disk:
        keeper = StoreKeeper(disk.folder / "data", print)
        with Redis.from_url(keeper.url) as redis:
            written_until_full(redis, disk)
            kept = redis.dbsize()
            if looked:
                keeper.tick()
            disk.free()
            while (answer := ask(disk.folder / "data/store.sock")) is None or answer.full:
                time.sleep(0.05)
            if looked:
                time.sleep(store_keeper.LOOK_S)
                keeper.tick()
                while redis.info("persistence")["aof_rewrite_in_progress"]:
                    time.sleep(0.01)
            redis.set("last", "z")
            redis.execute_command("WAITAOF", 1, 0, 0)
            kill(disk.folder / "data")
            ticked_until_it_serves(keeper, disk.folder / "data")
            assert (redis.dbsize(), redis.get("last")) == (kept + 1, b"z")
        keeper.stop()
    logged = capsys.readouterr().out
    assert ("store_file_mended" in logged, "store_file_rewritten" in logged) == (not looked, looked)


# Journals are delivered, recent writes repeated, holds swept; a failure of one job does not stop the others.
@pytest.fixture
async def store(store_url: str, client: Client, tmp_path: Path) -> AsyncIterator[Store]:
    async with services(tmp_path, store_url) as opened:
        await opened.store.accounts.create(ACCOUNT)
        await opened.store.wallet.credit(ACCOUNT, "opening", 100)
        yield opened.store


async def expired_holds(store: Store, client: Client, count: int = 1) -> list[str]:
    """Take holds, let their leases expire, and return their request ids."""
    request_ids = [new_request_id() for _ in range(count)]
    for request_id in request_ids:
        await take(store.wallet, request_id)
    for request_id in request_ids:
        await overdue(client, request_id)
    return request_ids


async def test_expired_holds_are_ended_and_logged(store: Store, client: Client) -> None:
    request_ids = await expired_holds(store, client, 3)
    with structlog.testing.capture_logs() as logs:
        await Maintenance(store).run_once()
    assert await balance_and_held(client) == (100, 0)
    (line,) = [entry for entry in logs if entry["event"] == "holds_expired"]
    assert (line["account"], sorted(line["requests"])) == (ACCOUNT, sorted(request_ids))


async def test_an_account_that_cannot_be_read_stops_no_other(store: Store, client: Client) -> None:
    await expired_holds(store, client)
    for name, numbers in (("aaa", "0 9 1 1"), ("zzz", "0 9 1 1"), ("bbb", "odd")):
        await store.accounts.create(name)
        await client.call("HSET", f"gw:{{{name}}}:wallet", "numbers", numbers)
        await client.call("ZADD", f"gw:{{{name}}}:leases", 1, new_request_id())
    with structlog.testing.capture_logs() as logs:
        await Maintenance(store).run_once()
    assert await balance_and_held(client) == (100, 0)
    named = [(each["event"], each["account"]) for each in logs if each["log_level"] == "error"]
    assert sorted(named) == [("account_not_swept", "aaa"), ("account_not_swept", "zzz"), ("account_unreadable", "bbb")]


async def test_of_all_workers_one_sweeps_within_the_interval(store: Store, client: Client) -> None:
    await Maintenance(store).run_once()
    await expired_holds(store, client)
    await Maintenance(store).run_once()
    assert await balance_and_held(client) == (100, 10)
    await client.call("DEL", SWEEP_LOCK)
    await Maintenance(store).run_once()
    assert await balance_and_held(client) == (100, 0)


async def test_a_settlement_that_the_store_refuses_does_not_stop_the_others(store: Store, client: Client) -> None:
    store.journal.append(Settlement(ACCOUNT, "not-a-uuid", 7))
    store.journal.append(Settlement(ACCOUNT, new_request_id(), 7))
    await expired_holds(store, client)
    with structlog.testing.capture_logs() as logs:
        await Maintenance(store).run_once()
    assert await balance_and_held(client) == (93, 0)
    (line,) = [entry for entry in logs if entry["event"] == "care_waits"]
    assert (line["work"], "not a UUIDv7" in line["reason"]) == ("deliver", True)


async def test_it_repeats_until_its_exit(store: Store, client: Client) -> None:
    store.journal.append(Settlement(ACCOUNT, new_request_id(), 7))
    async with Maintenance(store), asyncio.timeout(PATIENCE_S):
        while await balance_and_held(client) != (93, 0):
            await asyncio.sleep(0.01)
    of_connections = {task for task in asyncio.all_tasks() if task.get_name() == "gateway: connection to the store"}
    assert asyncio.all_tasks() - of_connections == {asyncio.current_task()}


# A worker's events reach the store soon, also those of its last moments, and after the store was away.
SETTINGS = AlertSettings("http://127.0.0.1:9/", low_balance=Decimal(5))


async def pending(client: Client, number: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while len(await Outbox(client).pending(1000)) != number:
            await asyncio.sleep(0.01)


async def test_what_is_noted_is_written_and_the_last_events_when_the_worker_stops(client: Client) -> None:
    alerts = Alerts(client, Channels(client), SETTINGS)
    async with AlertWriter(alerts):
        for number in range(200):
            alerts.balance(f"account{number}", 1)
        await pending(client, 200)
        for number in range(200):
            alerts.balance(f"more{number}", 1)
    assert len(await Outbox(client).pending(1000)) == 400


async def test_a_store_that_is_away_is_logged_once_and_nothing_is_lost(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    away = Client.connect("unix:///nowhere/store.sock", timeout_s=0.05)
    alerts = Alerts(away, Channels(away), SETTINGS)
    writer = AlertWriter(alerts)
    alerts.balance("alice", 1)
    with capture_logs() as lines:
        for _ in range(5):
            await writer.run_once()
    assert [line["event"] for line in lines] == ["alerts_not_written"]
    alerts._outbox, alerts._accounts = Outbox(client), Accounts(client)
    await writer.run_once()
    assert len(await Outbox(client).pending(9)) == 1
    await away.close()


# A worker measures the lag of its event loop, open requests and streams, and waiting usage records.
def numbers(gateway: Running, name: str) -> list[float]:
    """Return the values of the only series of this name."""
    return dict(gateway.gateway.runner.metrics.shared)[(name,)]


async def test_an_open_stream_is_counted_while_it_runs(store_url: str, client: Client, tmp_path: Path) -> None:
    async with (
        FakeUpstream(pace_s=0.05, key="channel-credential-4711") as upstream,
        running(configuration(upstream.base_url), tmp_path, store_url) as gateway,
    ):
        sampling = Sampler(gateway.gateway)
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(chat(await gateway.token()))
        while not gateway.gateway.runner.failover.relays:
            await asyncio.sleep(0.01)
        sampling.sample()
        assert (numbers(gateway, "open_requests"), numbers(gateway, "open_streams")) == ([1.0], [1.0])
        assert (await read_answer(reader)).whole
        writer.close()
        await gateway.gateway.runner.wait_ended()
        sampling.sample()
        assert (numbers(gateway, "open_requests"), numbers(gateway, "open_streams")) == ([0.0], [0.0])
        assert numbers(gateway, "config_generation") == [1.0]
        await sampling.sample_usage_log()
        assert numbers(gateway, "usage_log_waiting") == [2.0], "an arrival and an end: no sink drains them here"


async def test_the_lag_of_a_blocked_event_loop_is_measured(
    store_url: str, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "SAMPLE_S", 0.01)
    async with (
        running(configuration("http://127.0.0.1:1/v1"), tmp_path, store_url) as gateway,
        Sampler(gateway.gateway),
    ):
        while not sum(numbers(gateway, "loop_lag_seconds")):
            await asyncio.sleep(0.01)
        before = numbers(gateway, "loop_lag_seconds")[-1]
        time.sleep(0.2)  # noqa: ASYNC251 - this is what a plugin must not do
        while numbers(gateway, "loop_lag_seconds")[-1] < before + 0.15:
            await asyncio.sleep(0.01)


async def test_a_failed_measurement_is_logged_and_the_task_goes_on(
    store_url: str, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "SAMPLE_S", 0.01)
    async with running(configuration("http://127.0.0.1:1/v1"), tmp_path, store_url) as gateway:
        spool = gateway.store.usage.spool
        monkeypatch.setattr(spool, "folder", None)
        with capture_logs() as lines:
            async with Sampler(gateway.gateway):
                while not sum(numbers(gateway, "loop_lag_seconds")):
                    await asyncio.sleep(0.01)
        assert "pulse_failed" in [line["event"] for line in lines]


class Hanging(Plugin):
    """Does not end an exchange until the test allows it."""

    async def start(self, services: Services) -> None:
        self.allowed = asyncio.Event()

    async def on_end(self, exchange: Exchange) -> None:
        await self.allowed.wait()


async def test_an_end_hook_that_hangs_is_logged_once_and_not_cancelled(
    store_url: str, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "HANGS_AFTER_S", 0.05)
    chain = CHAIN + "  - use: tests.runtime.test_supervisor:Hanging\n    name: slow\n"
    async with running(configuration("http://127.0.0.1:1/v1", chain=chain), tmp_path, store_url) as gateway:
        asking = asyncio.create_task(sampler_ask(gateway.port, get("/v1/models", await gateway.token())))
        runner = gateway.gateway.runner
        await wait_until(lambda: runner.hanging(0.05) != [])
        sampling = Sampler(gateway.gateway)
        with capture_logs() as lines:
            sampling.report_hanging()
            sampling.report_hanging()
        ((request_id, _),) = runner.hanging(0)
        (line,) = lines
        assert (line["event"], line["plugin"], line["hook"]) == ("plugin_hangs", "slow", "on_end")
        assert line["request_id"] == request_id
        assert runner.hanging(60) == []
        (plugin,) = (entry.plugin for entry in gateway.gateway.chain.entries if isinstance(entry.plugin, Hanging))
        plugin.allowed.set()
        assert (await asking).headers["x-request-id"] == request_id
        await wait_until(lambda: runner.hanging(0) == [])
