"""The connections of the public port: aiohttp's server protocol with limits of our own.

1. A request head arrives complete within `head_timeout` of its first byte and within `max_head` bytes, or the connection is
   closed.
2. A body's framing is bounded like the body itself. Where it is malformed, the reader of the body gets an error at once.
3. What a caller sends during an exchange never disturbs that exchange. Requests that were read and cannot be served any more,
   because the connection closes, are reported.
4. When the process is nearly out of file descriptors, new connections are refused, so that open streams can finish.

This file and `gateway.server.pipeline` use private attributes of aiohttp's server. `AIOHTTP_ATTRIBUTES` lists them, and a test
fails when an installed aiohttp lacks one. The twin for aiohttp's client is `gateway.proxy.upstream`.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage, LineTooLong

from gateway.config.schema import Port
from gateway.errors import Refused, internal
from gateway.proxy.caller import CallerConnection
from gateway.request_id import new_id
from gateway.server.answers import (
    LINGER_S,
    MALFORMED,
    SentResponse,
    head_too_large,
    head_too_slow,
    line_too_long,
    too_many_headers,
)
from gateway.server.connections import Connections, Slot
from gateway.server.pipeline import PipelinedHandler
from gateway.server.received import ReceivedRequest
from gateway.server.turns import AddressTurns

AIOHTTP_ATTRIBUTES: Final = (
    "_buffer_paused",
    "_close",
    "_message_tail",
    "_messages",
    "_parser",
    "_pause_reading_for_buffer",
    "_reading_paused",
    "_request_count",
    "_request_factory",
    "_request_in_progress",
    "_resume_reading_for_buffer",
    "_resume_transport_reading",
    "_upgraded",
    "_waiter",
)
"""Of the class `RequestHandler`, as read in 3.14.5:

whether the connection closes after the current request (`_close`), the requests that were parsed and not handled yet
(`_messages`), how many were parsed in all, whether a handler runs, the future on which an idle connection waits for a request,
what makes a request of a parsed message, the parser, whether it stopped behind a request to upgrade and what came after that
(`_upgraded`, `_message_tail`), whether the connection is not read because of a body, how reading stops until requests
were handled, and how it goes on.
"""

WRITE_BUFFER: Final = 64 * 1024
"""Unsent bytes above which the upstream is not read. Set here because TLS would allow eight times as many."""
MAX_FRAMING: Final = 64 * 1024
"""Bytes of chunk sizes, extensions and trailers in one body, beyond a sixteenth of what the chunks contain. A body in one-byte
chunks costs a hundred times its bytes; one in chunks of 128 bytes has less framing than this."""
CROWDED_S: Final = 1.0
"""How long a connection for which there is no room may stay silent."""


class Unserved(Protocol):
    """Is called for each request that was read and will not be served, because its connection closes.

    `left`: it is the caller who closed the connection.
    """

    def __call__(self, request: ReceivedRequest, *, left: bool) -> None:
        """Take note of one request."""


class Shared(msgspec.Struct, frozen=True):
    """What the connections of a worker have in common."""

    port: Port
    slots: Connections
    unserved: Unserved
    max_descriptor: int
    turns: AddressTurns


class ServerProtocol(PipelinedHandler):
    """One connection of the public port.

    It limits the size and time of each request head, and reports to the exchange that it serves when the caller disconnects
    or reads too slowly.
    """

    __slots__ = (
        "_begun",
        "_body_bytes",
        "_head_bytes",
        "_port",
        "_shared",
        "_timer",
        "caller",
        "crowded",
        "cut_off",
        "slot",
        "unclear",
    )

    def __init__(self, server: web.Server, *, shared: Shared, slot: Slot, **settings: Any) -> None:
        super().__init__(
            server, max_ahead_bytes=shared.port.max_head, turns=shared.turns, address=slot.address, **settings
        )
        self._shared = shared
        self._port = shared.port
        self.slot = slot
        self._begun = 0
        self._head_bytes = self._body_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self.caller: CallerConnection | None = None
        """The exchange that this connection serves now."""
        self.crowded = slot.crowded
        """Whether there is no room for this connection. The kernel assigns the lowest descriptor that is free."""
        self.cut_off = False
        """Whether the gateway closes the connection, and not the caller."""
        self.unclear = False
        """Whether caller and gateway may disagree where the next request begins: what was read of it is not a request."""

    async def start(self) -> None:
        """Serve the requests of the connection; at the end, report those that were read and not served."""
        if self._request_factory is None:  # closed already
            return
        try:
            await super().start()
        finally:
            for request, _ in () if self.unclear else self._messages:
                if isinstance(request, ReceivedRequest):
                    self._shared.unserved(request, left=self.transport is None and not self.cut_off)

    def begin(self) -> None:
        """Note that an exchange begins."""
        self._begun += 1
        self._shared.slots.begin(self.slot)

    def end(self) -> None:
        """Note that the exchange has ended."""
        slots = self._shared.slots
        slots.wait(self.slot)
        if self._head_bytes:
            slots.add_head(self.slot, self._head_bytes)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.slot.close = self._close_waiting
        transport.set_write_buffer_limits(WRITE_BUFFER)  # type: ignore[attr-defined]
        self.crowded |= transport.get_extra_info("socket").fileno() >= self._shared.max_descriptor
        if self.crowded:
            self._start_timer(CROWDED_S)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_timer()
        self._shared.slots.leave(self.slot)
        self._payload = None  # breaks a reference cycle
        caller, self.caller = self.caller, None
        super().connection_lost(exc)
        if caller is not None:
            caller.connection_lost()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.caller is not None and self.caller.on_flow is not None:
            self.caller.on_flow(True)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.caller is not None and self.caller.on_flow is not None:
            self.caller.on_flow(False)

    def _count_message(self, *, valid: bool) -> None:
        if not valid:
            self._fail_body()
        self._head_bytes = self._body_bytes = 0
        self._stop_timer()
        self._shared.slots.complete_head(self.slot)

    def _count_body(self, size: int) -> None:
        self._body_bytes += size
        if self._payload is None:
            return
        content = self._payload.total_bytes
        if self._body_bytes - content > MAX_FRAMING + content // 16:
            self._fail_body()

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._timer is None:
            self._start_timer(self._port.head_timeout)
        if self._head_bytes > self._port.max_head:
            self._refuse(head_too_large(self._port.max_head))
        self._shared.slots.add_head(self.slot, size)

    def _close_waiting(self) -> bool:
        """Close the connection if no request was read that is not answered. Return whether it is closed."""
        if self.transport is None or self._request_count != self._begun:
            return False
        self.close()
        self.transport.abort()
        return True

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what is not HTTP in the one error shape. Nothing of the input is repeated in the response."""
        begun = status >= 500 and self.caller is not None and self.caller.started
        if begun or self.transport is None:
            raise ConnectionError("the response has begun")
        if isinstance(exc, LineTooLong):
            error = line_too_long(self._port.max_head)
        elif isinstance(exc, BadHttpMessage) and exc.message.startswith("Too many headers"):
            error = too_many_headers()
        else:
            error = Refused(status, "invalid_request", MALFORMED) if status < 500 else internal()
        return SentResponse(self._send_error(self.transport, error))

    def _fail_body(self) -> None:
        """Report malformed or excessive framing to the reader of the body, which aiohttp does not, and read no further."""
        if self._payload is None or self._payload.is_eof():
            return
        if self._request_in_progress or self._begun < self._requests_seen:
            self._payload.set_exception(web.RequestPayloadError())
        self._payload.feed_eof()  # otherwise aiohttp reads on after the response, and logs what it meets
        self.close()

    def _start_timer(self, after_s: float) -> None:
        self._timer = self._loop.call_later(after_s, self._on_timeout)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timeout(self) -> None:
        self._timer = None
        self._refuse(head_too_slow())

    def _refuse(self, error: Refused) -> None:
        """Write the error and close. During an exchange nothing is written: the connection closes after it."""
        transport = self.transport
        busy = self._waiter is None
        self.close()
        if transport is None or busy:
            return
        self._stop_timer()
        self._send_error(transport, error)
        if transport.can_write_eof():
            transport.write_eof()
        self._timer = self._loop.call_later(LINGER_S, transport.close)

    def _send_error(self, transport: asyncio.Transport, error: Refused) -> CallerConnection:
        caller = CallerConnection(self, transport, http_1_1=True, keep_alive=False)
        caller.refuse(error, new_id(), {})
        return caller
