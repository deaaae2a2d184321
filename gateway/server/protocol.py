"""The connections of the public port, parsed by aiohttp's parser, and the requests that they serve one after the other.

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

9. Each request has a task of its own, and an idle connection none.

This file uses private attributes of aiohttp's base of protocols, which its readers of bodies need. `AIOHTTP_ATTRIBUTES` lists them,
and a test fails when an installed aiohttp lacks one. The twin for aiohttp's client is `gateway.proxy.upstream`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Any, Final

import msgspec
from aiohttp import HttpVersion11, StreamReader, web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpRequestParser, RawRequestMessage
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.tcp_helpers import tcp_keepalive
from multidict import CIMultiDict, CIMultiDictProxy

from gateway.base.compiled import WHY_PURE
from gateway.base.errors import Refused, internal
from gateway.base.ids import new_id
from gateway.base.log import log
from gateway.config.schema import Port
from gateway.operations.operation import ERRORS
from gateway.proxy.caller import CallerConnection
from gateway.proxy.scheduler import TURN_S, AddressTurns
from gateway.server.connections import Connections, Slot
from gateway.server.head import (
    LINGER_S,
    MAX_HEADERS,
    MAX_LINE,
    ParsedRequest,
    head_too_large,
    head_too_slow,
    malformed,
    whole_request,
)

AIOHTTP_ATTRIBUTES: Final = (
    "_buffer_paused",
    "_parser",
    "_pause_reading_for_buffer",
    "_reading_paused",
    "_resume_reading_for_buffer",
    "_resume_transport_reading",
)
"""Of the class `BaseProtocol`, as read in 3.14.5: the parser, whether the connection is not read because of a body or for another
reason, how reading stops, and how it goes on."""

WRITE_BUFFER: Final = 64 * 1024
"""Unsent bytes above which the upstream is not read. Set here because TLS would allow eight times as many."""
MAX_FRAMING: Final = 64 * 1024
"""Bytes of chunk sizes, extensions and trailers in one body, beyond a sixteenth of what the chunks contain. A body in one-byte
chunks costs a hundred times its bytes; one in chunks of 128 bytes has less framing than this."""
CROWDED_S: Final = 1.0
"""How long a connection for which there is no room may stay silent."""

MAX_AHEAD: Final = 16
"""Requests that may wait on a connection behind the one that is served."""
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

Handler = Callable[[ParsedRequest], Awaitable[bool]]
"""Answers a request. Returns whether the connection may carry another one."""
Unserved = Callable[[ParsedRequest, bool], None]
"""Called for each request that is read and not served, because its connection closes, with whether the caller closed it."""


class Shared(msgspec.Struct, frozen=True):
    """Objects that all connections of a worker share. `open`: the connections."""

    port: Port
    slots: Connections
    handler: Handler
    unserved: Unserved
    max_descriptor: int
    turns: AddressTurns
    context: Context
    """What each request begins with, so that it sees no context variable of an earlier one."""
    open: set[ServerProtocol]

    async def stop(self, within_s: float) -> None:
        """Close all connections. Requests that are served then have `within_s` to end."""
        await asyncio.sleep(0)  # requests that were read are begun
        for protocol in self.open:
            protocol.close()
        if tasks := [protocol.task for protocol in self.open if protocol.task is not None]:
            for task in (await asyncio.wait(tasks, timeout=within_s))[1]:
                task.cancel()
        for protocol in list(self.open):
            protocol.force_close()


class ServerProtocol(BaseProtocol):
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
        "_close",
        "_closes",
        "_has_turn",
        "_head_bytes",
        "_idle_timer",
        "_idle_until",
        "_malformed",
        "_messages",
        "_parser_keeps",
        "_payload",
        "_port",
        "_request",
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
        "task",
        "unclear",
    )

    def __init__(self, shared: Shared, slot: Slot) -> None:
        super().__init__(asyncio.get_running_loop())
        self._shared = shared
        self._port = shared.port
        self.slot = slot
        self._begun = self._requests_seen = self._head_bytes = self._body_bytes = self._ahead_bytes = self._ahead_at = 0
        self._timer: asyncio.TimerHandle | None = None
        self.caller: CallerConnection | None = None
        """The exchange that this connection serves now."""
        self.crowded = slot.crowded
        """Whether there is no room for this connection. The kernel assigns the lowest descriptor that is free."""
        self.cut_off = False
        """Whether the gateway closes the connection, and not the caller."""
        self.unclear = False
        """Whether caller and gateway may disagree where the next request begins: the data there is not a request."""
        self.task: asyncio.Task[None] | None = None
        """Serves one request. None while the connection waits for one."""
        self._messages: list[ParsedRequest | Refused] = []
        """The requests that were parsed and are not served yet. Data that is no request is the last one, as its error."""
        self._request: ParsedRequest | None = None
        """The request that is served."""
        self._close = False
        """Whether the connection closes after the request that is served."""
        self._idle_timer: asyncio.TimerHandle | None = None
        self._idle_until = 0.0
        self._turns = shared.turns
        self._address = slot.address
        self._has_turn = self._waits_for_turn = False
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
        self._payload: StreamReader | None = None
        self._body_length: int | None = None
        """The length of the body of the request that was parsed last; None if it is chunked."""

    async def _serve_next(self) -> None:
        """Serve one request; then begin with the next one, wait for it, or close the connection."""
        request, keep_alive = self._messages.pop(0), False
        if self._buffer_paused:
            self.data_received(b"")
            self._resume_reading_for_buffer()
        try:
            if isinstance(request, Refused):
                self._send_error(request)
                return
            self._request = request
            self._begun += 1
            slots = self._shared.slots
            slots.begin(self.slot)
            try:
                keep_alive = await self._shared.handler(request)
            except Exception as error:
                self._note_failure(error)
            finally:
                slots.wait(self.slot)
                if self._head_bytes:
                    slots.add_head(self.slot, self._head_bytes)
            if not (request.ordinary or request.is_eof()):
                keep_alive = self.transport is not None and await request.discard_rest(LINGER_S) and keep_alive
        except asyncio.CancelledError:
            self.force_close()
            raise
        finally:
            self.task = self._request = None
            if not keep_alive or self._close:
                self._end()
            elif self._messages:
                self._begin_next()
            else:
                self._wait_idle()

    def _note_failure(self, error: Exception) -> None:
        """Answer with an internal error where no answer has begun, unless the caller has left."""
        if not isinstance(error, ConnectionError):
            log.exception("internal_error")
            if self.caller is None or not self.caller.started:
                self._send_error(internal())

    def _begin_next(self) -> None:
        """Begin with the next request, or wait until the caller has read most of the answers before it (`resume_writing`).

        A caller that reads nothing would else have any number of answers made, which all stay in memory.
        """
        if self.writing_paused:
            self._wait_idle()
            return
        context = self._shared.context.copy()
        self.task = asyncio.Task(self._serve_next(), loop=self._loop, name="request", context=context)

    def _end(self) -> None:
        """Close the connection, and report the requests that were read and are not served."""
        self._close = True
        messages, self._messages = self._messages, []
        left = self.transport is None and not self.cut_off
        if self.transport is not None:
            self.transport.close()
        for request in () if self.unclear else messages:
            if isinstance(request, ParsedRequest):
                self._shared.unserved(request, left)

    def close(self) -> None:
        """Read no further request, and close the connection once the one that is served is answered."""
        self._close = True

    def force_close(self) -> None:
        """Close the connection now."""
        self._close = True
        if self.transport is not None:
            self.cut_off = True
            self.transport.close()
            self.transport = None
        if self.task is None:
            self._end()

    def _wait_idle(self) -> None:
        """Close the connection if it carries no request for the time that the port says."""
        self._idle_until = self._loop.time() + self._port.idle_timeout
        if self._idle_timer is None:
            self._idle_timer = self._loop.call_at(self._idle_until, self._on_idle)

    def _on_idle(self) -> None:
        self._idle_timer = None
        if self.task is not None or self.transport is None:
            return
        if self._loop.time() < self._idle_until:
            self._idle_timer = self._loop.call_at(self._idle_until, self._on_idle)
        else:
            self.force_close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        tcp_keepalive(transport)  # type: ignore[arg-type]
        self._shared.open.add(self)
        self._wait_idle()
        self.slot.close = self._close_waiting
        transport.set_write_buffer_limits(WRITE_BUFFER)  # type: ignore[attr-defined]
        self.crowded |= transport.get_extra_info("socket").fileno() >= self._shared.max_descriptor
        if self.crowded:
            self._start_timer(CROWDED_S)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_timer()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._shared.open.discard(self)
        self._shared.slots.leave(self.slot)
        self._close = True
        self._payload = self._parser = None  # breaks reference cycles
        caller, self.caller = self.caller, None
        super().connection_lost(exc)
        if self._request is not None:
            self._request.set_exception(exc or ConnectionResetError("the caller closed the connection"))
        if caller is not None:
            caller.connection_lost()
        if self.task is None:
            self._end()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.caller is not None and self.caller.on_flow is not None:
            self.caller.on_flow(True)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.caller is not None and self.caller.on_flow is not None:
            self.caller.on_flow(False)
        if self.task is None and self._messages:
            self._end() if self._close else self._begin_next()

    def release(self) -> None:
        """Free what only a further request needs: the parser, which keeps the last head. It is made again when it is needed."""
        if self._parser is None or self._rest or self._in_body:
            return  # there is none, or it is inside a request
        self._payload = self._parser = None
        self._malformed |= self._closes

    def data_received(self, data: bytes) -> None:
        """Parse new data, after data that waits from before, piece by piece: no request is parsed that cannot be served soon."""
        if self._waits_for_turn:
            self._ahead += data
            return
        if self._parser is None and 0 < len(data) <= LARGE_READ and not WHY_PURE and self._takes_whole(data):
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
            crowded = len(self._messages) >= MAX_AHEAD or self._ahead_bytes > self._port.max_head
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

    def _takes_whole(self, data: bytes) -> bool:
        """Take a request that is here as a whole, where nothing waits before it. Return whether this is one.

        While there is no parser, no part of a request has arrived.
        """
        if self._messages or self._ahead or self._close or self._malformed:
            return False
        whole, turns = whole_request(data), self._turns
        if whole is None or whole[2] > self._port.max_head or not turns.admit(self._address):
            return False
        began = 0.0 if turns.alone else time.thread_time()
        if self._timer is not None or self._head_bytes:
            self._count_message(valid=True)
        self._requests_seen += 1
        self._ahead_bytes = len(data) - len(whole[3])
        request = ParsedRequest.__new__(ParsedRequest)  # compiled code sets its attributes slower
        request.raw_path, headers, request.head_bytes, request.content = whole
        request.method, request.version, request.keep_alive, request.ordinary = "POST", HttpVersion11, True, True
        request.headers = CIMultiDictProxy(CIMultiDict(headers))
        request.content_length, request.protocol = len(whole[3]), self
        self._messages.append(request)
        if self.task is None:
            self._begin_next()
        if began:
            turns.spend(self._address, began, BEGIN_S)
        return True

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
        found, self._parser_keeps = self._feed(self._parser, piece), self._reading_paused
        if found:
            self._count_message(valid=not isinstance(found, Refused))
            self._requests_seen += 1
            self._ahead_bytes += len(piece)
            self._rest = b""
            self._payload = self._body_length = None
            if isinstance(found, Refused):
                self._malformed = True
                self._messages.append(found)
            else:
                message, self._payload = found[-1]
                request = ParsedRequest(message, self._payload, self)
                self._messages.append(request)
                self._closes = message.should_close
                if not message.chunked:
                    self._body_length = request.content_length or 0
            if self.task is None:
                self._begin_next()
        elif in_body and payload is not None and not payload.is_eof():
            if self._body_length is None:
                self._keep_rest(piece)
            self._count_body(len(piece))
        elif in_body:
            self._rest = b""
        elif piece:
            self._keep_rest(piece)
            self._count_head(len(piece))

    def _feed(self, parser: Any, piece: bytes) -> list[tuple[RawRequestMessage, StreamReader]] | Refused:
        """Return the request that begins with a piece, if one does, or the error of data that is no request."""
        try:
            messages, upgraded, tail = parser.feed_data(piece)
            while upgraded:  # never granted: what follows is HTTP like everything else
                parser.set_upgraded(False)
                more, upgraded, tail = parser.feed_data(tail)
                messages += more
        except HttpProcessingError as error:
            return malformed(error, self._port.max_head)
        return list(messages)

    def _keep_rest(self, piece: bytes) -> None:
        """Keep the last bytes, which may be a part of the end of a head or of a chunked body."""
        rest = (self._rest + piece)[-len(HEAD_END) :]
        self._rest = b"" if rest == HEAD_END else rest[-3:]

    def _open_parser(self) -> HttpRequestParser:
        return HttpRequestParser(
            self,
            self._loop,
            READ_BUFFER,
            max_line_size=MAX_LINE,
            max_headers=MAX_HEADERS,
            max_field_size=self._port.max_head,
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
        if self.transport is None or self._requests_seen != self._begun:
            return False
        self.close()
        self.transport.abort()
        return True

    def _fail_body(self) -> None:
        """Report malformed or excessive framing to the reader of the body, which aiohttp does not, and read no further."""
        if self._payload is None or self._payload.is_eof():
            return
        if self.task is not None:
            self._payload.set_exception(web.RequestPayloadError())
        self._payload.feed_eof()  # else what is left of it is waited for after the response
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
        """Write the error and close. While requests wait or are served nothing is written: the connection closes then."""
        transport = self.transport
        busy = self.task is not None or bool(self._messages)
        self.close()
        if transport is None or busy:
            return
        self._stop_timer()
        self._send_error(error)
        if transport.can_write_eof():
            transport.write_eof()
        self._timer = self._loop.call_later(LINGER_S, transport.close)

    def _send_error(self, error: Refused) -> None:
        if self.transport is not None:
            CallerConnection(self, self.transport, http_1_1=True, keep_alive=False).refuse(error, new_id(), {}, ERRORS)
