"""aiohttp's low-level server, which makes the protocol of each connection and calls the handler of each request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

from aiohttp import web

from gateway.config.schema import Port
from gateway.server.answers import LINGER_S, MAX_HEADERS, MAX_LINE
from gateway.server.connections import Connections, Slot, max_descriptor
from gateway.server.pipeline import READ_BUFFER
from gateway.server.protocol import ServerProtocol, Shared, Unserved
from gateway.server.received import ReceivedRequest, received
from gateway.server.turns import AddressTurns

Handler = Callable[[ReceivedRequest], Awaitable[web.StreamResponse]]


class Server(web.Server):
    """aiohttp's low-level server, with `ServerProtocol` for its connections."""

    def __init__(
        self, handler: Handler, unserved: Unserved, port: Port, connections: Connections, turns: AddressTurns
    ) -> None:
        super().__init__(self._serve, request_factory=received)  # type: ignore[arg-type]
        self._handler = handler
        self._shared = Shared(port, connections, unserved, max_descriptor(), turns)

    def protocol(self, slot: Slot) -> ServerProtocol:
        """Return the protocol of one connection."""
        return ServerProtocol(
            self,
            shared=self._shared,
            slot=slot,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=self._shared.port.idle_timeout,
            access_log=None,
            max_line_size=MAX_LINE,
            max_headers=MAX_HEADERS,
            max_field_size=self._shared.port.max_head,
            lingering_time=LINGER_S,
            read_bufsize=READ_BUFFER,
            auto_decompress=False,
        )

    async def _serve(self, request: ReceivedRequest) -> web.StreamResponse:
        protocol = cast("ServerProtocol", request.protocol)
        protocol.begin()
        try:
            return await self._handler(request)
        finally:
            protocol.end()
