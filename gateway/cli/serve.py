"""`gateway serve`: prepare, start the processes, say what to paste, watch, stop."""

from __future__ import annotations

import asyncio
import shlex
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Annotated

import msgspec
import structlog
import typer

from gateway import loading
from gateway.admin import app
from gateway.chain import warnings
from gateway.cli.common import ConfigOption, data_folder
from gateway.config.schema import Config, Demo, find, load
from gateway.errors import StoreAway
from gateway.metrics.exporter import Exporter
from gateway.metrics.registry import Metrics
from gateway.metrics.shared import SharedNumbers
from gateway.runtime import demo, logs, supervisor, systemd, worker
from gateway.runtime.reload import Current
from gateway.services import Store
from gateway.store.client.client import Client
from gateway.store.client.durability import check_store
from gateway.store.client.embedded import EmbeddedStore
from gateway.tools.exposure import exposure_of
from gateway.usage import clickhouse, sink

SINK_STOP_S = 15.0

log = structlog.get_logger("gateway.serve")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(serve)


def serve(
    config: ConfigOption = None,
    workers: Annotated[
        int | None, typer.Option(min=1, max=256, help="Processes on the port; else `workers:` of the file.")
    ] = None,
) -> None:
    """Run the gateway until SIGTERM or Ctrl-C.

    Example: `gateway serve --config config/demo.yaml`
    """
    began = time.monotonic()
    logs.configure()
    loaded = load(find(config))
    settings = loaded.config
    chain = loading.build(loaded)
    for warning in warnings(chain.steps):
        typer.echo(f"warning: {warning}", err=True)
    if (bound := exposure_of(settings, chain)) is not None:
        typer.echo(str(bound))
    folder = data_folder(settings)
    count = workers or settings.workers
    listeners = systemd.inherited(count) or supervisor.listeners(settings.listen, count)
    shared = {name: SharedNumbers() for name in ("parent", *(f"worker {number}" for number in range(1, count + 1)))}
    metrics = Metrics(shared["parent"])
    service = systemd.ServiceManager()
    embedded = EmbeddedStore.start(folder, adopt=False) if settings.redis == "embedded" else None
    url = embedded.url if embedded else settings.redis
    processes = supervisor.Supervisor(lambda kind: metrics.count("children_died", kind))
    current = Current(loaded, metrics)

    def look_after() -> None:
        nonlocal embedded
        service.alive()
        if embedded is not None and embedded.ended:
            log.error("store_died", restarted=True)
            embedded = EmbeddedStore.start(folder, adopt=False)
        if current.renewed():
            processes.signal("worker", signal.SIGHUP)

    try:
        token = asyncio.run(_prepare(settings, url))
        if settings.demo is not None:
            processes.add("demo upstream", demo.upstream(settings.demo))
        if settings.admin is not None:
            processes.add("admin", _administer(settings, settings.admin, Exporter(shared)))
        if settings.usage.clickhouse:
            processes.add("clickhouse", _copy(settings))
        processes.add("sink", _drain_usage(settings, url))
        for index in range(len(listeners)):
            processes.add("worker", _work(current, url, listeners, index, shared[f"worker {index + 1}"]), index + 1)
        processes.heed()
        names = ", ".join(step.name for step in chain.steps)
        typer.echo(
            f"{_address(settings, listeners[0])} is served after {time.monotonic() - began:.2f} s, through {names}"
        )
        if settings.demo is not None and token is not None:
            typer.echo(_welcome(settings, settings.demo, _address(settings, listeners[0]), token, loaded.document.path))
        service.ready()
        processes.watch(look_after)
    finally:
        service.stopping()
        processes.stop(timeout_s=settings.port.drain + SINK_STOP_S)
        if embedded is not None:
            embedded.stop()


async def _prepare(config: Config, url: str) -> str | None:
    """Wait for the store, check that it is fit to keep money, and make the demo's account. Returns the demo's token."""
    deadline = time.monotonic() + config.store.connect_for
    while True:
        client = Client.connect(url, timeout_s=config.store.timeout)
        try:
            notes = await check_store(client, accept_loss=config.store.accept_loss)
            break
        except StoreAway:
            if time.monotonic() > deadline:
                raise StoreAway(
                    f"the store did not answer within {config.store.connect_for:g} s: is it running, and is `redis:` right?"
                ) from None
            typer.echo("waiting for the store ...", err=True)
            await asyncio.sleep(min(1.0, max(0.05, deadline - time.monotonic())))
        finally:
            await client.close()
    for note in notes:
        typer.echo(f"warning: {note}", err=True)
    if config.demo is None:
        return None
    async with Store.open(config, url) as store:
        return await demo.token_of(store, config, config.demo)


def _drain_usage(config: Config, url: str) -> supervisor.Work:
    def work(ready: supervisor.Ready) -> None:
        ready()
        sink.main(config, url)

    return work


def _administer(config: Config, address: str, exporter: Exporter) -> supervisor.Work:
    def work(ready: supervisor.Ready) -> None:
        ready()
        app.main(config, address, exporter)

    return work


def _copy(config: Config) -> supervisor.Work:
    def work(ready: supervisor.Ready) -> None:
        ready()
        clickhouse.main(config)

    return work


def _work(
    current: Current, url: str, listeners: list[socket.socket], index: int, shared: SharedNumbers
) -> supervisor.Work:
    def work(ready: supervisor.Ready) -> None:
        for other in listeners[:index] + listeners[index + 1 :]:
            other.close()
        worker.run(current.loaded, url, listeners[index], ready, current.generation, shared)

    return work


def _address(config: Config, listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    scheme = "https" if config.tls else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}/v1"


def _welcome(config: Config, shown: Demo, base: str, token: str, path: Path) -> str:
    program = sys.argv[0] if sys.argv[0].endswith("gateway") else "gateway"
    message = {"role": "user", "content": "Tell me a story"}
    body = msgspec.json.encode({"model": next(iter(config.models)), "stream": True, "messages": [message]}).decode()
    return "\n".join(
        [
            "",
            f"  base address  {base}",
            f"  token         {token}",
            "",
            "Paste this into another terminal:",
            "",
            f"  curl -N {base}/chat/completions \\",
            f"    -H 'Authorization: Bearer {token}' -H 'Content-Type: application/json' \\",
            f"    -d {shlex.quote(body)}",
            "",
            f"Then look at what was charged: {program} account show {shown.account} --config {shlex.quote(str(path))}",
            "Stop with Ctrl-C; balances are kept.",
        ]
    )
