"""A port that the operator's process serves: how it listens, and how many connections it takes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final, Protocol

from aiohttp import web

from gateway.admin.connection import Connection
from gateway.config.schema import Port, host_port
from gateway.errors import cannot_listen
from gateway.log import Logger
from gateway.server.connections import Connections, default_max_connections

RETRY_INTERVAL_S: Final = 10.0
SHUTDOWN_TIMEOUT_S: Final = 0.5
MOST_CONNECTIONS: Final = 1000
BACKLOG: Final = 4096
"""Connections that may wait in the kernel's queue."""

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
    runner = _Runner(
        site.application(), access_log=None, shutdown_timeout=SHUTDOWN_TIMEOUT_S, handler_cancellation=True
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, *host_port(address), backlog=BACKLOG).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


class _Server(web.Server):
    """aiohttp's server, with connections of our own."""

    def limit(self) -> None:
        """Count the connections, so that there are never too many for this process."""
        most = min(MOST_CONNECTIONS, default_max_connections())
        self._room = Connections(Port(max_connections=most))
        self.request_handler = _counted(self.request_handler)

    def __call__(self) -> Connection:
        return Connection(self, loop=self._loop, connections=self._room, **self._kwargs)


class _Runner(web.AppRunner):
    async def _make_server(self) -> web.Server:
        server = await super()._make_server()
        server.__class__ = _Server
        server.limit()  # type: ignore[attr-defined]
        return server


Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


def _counted(handler: Handler) -> Handler:
    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        protocol = request.protocol
        if isinstance(protocol, Connection):
            protocol.begin()
        return await handler(request)

    return handle
