"""The connections of the public port, before anything on them is a request.

1. A head arrives whole within `head_timeout` of its first byte and within `max_head` bytes, or the connection is closed.
2. A body's framing is bounded like the body itself; where it breaks, whoever reads the body is told at once.
3. A running exchange is never disturbed by what its caller sends after it.
4. Near the end of the process's file descriptors a new connection is refused, so that open streams can finish.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import StreamReader, web
from aiohttp.http import RawRequestMessage

from gateway.config.schema import Port
from gateway.errors import Refused
from gateway.proxy.caller import CallerConnection, CallerProtocol
from gateway.request_id import new_id

READ_BUFFER: Final = 64 * 1024
WRITE_BUFFER: Final = 64 * 1024
"""Bytes that may wait to be sent before an upstream is no longer read; TLS alone would let eight times as many wait."""
LINGER_S: Final = 2.0
"""How long the rest of a refused request is read and dropped: closing at once would take the answer from its reader."""
MOST_FRAMING: Final = 512 * 1024
"""Bytes of chunk sizes, extensions and trailers: a body in one-byte chunks costs a hundred times its bytes."""
KEPT_DESCRIPTORS: Final = 64
CROWDED_S: Final = 1.0
"""How long a connection beyond the limit of descriptors may say nothing."""


class Door(web.Server):
    """aiohttp's low-level server with our protocol for its connections."""

    def __init__(self, handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]], port: Port) -> None:
        super().__init__(handler)  # type: ignore[arg-type, unused-ignore]
        self._port = port
        self._descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - KEPT_DESCRIPTORS

    def __call__(self) -> web.RequestHandler:
        return GuardedProtocol(
            self,
            port=self._port,
            descriptors=self._descriptors,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=self._port.idle_timeout,
            access_log=None,
            max_line_size=8190,
            max_field_size=self._port.max_head,
            lingering_time=LINGER_S,
            read_bufsize=READ_BUFFER,
            auto_decompress=False,
        )


class GuardedProtocol(CallerProtocol):
    """One connection, with a limit and a clock for each head."""

    __slots__ = ("_body_bytes", "_descriptors", "_head_bytes", "_heads", "_payload", "_port", "_timer", "crowded")

    def __init__(self, *arguments: Any, port: Port, descriptors: int, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._port = port
        self._descriptors = descriptors
        self._heads = 0
        self._head_bytes = self._body_bytes = 0
        self._payload: StreamReader | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.crowded = False
        """The process has hardly any file descriptors left; the kernel hands out the lowest that is free."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        transport.set_write_buffer_limits(WRITE_BUFFER)  # type: ignore[attr-defined]
        self.crowded = transport.get_extra_info("socket").fileno() >= self._descriptors
        if self.crowded:
            self._arm(CROWDED_S)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._disarm()
        self._payload = None  # they hold each other
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._close:
            return
        super().data_received(data)
        if self._request_count != self._heads:
            message, payload = self._messages[-1]
            if not isinstance(message, RawRequestMessage):
                self._broken()
            self._heads, self._payload = self._request_count, payload
            self._head_bytes = self._body_bytes = 0
            self._disarm()
        elif self._payload is not None and not self._payload.is_eof():
            self._body_bytes += len(data)
            if self._body_bytes - self._payload.total_bytes > MOST_FRAMING:
                self._broken()
        elif data:
            self._head_bytes += len(data)
            if self._timer is None:
                self._arm(self._port.head_timeout)
            if self._head_bytes > self._port.max_head:
                self._end(too_large_a_head(self._port.max_head))

    def _broken(self) -> None:
        """A body's framing broke or is too much: its reader is told, which aiohttp leaves out; what follows is not read."""
        if self._payload is None or self._payload.is_eof():
            return
        if self._request_in_progress:
            self._payload.set_exception(web.RequestPayloadError())
        self._payload.feed_eof()  # after the answer aiohttp reads on, and would log what it meets
        self.close()

    def _arm(self, after_s: float) -> None:
        self._timer = self._loop.call_later(after_s, self._late)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        self._end(Refused(408, "invalid_request", "The head of the request took too long to arrive. Send it again."))

    def _end(self, error: Refused) -> None:
        """Answer and close. While an exchange runs, nothing is answered: the connection closes after it."""
        transport = self.transport
        busy = self._waiter is None
        self.close()
        if transport is None or busy:
            return
        self._disarm()
        side = CallerConnection(self, transport, http_1_1=True, keep_alive=False)
        request_id = new_id()
        side.refuse(error, request_id, {"x-request-id": request_id})
        if transport.can_write_eof():
            transport.write_eof()
        self._timer = self._loop.call_later(LINGER_S, transport.close)


def too_large_a_head(most: int) -> Refused:
    """What is said of a request line and headers of more than `most` bytes together."""
    return Refused(
        431, "invalid_request", f"The headers are larger than {most} bytes in all. Send fewer or shorter ones."
    )
