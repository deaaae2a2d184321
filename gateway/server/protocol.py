"""The connections of the public port: aiohttp's server protocol with limits of our own.

1. A request head arrives complete within `head_timeout` of its first byte and within `max_head` bytes, or the connection is
   closed.
2. A body's framing is bounded like the body itself. Where it is malformed, the reader of the body gets an error at once.
3. What a caller sends during an exchange never disturbs that exchange. Requests that were read and cannot be served any more,
   because the connection closes, are reported.
4. When the process is nearly out of file descriptors, new connections are refused, so that open streams can finish.

A connection is parsed piece by piece by aiohttp's parser: each piece ends where a head or a body ends.

5. So it is known of each byte to which request it belongs.
6. Of requests that are sent ahead, at most `MAX_AHEAD` are parsed, and about `max_head` bytes. The connection is not read while
   there are more.
7. A turn of the event loop begins one request of an address, with as much of its body as is parsed in `TURN_S`, or goes on
   reading one large body. The connections of that address wait for their next turn, and are not read meanwhile.
8. A request to upgrade is never granted: what follows it is parsed like everything else.

This file uses private attributes of aiohttp's server. `AIOHTTP_ATTRIBUTES` and `AIOHTTP_NAMES` list them, and a test fails when an
installed aiohttp lacks one. The twin for aiohttp's client is `gateway.proxy.upstream`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from itertools import chain
from typing import Any, Final

import msgspec
from aiohttp import HttpVersion, StreamReader, web
from aiohttp.http import HttpRequestParser, RawRequestMessage
from aiohttp.http_exceptions import BadHttpMessage, LineTooLong
from multidict import CIMultiDictProxy

from gateway.base.errors import Refused, internal
from gateway.base.ids import new_id
from gateway.config.schema import Port
from gateway.operations.operation import ERRORS
from gateway.proxy.caller import CallerConnection
from gateway.proxy.scheduler import TURN_S, AddressTurns
from gateway.server.connections import Connections, Slot
from gateway.server.head_errors import (
    LINGER_S,
    MALFORMED,
    SentResponse,
    head_too_large,
    head_too_slow,
    line_too_long,
    too_many_headers,
)

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

MAX_AHEAD: Final = 16
"""Requests that may wait on a connection behind the one that is served. aiohttp parses no more once it has 32."""
PIECE: Final = 1024
"""Bytes of a chunked body that are parsed at once, at most: in chunks of one byte, this takes a third of a millisecond."""
READ_BUFFER: Final = 64 * 1024
"""Bytes of a body that wait for their reader before the connection is no longer read."""
LARGE_READ: Final = 32 * 1024
"""After a longer read of a body, the next read waits for its turn. Else each of many connections is read in every turn of the
event loop."""
BEGIN_S: Final = 0.0003
"""Seconds of the event loop to serve a request after its head was parsed, in the order of magnitude."""
READ_S: Final = 0.0003
"""Seconds that a read of a body takes, in the order of magnitude. uvloop reads 256,000 bytes at most."""
HEAD_END: Final = b"\r\n\r\n"

AIOHTTP_NAMES: Final = ("_cancel", "_finish", "_task")
"""Undocumented attributes of a request that aiohttp's `RequestHandler` uses, as read in 3.14.5."""


Unserved = Callable[["ParsedRequest", bool], None]
"""Called for each request that is read and not served, because its connection closes, with whether the caller closed it."""


class Shared(msgspec.Struct, frozen=True):
    """Objects that all connections of a worker share."""

    port: Port
    slots: Connections
    unserved: Unserved
    max_descriptor: int
    turns: AddressTurns


class ServerProtocol(web.RequestHandler):
    """One connection of the public port.

    It reads in pieces, limits the size and time of each request head, and reports to the exchange that it serves when the caller
    disconnects or reads too slowly.
    """

    __slots__ = (
        "_address",
        "_ahead",
        "_ahead_at",
        "_ahead_bytes",
        "_begun",
        "_body_bytes",
        "_body_length",
        "_closes",
        "_has_turn",
        "_head_bytes",
        "_malformed",
        "_max_ahead_bytes",
        "_parser_keeps",
        "_payload",
        "_port",
        "_requests_seen",
        "_rest",
        "_shared",
        "_timer",
        "_turns",
        "_waits_for_turn",
        "caller",
        "crowded",
        "cut_off",
        "slot",
        "unclear",
    )

    def __init__(self, server: web.Server, *, shared: Shared, slot: Slot, **settings: Any) -> None:
        super().__init__(server, **settings)
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
        """Whether caller and gateway may disagree where the next request begins: the data there is not a request."""
        self._messages = ParsedRequests()  # type: ignore[assignment]
        self._turns = shared.turns
        self._address = slot.address
        self._has_turn = self._waits_for_turn = False
        self._max_ahead_bytes = shared.port.max_head
        self._requests_seen = 0
        self._ahead_bytes = 0
        self._rest = b""
        """The last bytes that were parsed of an incomplete head or chunked body: its end may be split."""
        self._parser_keeps = False
        """Whether the parser stopped within a piece, or before the end of a body, because the body waits for its reader."""
        self._malformed = False
        """Whether no further request can be read: the last data is no HTTP, or the last request closes the connection."""
        self._closes = False
        """Whether the request that was parsed last closes the connection."""
        self._ahead = b""
        """Data that was received and not parsed yet, from `_ahead_at` on."""
        self._ahead_at = 0
        self._payload: StreamReader | None = None
        self._body_length: int | None = None
        """The length of the body of the request that was parsed last; None if it is chunked."""

    async def start(self) -> None:
        """Serve the requests of the connection; at the end, report those that were read and not served."""
        if self._request_factory is None:  # closed already
            return
        try:
            await super().start()
        finally:
            for request, _ in () if self.unclear else self._messages:
                if isinstance(request, ParsedRequest):
                    self._shared.unserved(request, self.transport is None and not self.cut_off)

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

    def release(self) -> None:
        """Free what only a further request needs: the parser, which keeps the last head, and the timer for idle connections.

        Both are made again when they are needed.
        """
        payload = self._payload
        if self._rest or self._upgraded or (payload is not None and not payload.is_eof()):
            return  # the parser is inside a request
        self._payload = self._parser = None
        self._malformed |= self._closes
        self.keep_alive(True)

    def data_received(self, data: bytes) -> None:
        """Parse new data, after data that waits from before, piece by piece: no request is parsed that cannot be served soon."""
        if self._waits_for_turn:
            self._ahead += data
            return
        at, turn_ends = 0, 0.0
        has_turn = self._has_turn
        if data or self._ahead:
            self._has_turn = False
        if self._ahead:
            data, at = self._ahead + data, self._ahead_at
            self._ahead, self._ahead_at = b"", 0
        while not self._close and not self._malformed:  # else it is dropped: unread, it would reset the connection
            if not self._messages:
                self._ahead_bytes = 0
            crowded = len(self._messages) >= MAX_AHEAD or self._ahead_bytes > self._max_ahead_bytes
            if at < len(data) and (crowded or self._reading_paused):
                self._ahead, self._ahead_at = data, at
                if crowded and not self._buffer_paused:
                    self._pause_reading_for_buffer()
                return
            # Also for an address that is alone: it has other connections.
            over = turn_ends and time.thread_time() >= turn_ends
            if at < len(data) and not has_turn and (over or not self._turns.admit(self._address)):
                self._ahead, self._ahead_at = data, at
                self._wait_for_turn(self._address)
                return
            began, requests = time.thread_time(), self._requests_seen
            end = at if self._parser_keeps else self._end_of_piece(data, at)
            self._parse(data[at:end] if at or end < len(data) else data)
            self._turns.spend(self._address, began, BEGIN_S if self._requests_seen != requests else 0.0)
            at = end
            if at >= len(data):
                if len(data) >= LARGE_READ and self._in_body and not self._turns.alone:
                    self._wait_for_turn(f"body {self._address}")
                return
            turn_ends = turn_ends or began + TURN_S
            # A body of known length is one copy. It would wait behind all heads, and take too long to arrive.
            has_turn = self._in_body and (self._body_length is not None or time.thread_time() < turn_ends)

    def _wait_for_turn(self, key: str) -> None:
        self._waits_for_turn = True
        if not self._buffer_paused:
            self._pause_reading_for_buffer()
        self._turns.wait(self._take_turn, key)

    def _take_turn(self) -> None:
        """Parse as many of the waiting bytes as fit into a turn; go on reading when none are left.

        The next read of a body whose length is known has the turn then: to parse it is one copy.
        """
        self._waits_for_turn = False
        if self.transport is None:
            return
        self._buffer_paused = False
        reads = not self._ahead
        self._has_turn = True
        self.data_received(b"")  # without data, the parser goes on with what it has kept
        self._has_turn = reads and self._in_body and self._body_length is not None and not self._reading_paused
        if reads:
            self._turns.expect(READ_S)
        if not self._buffer_paused and not self._reading_paused:
            self._resume_transport_reading()

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Go on reading. A body's reader calls this for each piece that it takes, nearly always without a pause before."""
        if self._reading_paused or self._buffer_paused or self._ahead:
            super().resume_reading(resume_parser)
            if self._buffer_paused and not self._waits_for_turn:
                self._resume_reading_for_buffer()

    def _resume_reading_for_buffer(self) -> None:
        if not (self._ahead or self._waits_for_turn):
            super()._resume_reading_for_buffer()

    @property
    def _in_body(self) -> bool:
        """Whether a request was parsed whose body is not complete."""
        return self._payload is not None and not self._payload.is_eof()

    def _end_of_piece(self, data: bytes, at: int) -> int:
        """Return where a head or a body that continues at `at` ends, or the end of the data."""
        if self._in_body and self._payload is not None and self._body_length is not None:
            return min(len(data), at + max(1, self._body_length - self._payload.total_bytes))
        end = min(len(data), at + PIECE) if self._in_body else len(data)
        if self._rest and (found := (self._rest + data[at : at + 3]).find(HEAD_END)) >= 0:
            return at + found + len(HEAD_END) - len(self._rest)
        found = data.find(HEAD_END, at, end)
        return end if found < 0 else found + len(HEAD_END)

    def _parse(self, piece: bytes) -> None:
        """Parse one piece, and count it as part of a body or of a head."""
        if self._parser is None:
            self._parser = self._open_parser()
        payload = self._payload
        in_body = self._in_body
        super().data_received(piece)
        while self._upgraded:  # never granted: what follows is HTTP like everything else
            self._parser.set_upgraded(False)
            self._upgraded = False
            tail, self._message_tail = self._message_tail, b""
            super().data_received(tail)
        self._parser_keeps = self._reading_paused
        if self._request_count != self._requests_seen:
            message, payload = self._messages[-1]
            valid = isinstance(message, RawRequestMessage)
            self._count_message(valid=valid)
            self._malformed = not valid
            self._requests_seen, self._payload = self._request_count, payload
            self._ahead_bytes += len(piece)
            self._rest = b""
            self._body_length = None
            if isinstance(message, RawRequestMessage):
                request = ParsedRequest(message, payload, self)
                self._messages[-1] = (request, request)  # type: ignore[assignment]
                self._closes = message.should_close
                if not message.chunked:
                    self._body_length = request.content_length or 0
            else:
                message.exc.__traceback__ = None  # of frames that refer to this connection
        elif in_body and payload is not None and not payload.is_eof():
            if self._body_length is None:
                self._keep_rest(piece)
            self._count_body(len(piece))
        elif in_body:
            self._rest = b""
        elif piece:
            self._keep_rest(piece)
            self._count_head(len(piece))

    def _keep_rest(self, piece: bytes) -> None:
        """Keep the last bytes, which may be a part of the end of a head or of a chunked body."""
        rest = (self._rest + piece)[-len(HEAD_END) :]
        self._rest = b"" if rest == HEAD_END else rest[-3:]

    def _open_parser(self) -> HttpRequestParser:
        return HttpRequestParser(
            self,
            self._loop,
            READ_BUFFER,
            max_line_size=self.max_line_size,
            max_headers=self.max_headers,
            max_field_size=self.max_field_size,
            payload_exception=web.RequestPayloadError,
            auto_decompress=False,
        )

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
        """Answer data that is not HTTP in the one error shape. Nothing of the input is repeated in the response."""
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
        caller.refuse(error, new_id(), {}, ERRORS)
        return caller


class ParsedRequests(list[Any]):
    """The requests that were parsed and not handled yet, of which there is seldom one. An empty deque takes ten times as much."""

    __slots__ = ()

    def popleft(self) -> Any:
        """Return and remove the first one."""
        return self.pop(0)


class ParsedRequest:
    """One request, in place of aiohttp's message, reader of the body and request."""

    __slots__ = (
        "_task",
        "content",
        "content_length",
        "head_bytes",
        "headers",
        "keep_alive",
        "method",
        "protocol",
        "raw_path",
        "version",
    )

    def __init__(self, message: RawRequestMessage, content: StreamReader, protocol: ServerProtocol) -> None:
        self.method = message.method
        self.raw_path = message.path
        self.version: HttpVersion = message.version
        self.headers: CIMultiDictProxy[str] = message.headers
        self.head_bytes = sum(map(len, chain.from_iterable(message.raw_headers)))
        """Bytes of the names and values of the headers."""
        length = message.headers.get("Content-Length")
        self.content_length = None if length is None else int(length)
        """The declared length of the body."""
        self.keep_alive = not message.should_close
        self.content: StreamReader | None = content
        """The reader of the body. None once nothing of it is needed."""
        self.protocol = protocol
        self._task: object = None

    @property
    def transport(self) -> asyncio.Transport | None:
        """The caller's connection; None once it is closed."""
        return self.protocol.transport

    def release(self) -> None:
        """Free the reader of the body, which was read."""
        self.content = None

    # Called by aiohttp, which takes this object for the reader of the body.

    def is_eof(self) -> bool:
        """Return whether the body has arrived."""
        return self.content is None or self.content.is_eof()

    async def readany(self) -> bytes:
        """Return some of a body that nothing reads."""
        return b"" if self.content is None else await self.content.readany()

    def set_exception(self, error: BaseException) -> None:
        """Fail further reads of the body."""
        if self.content is not None:
            self.content.set_exception(error)

    # Called by aiohttp, which takes this object for the request.

    def _cancel(self, error: BaseException) -> None:
        self.set_exception(error)

    def _finish(self) -> None:
        return None


def received(message: Any, content: Any, protocol: ServerProtocol, *_: object) -> ParsedRequest:
    """Return the request of a message; a request that takes the place of a message is returned as it is."""
    if isinstance(message, ParsedRequest):
        return message
    return ParsedRequest(message, content, protocol)
