"""The connections of the public port: aiohttp's server protocol with limits of our own.

1. A request head arrives complete within `head_timeout` of its first byte and within `max_head` bytes, or the connection is
   closed.
2. A body's framing is bounded like the body itself. Where it is malformed, the reader of the body gets an error at once.
3. What a caller sends during an exchange never disturbs that exchange.
4. When the process is nearly out of file descriptors, new connections are refused, so that open streams can finish.

This is the one file that uses private attributes of aiohttp's server. `AIOHTTP_ATTRIBUTES` lists them, and a test fails when an
installed aiohttp lacks one. Its twin for aiohttp's client is `gateway.proxy.upstream`.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import StreamReader, web
from aiohttp.http import RawRequestMessage
from aiohttp.http_exceptions import LineTooLong

from gateway.config.schema import Port
from gateway.errors import Refused, internal
from gateway.proxy.caller import CallerConnection
from gateway.request_id import new_id

AIOHTTP_ATTRIBUTES: Final = ("_close", "_messages", "_request_count", "_request_in_progress", "_waiter")
"""Of `aiohttp.web.RequestHandler`, as read in 3.14.5: whether the connection closes after the current request, the requests
that were parsed and not handled yet, how many were parsed in all, whether a handler runs, and the future on which an idle
connection waits for a request.
"""

READ_BUFFER: Final = 64 * 1024
WRITE_BUFFER: Final = 64 * 1024
"""Unsent bytes above which the upstream is not read. Set here because TLS would allow eight times as many."""
LINGER_S: Final = 2.0
"""How long the rest of a refused request is read and dropped. Closing at once could destroy the response before it is read."""
MAX_FRAMING: Final = 512 * 1024
"""Bytes of chunk sizes, extensions and trailers in one body. A body in one-byte chunks costs a hundred times its bytes."""
RESERVED_DESCRIPTORS: Final = 64
CROWDED_S: Final = 1.0
"""How long a connection above the limit of file descriptors may stay silent."""
MALFORMED: Final = "This is not a well-formed HTTP/1.1 request; check the request line, the headers and the framing."


class Server(web.Server):
    """aiohttp's low-level server, with `ServerProtocol` for its connections."""

    def __init__(self, handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]], port: Port) -> None:
        super().__init__(handler)  # type: ignore[arg-type, unused-ignore]
        self._port = port
        self._max_descriptor = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - RESERVED_DESCRIPTORS

    def __call__(self) -> web.RequestHandler:
        return ServerProtocol(
            self,
            port=self._port,
            max_descriptor=self._max_descriptor,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=self._port.idle_timeout,
            access_log=None,
            max_line_size=8190,
            max_field_size=self._port.max_head,
            lingering_time=LINGER_S,
            read_bufsize=READ_BUFFER,
            auto_decompress=False,
        )


class ServerProtocol(web.RequestHandler):
    """One connection of the public port.

    It limits the size and time of each request head, and reports to the exchange that it serves when the caller disconnects
    or reads too slowly.
    """

    __slots__ = (
        "_body_bytes",
        "_head_bytes",
        "_max_descriptor",
        "_payload",
        "_port",
        "_requests_seen",
        "_timer",
        "caller",
        "crowded",
    )

    def __init__(self, *arguments: Any, port: Port, max_descriptor: int, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._port = port
        self._max_descriptor = max_descriptor
        self._requests_seen = 0
        self._head_bytes = self._body_bytes = 0
        self._payload: StreamReader | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.caller: CallerConnection | None = None
        """The exchange that this connection serves now."""
        self.crowded = False
        """Whether the process is nearly out of file descriptors. The kernel assigns the lowest that is free."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        transport.set_write_buffer_limits(WRITE_BUFFER)  # type: ignore[attr-defined]
        self.crowded = transport.get_extra_info("socket").fileno() >= self._max_descriptor
        if self.crowded:
            self._start_timer(CROWDED_S)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_timer()
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

    def data_received(self, data: bytes) -> None:
        if self._close:
            return
        super().data_received(data)
        if self._request_count != self._requests_seen:
            message, payload = self._messages[-1]
            if not isinstance(message, RawRequestMessage):
                self._fail_body()
            self._requests_seen, self._payload = self._request_count, payload
            self._head_bytes = self._body_bytes = 0
            self._stop_timer()
        elif self._payload is not None and not self._payload.is_eof():
            self._body_bytes += len(data)
            if self._body_bytes - self._payload.total_bytes > MAX_FRAMING:
                self._fail_body()
        elif data:
            self._head_bytes += len(data)
            if self._timer is None:
                self._start_timer(self._port.head_timeout)
            if self._head_bytes > self._port.max_head:
                self._refuse(head_too_large(self._port.max_head))

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what is not HTTP in the one error shape. Nothing of the input is repeated in the response."""
        if (self.caller is not None and self.caller.started) or self.transport is None:
            raise ConnectionError("the response has begun")
        status = 431 if isinstance(exc, LineTooLong) else status
        return SentResponse(
            self._send_error(
                self.transport, Refused(status, "invalid_request", MALFORMED) if status < 500 else internal()
            )
        )

    def _fail_body(self) -> None:
        """Report malformed or excessive framing to the reader of the body, which aiohttp does not, and read no further."""
        if self._payload is None or self._payload.is_eof():
            return
        if self._request_in_progress:
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
        self._refuse(Refused(408, "invalid_request", "The head of the request took too long to arrive. Send it again."))

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
        request_id = new_id()
        caller.refuse(error, request_id, {"x-request-id": request_id})
        return caller


class SentResponse(web.StreamResponse):
    """The response that aiohttp gets from a handler: it is on the socket already, so aiohttp writes nothing."""

    def __init__(self, caller: CallerConnection) -> None:
        super().__init__()
        self._caller = caller

    @property
    def keep_alive(self) -> bool:
        """Whether aiohttp waits for another request on the connection."""
        return self._caller.keep_alive

    async def prepare(self, request: web.BaseRequest) -> None:
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        return None


def head_too_large(max_bytes: int) -> Refused:
    """Return the error for a request line and headers of more than `max_bytes` together."""
    return Refused(
        431, "invalid_request", f"The headers are larger than {max_bytes} bytes in all. Send fewer or shorter ones."
    )
