"""The parent process of one gateway: check the configuration, start the other processes, watch them, stop them.

The embedded store is started on the main thread, which is the thread that the store ends with. A gateway claims its data folder,
so that a second one is refused at once and says who is there. A sink that takes no turn is logged, and in the end killed, so that
the supervisor starts another one. Errors of the store that a retry will not mend are errors of the file.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import typer

from gateway.base import compiled
from gateway.base.errors import GatewayError, StoreAway, cannot_use
from gateway.base.log import log
from gateway.chain import loading
from gateway.chain.services import Store
from gateway.config.document import find
from gateway.config.schema import Config, Loaded, digests, load
from gateway.metrics.registry import Metrics
from gateway.metrics.shared import SharedNumbers
from gateway.runtime import logs, systemd, worker
from gateway.runtime.active_config import ActiveConfig, ConfigTest
from gateway.runtime.data_folder import data_folder, remove_leftovers
from gateway.runtime.handover import Handover
from gateway.runtime.process import CUT, run_until_terminated
from gateway.runtime.reload import following
from gateway.runtime.store_keeper import StoreKeeper
from gateway.runtime.supervisor import Ready, Supervisor, Work, open_listeners
from gateway.serve import admin_port, alert_sender, demo, terminal
from gateway.server.tls import certificate_of
from gateway.store import layout, pepper
from gateway.store.client.client import Client
from gateway.store.client.durability import check_store, refuse_database
from gateway.usage import clickhouse, completeness, database, sink
from gateway.usage.database import UnusableFile
from gateway.usage.gateways import Membership
from gateway.usage.home import home_of
from gateway.usage.stream import installation_of, short

SINK_STOP_S: Final = 20.0
"""Time that a stop allows for after the drain of the port: for plugins that hang, and for the sink to write the last records."""

NAME: Final = "gateway.lock"

HANGS_S: Final = 60.0
"""No turn takes as long, unless the sink is stopped or the disk does not answer."""
KILL_S: Final = 300.0
LONGEST_TICK_S: Final = 1.0
"""More is not counted: the machine, or this process too, was stopped meanwhile."""


def serve(path: Path | None, workers: int | None = None) -> None:
    """Run a gateway until SIGTERM or SIGINT.

    `path` is the configuration file; None means the one that `gateway.config.document.find` finds. `workers` replaces
    the setting of that name. Raises `GatewayError` when the gateway cannot start.
    """
    began = time.monotonic()
    logs.configure()
    loaded = load(find(path))
    with instance_lock(data_folder(loaded.config)):
        loaded = demo.with_free_ports(loaded)
        with ConfigTest(loaded) as test:
            report = test.wait()
        loading.import_plugins(loaded)
        for warning in report.warnings:
            typer.echo(f"warning: {warning}", err=True)
        if report.exposure is not None and (below := report.exposure.warning):
            typer.echo(f"warning: {below}", err=True)
        ParentProcess(loaded, workers or loaded.config.workers).run(report.plugins, began)


class ParentProcess:
    """The listening sockets, the embedded store and the children of one gateway.

    The workers, the operator's port, the portal and the sender of alerts follow a reload: the other children keep the
    configuration that the gateway was started with.
    """

    def __init__(self, loaded: Loaded, workers: int) -> None:
        """Open the sockets and start the embedded store. Raises `Misconfigured`."""
        self._config = config = loaded.config
        self._folder = config.data_path
        self._certificate = certificate_of(config.tls)
        self._listeners = systemd.inherited_listeners(workers) or open_listeners(config.listen, workers)
        names = ("parent", "admin", "alerts", *(f"worker {number}" for number in range(1, workers + 1)))
        self._numbers = {name: SharedNumbers() for name in names}
        self._metrics = metrics = Metrics(self._numbers["parent"])
        self._service_manager = systemd.ServiceManager()
        remove_leftovers(self._folder)
        self._embedded = StoreKeeper(self._folder, self._report_start) if config.redis == "embedded" else None
        self._store_url = self._embedded.url if self._embedded else config.redis
        self._supervisor = Supervisor(on_death=self._on_death)
        self._sink_watch = SinkWatch(self._folder / "usage", lambda: self._supervisor.signal("sink", signal.SIGKILL))
        self._handover = Handover(workers)
        served_by = [numbers for name, numbers in self._numbers.items() if name.startswith("worker ")]
        self._farewell = terminal.Farewell(served_by, config.port.drain) if logs.on_terminal() else None
        self._active = ActiveConfig(loaded, metrics, self._handover, self._store_url)

    def run(self, plugins: Sequence[str], began: float) -> None:
        """Start all children, run until SIGTERM or SIGINT, and stop them.

        `plugins`: their names in the chain. `began`: the monotonic time of the start.
        """
        try:
            opened = asyncio.run(_prepare(self._active.loaded, self._store_url, self._report_start))
            self._start_children()
            self._supervisor.handle_signals()
            log.info("event_path", compiled=not compiled.WHY_PURE, reason=compiled.WHY_PURE)
            self._welcome(plugins, time.monotonic() - began, opened)
            self._service_manager.ready()
            self._supervisor.watch(self._tick)
            log.info("stopping", drain_s=self._config.port.drain)
        finally:
            self._service_manager.stopping()
            self._supervisor.stop(timeout_s=self._config.port.drain + SINK_STOP_S, on_wait=self._on_wait)
            if self._embedded is not None:
                self._embedded.stop()
            self._supervisor.ignore_signals()
        log.info("stopped")
        if self._farewell is not None:
            self._farewell.end(self._config.data_path)

    def _start_children(self) -> None:
        """Start each child and wait until it is ready. They stop in the opposite order."""
        config, url = self._config, self._store_url
        if config.demo is not None:
            self._supervisor.add("demo upstream", demo.upstream(config.demo))
        if config.admin is not None:
            serve = partial(admin_port.run, self._active, self._handover, url, self._numbers)
            self._supervisor.add("admin", _background(serve))
        if config.portal is not None:
            serve = partial(admin_port.run_portal, self._active, self._handover, url)
            self._supervisor.add("portal", _background(serve))
        if config.usage.clickhouse:
            self._supervisor.add("clickhouse", _background(lambda stop: clickhouse.run(config, stop)))
        self._start_alerts()
        if logs.on_terminal():
            self._supervisor.add("request lines", terminal.work(home_of(config)))
        elif config.usage.log_requests:
            name = short(installation_of(self._folder / "usage"))
            self._supervisor.add("request lines", terminal.work(home_of(config), log_of=name))
        self._supervisor.add("sink", _background(self._sink))
        for index in range(len(self._listeners)):
            self._supervisor.add("worker", self._worker(index), index + 1)

    async def _sink(self, stop: asyncio.Event) -> None:
        """Run the sink, which tells other gateways what this one serves."""
        settings = digests(self._active.loaded.config)
        async with following(self._active.loaded, self._handover, lambda new, _: settings.update(digests(new.config))):
            await sink.run(self._config, self._store_url, stop, settings)

    def _start_alerts(self) -> None:
        """Start the child that sends alerts once the configuration has them. It goes on when a reload removes them."""

        def work(stop: asyncio.Event) -> Coroutine[Any, Any, None]:
            return alert_sender.run(self._active.loaded, self._handover, self._store_url, self._numbers["alerts"], stop)

        running = any(child.kind == "alerts" for child in self._supervisor.children)
        if self._active.loaded.config.alerts is not None and not running:
            self._supervisor.add("alerts", _background(work))

    def _worker(self, index: int) -> Work:
        def work(ready: Ready) -> None:
            for other in self._listeners[:index] + self._listeners[index + 1 :]:
                other.close()
            active, numbers = self._active, self._numbers[f"worker {index + 1}"]
            self._handover.answer(index, 0, False)
            own = self._handover, index, active.generation, numbers, self._certificate
            listener, url = self._listeners[index], self._store_url
            run_until_terminated(
                lambda stop: worker.serve(active.loaded, url, listener, ready, stop, *own), worker.new_loop()
            )

        return work

    def _welcome(self, plugins: Sequence[str], took_s: float, opened: demo.Opened | None) -> None:
        """Say what runs, where, and what to look at next."""
        config = self._config
        address = _base_url(config, self._listeners[0])
        typer.echo(f"{address} is served after {took_s:.2f} s, through {', '.join(plugins)}")
        if opened is not None:
            typer.echo(terminal.demo(config, opened, address, self._active.loaded.document.path))
        if logs.on_terminal():
            typer.echo(
                terminal.on_terminal(config, recorded=any(entry.use == "usage-logger" for entry in config.plugins))
            )
        if config.demo is not None or logs.on_terminal():
            typer.echo(terminal.LAST)

    def _on_wait(self) -> None:
        """Say what a stop waits for, and let a second Ctrl-C cut the open streams."""
        if self._supervisor.cut:
            self._supervisor.signal("worker", CUT)
        if self._farewell is not None:
            self._farewell.look(cut=self._supervisor.cut)

    def _report_start(self, progress: str) -> None:
        typer.echo(progress, err=True)
        self._service_manager.starting(progress)

    def _on_death(self, kind: str) -> None:
        self._metrics.count("children_died", kind)
        if kind == "worker":
            self._active.worker_died()

    def _tick(self) -> None:
        """Do what is due while the children run: the watchdog, the embedded store, the certificate, a reload."""
        self._service_manager.ping_watchdog()
        self._sink_watch.look()
        if self._embedded is not None:
            self._embedded.tick()
        if self._certificate is not None:
            self._certificate.renew(quiet=True)  # the workers log it
        if self._active.refresh():
            for kind in ("worker", "alerts", "admin", "portal", "sink"):
                self._supervisor.signal(kind, signal.SIGHUP)
            self._start_alerts()


async def _prepare(loaded: Loaded, url: str, report: Callable[[str], None]) -> demo.Opened | None:
    """Wait for the store, check it, its layout and the pepper, and create the demo's account.

    Raises `StoreAway` when the store does not answer within `store.connect_for`, and `Misconfigured` when it is not fit.
    """
    config = loaded.config
    deadline = time.monotonic() + config.store.connect_for
    while True:
        client = Client.connect(url, timeout_s=config.store.timeout)
        try:
            notes = await check_store(client, accept_loss=config.store.accept_loss)
            break
        except StoreAway as error:
            refuse_database(loaded.document, error)
            loads = "LOADING" in str(error)
            if time.monotonic() > deadline and not loads:
                raise StoreAway(
                    f"the store did not answer within {config.store.connect_for:g} s: is it running, and is `redis:` right?"
                ) from None
            report("waiting for the store, which loads its data ..." if loads else "waiting for the store ...")
            await asyncio.sleep(1.0 if loads else min(1.0, max(0.05, deadline - time.monotonic())))
        finally:
            await client.close()
    for note in notes:
        typer.echo(f"warning: {note}", err=True)
    async with Store.open(config, url) as store:
        await layout.ensure(store.client)
        database.check_files(config.data_path / "usage")
        await _claim_home(store, config.listen)
        await pepper.ensure(store.client, config.data_path)
        await store.tokens.check_pepper()
        return None if config.demo is None else await demo.opened(store, loaded, config.demo)


async def _claim_home(store: Store, listen: str) -> None:
    """Log to the same home as the other gateways of the store. Raises `GatewayError` where that is another one."""
    usage = store.usage
    try:
        membership = Membership(store.client, usage.home, usage.installation, listen=listen)
        await membership.say(usage.spool.count())
    except UnusableFile as error:  # the requests do not need it, and its sink asks again
        typer.echo(f"warning: {error}; records wait in the store until it answers", err=True)


def _background(run: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> Work:
    """Return the work of a child that nothing waits for: it is ready at once, and runs `run(stop)` until SIGTERM."""

    def work(ready: Ready) -> None:
        ready()
        run_until_terminated(run)

    return work


def _base_url(config: Config, listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    scheme = "https" if config.tls else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}/v1"


@contextlib.contextmanager
def instance_lock(folder: Path) -> Iterator[None]:
    """Have a lock of this process on the data folder. Its children do not inherit it, and it ends with the process.

    Raises `GatewayError` where a gateway has it, and `Misconfigured` where the file cannot be used. The file stays.
    """
    path = folder / NAME
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise cannot_use(f"data: cannot use {path}", error) from None
    try:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(file, 200).decode(errors="replace").strip()
            raise GatewayError(
                f"data: this very gateway already runs ({holder or 'just started'}) with {folder}: stop it, or give each its own "
                "`data:`"
            ) from None
        since = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S %z")
        with contextlib.suppress(OSError):  # a full disk
            os.ftruncate(file, 0)
            os.pwrite(file, f"pid {os.getpid()}, since {since}\n".encode(), 0)
        yield
    finally:
        os.close(file)


class SinkWatch:
    """Watches the sink of the usage log in `folder`. `kill` ends it."""

    def __init__(self, folder: Path, kill: Callable[[], None]) -> None:
        self._folder = folder
        self._kill = kill
        self._turn: float | None = None
        self._looked = time.monotonic()
        self._silent_s = 0.0
        self._reported = False

    def look(self) -> None:
        """Compare the sink's last turn with the one that was seen before. To be called a few times a second."""
        now = time.monotonic()
        self._silent_s += min(now - self._looked, LONGEST_TICK_S)
        self._looked = now
        turn = completeness.changed_ms(self._folder / completeness.LOCK)
        if turn != self._turn:
            if self._reported:
                log.warning("sink_goes_on")
            self._turn, self._silent_s, self._reported = turn, 0.0, False
        elif self._silent_s >= KILL_S:
            log.error("sink_killed", silent_s=round(self._silent_s))
            self._kill()
            self._silent_s, self._reported = 0.0, False
        elif self._silent_s >= HANGS_S and not self._reported:
            self._reported = True
            log.error("sink_hangs", silent_s=round(self._silent_s), killed_after_s=round(KILL_S))
