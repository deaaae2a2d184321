"""A connection of the operator's port or of the portal, and how long it is kept.

1. A head arrives within `HEAD_S`, and a client that waits for an answer takes some of it within `STALLED_S`, or the connection is
   closed. An idle one is closed after `IDLE_S`.
2. There are at most as many as `Connections` has room for. Where one more needs room, another is closed on which no request of
   somebody known is being answered: first of those that never had one, the oldest.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from aiohttp import web

from gateway.admin.answers import ID, complete, error_response
from gateway.errors import Refused
from gateway.request_id import new_id
from gateway.server.answers import MALFORMED
from gateway.server.connections import Connections, Slot

HEAD_S: Final = 15.0
IDLE_S: Final = 75.0
STALLED_S: Final = 150.0
"""Longer than what is sent as it is read waits for its client, so that its log line says why it was closed."""


class Connection(web.RequestHandler):
    """aiohttp's protocol of one connection, with limits of our own."""

    __slots__ = ("_busy", "_connections", "_head_timer", "_slot", "_stalled_timer")

    def __init__(self, server: web.Server, *, connections: Connections, slot: Slot, **settings: Any) -> None:
        super().__init__(server, keepalive_timeout=IDLE_S, **settings)
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
    if isinstance(request.protocol, Connection):
        request.protocol.know(read=not request.can_read_body)
