"""A port of the operator's process: how it listens, how many connections it takes, and how long each is kept.

1. A head arrives within `HEAD_S`, and a client that waits for an answer takes some of it within `STALLED_S`, or the connection is
   closed. An idle one is closed after `IDLE_S`.
2. There are at most as many as `Connections` has room for. Where one more needs room, another is closed on which no request of
   somebody known is being answered: first of those that never had one, the oldest.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, Protocol, cast

from aiohttp import web

from gateway.admin.http.responses import ID, complete, error_response
from gateway.base.errors import Refused, cannot_listen
from gateway.base.ids import new_id
from gateway.base.log import log
from gateway.config.schema import Port, host_port
from gateway.proxy.scheduler import AddressTurns
from gateway.server.connections import Connections, Slot, default_max_connections
from gateway.server.head_errors import MALFORMED
from gateway.server.listener import Listener

RETRY_INTERVAL_S: Final = 10.0
SHUTDOWN_TIMEOUT_S: Final = 0.5
MOST_CONNECTIONS: Final = 1000
REQUEST_S: Final = 0.002
"""What it costs to answer a request, in the order of magnitude."""

HEAD_S: Final = 15.0
IDLE_S: Final = 75.0
STALLED_S: Final = 150.0
"""Longer than what is sent as it is read waits for its client, so that its log line says why it was closed."""


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
        address = cast("AdminConnection", request.protocol).begin()
        await _turn(turns, f"request {address}")
        return await handler(request)

    def protocol(slot: Slot) -> AdminConnection:
        return AdminConnection(server, connections=connections, slot=slot, loop=loop, access_log=None)

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


class AdminConnection(web.RequestHandler):
    """aiohttp's protocol of one connection, with limits of our own."""

    __slots__ = ("_busy", "_connections", "_head_timer", "_slot", "_stalled_timer")

    def __init__(self, server: web.Server, *, connections: Connections, slot: Slot, **settings: Any) -> None:
        # A body is read as it came: one that is refused is read and thrown away, and would be decompressed for it.
        super().__init__(server, keepalive_timeout=IDLE_S, auto_decompress=False, **settings)
        self._connections = connections
        self._slot = slot
        self._busy = False
        self._head_timer: asyncio.TimerHandle | None = None
        self._stalled_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._slot.close = self._abort
        self._await_head()
        if self._slot.crowded:
            self._abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_head_timer()
        self._stop_stalled_timer()
        self._connections.leave(self._slot)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._busy:
            self._await_head()
            self._connections.add_head(self._slot, len(data))

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stalled_timer is None:
            self._stalled_timer = asyncio.get_running_loop().call_later(STALLED_S, self._abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_stalled_timer()

    def begin(self) -> str:
        """Note that a head is complete, and return the address that the connection counts for."""
        self._busy = True
        self._stop_head_timer()
        self._connections.complete_head(self._slot)
        return self._slot.address

    def know(self, *, read: bool) -> None:
        """Note that it is known who sent the request. `read`: all of it was read, so that it keeps its place until the answer."""
        slot = self._slot
        if slot.left:
            return
        self._connections.begin(slot)
        slot.known = True
        if not read:
            self._connections.wait(slot)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self._busy = request.can_read_body  # the rest of it is no head: aiohttp reads and drops it for some seconds
            self._connections.wait(self._slot)

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, *given: Any, **named: Any
    ) -> web.StreamResponse:
        """Answer what is no request of HTTP with the headers that every answer has."""
        if status < 500:  # aiohttp would log it with a traceback, and repeat what was sent
            request[ID] = new_id()
            response: web.StreamResponse = error_response(request, Refused(status, "invalid_request", MALFORMED))
            response.headers["x-request-id"] = request[ID]
            response.force_close()
        else:
            response = super().handle_error(request, status, *given, **named)
        complete(response)
        return response

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = asyncio.get_running_loop().call_later(HEAD_S, self._abort)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_stalled_timer(self) -> None:
        if self._stalled_timer is not None:
            self._stalled_timer.cancel()
            self._stalled_timer = None

    def _abort(self) -> bool:
        """Close the connection at once."""
        if self.transport is None:
            return False
        self.transport.abort()
        return True


def note_known(request: web.Request) -> None:
    """Note that it is known who sent a request. To be said again once its body was read."""
    if isinstance(request.protocol, AdminConnection):
        request.protocol.know(read=not request.can_read_body)
