"""A port of the operator's process: how it listens, and how what is no request of HTTP is answered.

It is for loopback, or for a proxy in front of it, and has no limits of its own but for connections that are idle.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, cast

from aiohttp import web

from gateway.admin.http.responses import ID, complete, error_response
from gateway.base.errors import Refused, cannot_listen
from gateway.base.ids import new_id
from gateway.base.log import log
from gateway.config.schema import host_port
from gateway.server.head import MALFORMED

RETRY_INTERVAL_S: Final = 10.0
SHUTDOWN_TIMEOUT_S: Final = 0.5
IDLE_S: Final = 75.0


async def run(application: web.Application, address: str, stop: asyncio.Event, name: str = "admin") -> None:
    """Serve an application on `address` until `stop` is set; while another program listens there, try again.

    `name`: of the setting with the address, for the log.
    """
    reported = False
    while not stop.is_set():
        try:
            async with serving(application, address):
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
async def serving(application: web.Application, address: str) -> AsyncIterator[int]:
    """Serve an application on `address` and yield the port's number. Raises `OSError` when the address is taken."""
    host, number = host_port(address)
    bound = socket.create_server((host, number), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    runner = web.AppRunner(application, shutdown_timeout=SHUTDOWN_TIMEOUT_S, handler_cancellation=True)
    loop, listener = asyncio.get_running_loop(), None
    try:
        await runner.setup()
        server = cast("web.Server", runner.server)
        listener = await loop.create_server(lambda: AdminConnection(server, loop=loop, access_log=None), sock=bound)
        yield bound.getsockname()[1]
    finally:
        (bound if listener is None else listener).close()
        await runner.cleanup()


class AdminConnection(web.RequestHandler):
    """aiohttp's protocol of one connection, with errors in the shape of all others."""

    __slots__ = ()

    def __init__(self, server: web.Server, **settings: Any) -> None:
        # A body is read as it came: one that is refused is read and thrown away, and would be decompressed for it.
        super().__init__(server, keepalive_timeout=IDLE_S, auto_decompress=False, **settings)

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
