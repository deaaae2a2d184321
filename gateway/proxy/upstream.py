"""The upstream's side of an exchange: one HTTP/1.1 call on a connection from aiohttp's pool.

DNS, TLS, proxies, keep-alive and limits stay aiohttp's. For the length of the answer its transport is given to a small
protocol over llhttp, so that what one read of the socket brought reaches the caller in one write, without a task switch.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import httptools
from multidict import CIMultiDict

from gateway.chat.request import BodyPart

if TYPE_CHECKING:
    from aiohttp.connector import Connection

LONGEST_HEAD: Final = 64 * 1024

_BUFFER: Final = memoryview(bytearray(64 * 1024))
"""What every read of every upstream goes into. The parser has copied it when the read returns, so one is enough; its size
bounds what a stream holds, and what reading costs.
"""


class InvalidResponse(Exception):
    """The upstream does not speak HTTP/1.1, or not as asked."""


class UpstreamConnection(asyncio.BufferedProtocol):
    """The answer to one call.

    `on_head` is told once: status and headers are in, or there is a `failure`. From `flow_to` on, each read's body bytes go to
    `on_data` in one piece, and `on_end(clean)` comes once: whether the answer ended as its framing promised.
    """

    __slots__ = (
        "_connection",
        "_ended",
        "_framed",
        "_head_bytes",
        "_headed",
        "_named_bytes",
        "_on_data",
        "_on_end",
        "_parser",
        "_pieces",
        "_pooled",
        "_reading",
        "_reusable",
        "_transport",
        "_whole",
        "answered",
        "failure",
        "headers",
        "on_body",
        "on_head",
        "status",
    )  # fmt: skip

    def __init__(self, connection: Connection) -> None:
        transport, pooled = connection.transport, connection.protocol
        if transport is None or pooled is None:
            raise ConnectionResetError("the pooled connection was closed")
        self._connection = connection
        self._transport = transport
        self._pooled = pooled
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append
        """For the parser: no call of Python for a piece of an event."""
        self._parser = httptools.HttpResponseParser(self)
        self._whole = sys.maxsize
        self._headed = False
        self._head_bytes = 0
        self._named_bytes = 0
        self._framed = False
        self._ended: bool | None = None
        self._reading = True
        self._reusable = False
        self._on_data: Callable[[bytes], None] | None = None
        self._on_end: Callable[[bool], None] | None = None
        self.answered = False
        self.status = 0
        self.headers: CIMultiDict[str] = CIMultiDict()
        self.failure: InvalidResponse | ConnectionError | None = None
        self.on_head: Callable[[], None] | None = None
        _hand(transport, self)

    @property
    def encoded(self) -> bool:
        """Whether the body is compressed, which nobody asked for."""
        return self.headers.get("Content-Encoding", "identity").lower() != "identity"

    @property
    def media_type(self) -> str:
        """What the body is; nothing for one that is encoded."""
        return "" if self.encoded else self.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    def send(self, message: Sequence[BodyPart]) -> None:
        """The whole request, in one write."""
        self._transport.writelines(message)

    def flow_to(self, on_data: Callable[[bytes], None], on_end: Callable[[bool], None]) -> None:
        """Hand over the body, what is already here first."""
        self._on_data = on_data
        self._on_end = on_end
        self._hand_over()
        self.resume()

    def pause(self) -> None:
        """Stop reading: the caller is slower than the upstream."""
        if self._reading and self._ended is None:
            self._reading = False
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if not self._reading and self._ended is None:
            self._reading = True
            self._transport.resume_reading()

    def release(self) -> None:
        """Give the connection back if its answer ended as promised; close it otherwise."""
        self._on_data = self._on_end = self.on_head = None
        del self._parser  # they hold each other
        if self._ended and self._reusable and not self._transport.is_closing():
            _hand(self._transport, self._pooled)
            self._connection.release()
        else:
            self._connection.close()
            self._transport.abort()

    # What the transport calls.

    def get_buffer(self, sizehint: int) -> memoryview:
        return _BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        if self._ended is not None:
            self._reusable = False
            return
        self.answered = True
        try:
            self._parser.feed_data(_BUFFER[:nbytes])
        except (httptools.HttpParserError, httptools.HttpParserUpgrade, InvalidResponse):
            self._fail(InvalidResponse("the answer is not HTTP/1.1"))
        if not self._headed:
            self._head_bytes += nbytes
            if self._head_bytes > LONGEST_HEAD:
                self._fail(InvalidResponse("the head of the answer is too long"))
        on_data, pieces = self._on_data, self._pieces
        if self._ended is None and on_data is not None and len(pieces) == 1:
            on_data(pieces.pop())
        else:
            self._hand_over()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._pooled.connection_lost(exc)
        if self._ended is None:
            if self._headed:
                self._ended = not self._framed and exc is None
            else:
                self._fail(ConnectionResetError("the upstream closed the connection"))
        self._hand_over()

    # What the parser calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        self._named_bytes += len(name) + len(value)
        if self._named_bytes > LONGEST_HEAD:
            raise InvalidResponse("the head of the answer is too long")
        if 100 <= self._parser.get_status_code() < 200 or self._ended is not None:
            return
        self.headers.add(name.decode("latin-1"), value.decode("latin-1"))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self._ended is not None:
            self._reusable = False  # a second answer
            return
        if status < 200:
            if status == 101:
                raise InvalidResponse("switching protocols was not asked for")
            return
        self.status = status
        self._framed = "Content-Length" in self.headers or "Transfer-Encoding" in self.headers or status in (204, 304)
        self._tell_head()

    def on_message_complete(self) -> None:
        if self._headed and self._ended is None:
            self._ended = True
            self._reusable = self._parser.should_keep_alive()
            self._whole = len(self._pieces)  # what the parser may find behind it belongs to no request

    def _hand_over(self) -> None:
        if self._on_data is None or self._on_end is None:
            return
        if self._pieces:
            data = b"".join(self._pieces[: self._whole])
            self._pieces.clear()
            if data:
                self._on_data(data)
        if self._ended is not None and self._on_end is not None:
            on_end, self._on_end = self._on_end, None
            on_end(self._ended)

    def _fail(self, error: InvalidResponse | ConnectionError) -> None:
        self._ended = False
        if not self._headed:
            self.failure = error
            self._tell_head()

    def _tell_head(self) -> None:
        self._headed = True
        if self.on_head is not None:
            self.on_head()


def _hand(transport: asyncio.Transport, protocol: asyncio.BaseProtocol) -> None:
    """Give a transport to another protocol; uvloop asks how to read only when reading begins."""
    transport.pause_reading()
    transport.set_protocol(protocol)
    transport.resume_reading()


async def collected(
    upstream: UpstreamConnection, most: int, within_s: float, or_until: asyncio.Future[Any]
) -> tuple[bytes, bool]:
    """The body up to `most` bytes, beyond which nothing is read, and whether it came whole.

    What is there after `within_s`, or when `or_until` is done, is all.
    """
    pieces: list[bytes] = []
    done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    size = 0

    def on_data(data: bytes) -> None:
        nonlocal size
        pieces.append(data)
        size += len(data)
        if size > most:
            upstream.pause()
            on_end(False)

    def on_end(clean: bool) -> None:
        if not done.done():
            done.set_result(clean)

    upstream.flow_to(on_data, on_end)
    await asyncio.wait((done, or_until), timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
    return b"".join(pieces)[:most], done.done() and done.result()
