"""A port that the operator's process serves: how it listens, and how many connections it takes."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final, Protocol, cast

from aiohttp import web

from gateway.admin.connection import Connection
from gateway.config.schema import Port, host_port
from gateway.errors import cannot_listen
from gateway.log import Logger
from gateway.server.connections import Connections, Slot, default_max_connections
from gateway.server.listener import Listener
from gateway.server.turns import AddressTurns

RETRY_INTERVAL_S: Final = 10.0
SHUTDOWN_TIMEOUT_S: Final = 0.5
MOST_CONNECTIONS: Final = 1000
REQUEST_S: Final = 0.002
"""What it costs to answer a request, in the order of magnitude."""

log = Logger("gateway.admin.port")


class Site(Protocol):
    """What is served on a port."""

    def application(self) -> web.Application:
        """Return a new application."""


async def run(site: Site, address: str, stop: asyncio.Event, name: str = "admin") -> None:
    """Serve `site` on `address` until `stop` is set; while another program listens there, try again.

    `name`: of the setting with the address, for the log.
    """
    reported = False
    while not stop.is_set():
        try:
            async with serving(site, address):
                log.info(f"{name}_port_served", address=address)
                await stop.wait()
        except OSError as error:
            if not reported:
                reason = cannot_listen(address, error)
                log.error(f"{name}_port_not_served", reason=reason, cure=f"stop it or change `{name}:`")
            reported = True
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), RETRY_INTERVAL_S)


@asynccontextmanager
async def serving(site: Site, address: str) -> AsyncIterator[int]:
    """Serve `site` on `address` and yield the port's number. Raises `OSError` when the address is taken."""
    host, number = host_port(address)
    bound = socket.create_server((host, number), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    runner = web.AppRunner(site.application(), shutdown_timeout=SHUTDOWN_TIMEOUT_S, handler_cancellation=True)
    listener = None
    try:
        await runner.setup()
        listener = _listener(bound, cast("web.Server", runner.server))
        yield bound.getsockname()[1]
    finally:
        (listener.stop if listener is not None else bound.close)()
        await runner.cleanup()


def _listener(bound: socket.socket, server: web.Server) -> Listener:
    """Return what accepts connections of a server, so many that there are never too many for this process."""
    connections = Connections(Port(max_connections=min(MOST_CONNECTIONS, default_max_connections())))
    loop, handler, turns = asyncio.get_running_loop(), server.request_handler, AddressTurns()

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        address = cast("Connection", request.protocol).begin()
        await _turn(turns, f"request {address}")
        return await handler(request)

    def protocol(slot: Slot) -> Connection:
        return Connection(server, connections=connections, slot=slot, loop=loop, access_log=None)

    server.request_handler = handle
    return Listener(bound, connections, protocol, turns)


async def _turn(turns: AddressTurns, key: str) -> None:
    """Wait until an address may begin a request: one that begins many does not delay the others."""
    if not turns.admit(key):
        turn, left = asyncio.Event(), False

        def begin() -> None:
            if not left:  # else it costs nothing, so that who leaves again and again makes no queue
                turn.set()
                turns.expect(REQUEST_S)

        turns.wait(begin, key)
        try:
            await turn.wait()
        finally:
            left = not turn.is_set()
    turns.spend(key, time.thread_time(), REQUEST_S)
