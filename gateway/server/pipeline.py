"""What a connection sends, parsed piece by piece by aiohttp's parser: each piece ends where a head or a body ends.

1. So it is known of each byte to which request it belongs.
2. Of requests that are sent ahead, at most `MAX_AHEAD` are parsed, and about `max_head` bytes. The connection is not read while
   there are more.
3. A turn of the event loop begins one request of an address, with as much of its body as is parsed in `TURN_S`, or goes on
   reading one large body. The connections of that address wait for their next turn, and are not read meanwhile.
4. A request to upgrade is never granted: what follows it is parsed like everything else.

This file and `gateway.server.protocol`, which lists them, use private attributes of aiohttp's server.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any, Final

from aiohttp import StreamReader, web
from aiohttp.http import HttpRequestParser, RawRequestMessage

from gateway.proxy.turns import TURN_S
from gateway.server.received import Messages, ReceivedRequest
from gateway.server.turns import BEGIN_S, AddressTurns

MAX_AHEAD: Final = 16
"""Requests that may wait on a connection behind the one that is served. aiohttp parses no more once it has 32."""
PIECE: Final = 1024
"""Bytes of a chunked body that are parsed at once, at most: in chunks of one byte, this takes a third of a millisecond."""
READ_BUFFER: Final = 64 * 1024
"""Bytes of a body that wait for their reader before the connection is no longer read."""
LARGE_READ: Final = 32 * 1024
"""After a longer read of a body, the next read waits for its turn. Else each of many connections is read in every turn of the
event loop."""
READ_S: Final = 0.0003
"""What a read of a body costs, in the order of magnitude. uvloop reads 256,000 bytes at most."""
HEAD_END: Final = b"\r\n\r\n"


class PipelinedHandler(web.RequestHandler, ABC):
    """aiohttp's protocol of one connection, reading in pieces. The methods that count are the derived class's."""

    __slots__ = (
        "_address",
        "_ahead",
        "_ahead_at",
        "_ahead_bytes",
        "_body_length",
        "_closes",
        "_has_turn",
        "_malformed",
        "_max_ahead_bytes",
        "_parser_keeps",
        "_payload",
        "_requests_seen",
        "_rest",
        "_turns",
        "_waits_for_turn",
    )

    def __init__(
        self, server: web.Server, *, max_ahead_bytes: int, turns: AddressTurns, address: str, **settings: Any
    ) -> None:
        super().__init__(server, **settings)
        self._messages = Messages()  # type: ignore[assignment]
        self._turns = turns
        self._address = address
        self._has_turn = self._waits_for_turn = False
        self._max_ahead_bytes = max_ahead_bytes
        self._requests_seen = 0
        self._ahead_bytes = 0
        self._rest = b""
        """The last bytes that were parsed of an incomplete head or chunked body: its end may be split."""
        self._parser_keeps = False
        """Whether the parser stopped within a piece, or before the end of a body, because the body waits for its reader."""
        self._malformed = False
        """Whether nothing after what came last can be read as a request: it is no HTTP, or it closes the connection."""
        self._closes = False
        """Whether the request that was parsed last closes the connection."""
        self._ahead = b""
        """What was received and not parsed yet, from `_ahead_at` on."""
        self._ahead_at = 0
        self._payload: StreamReader | None = None
        self._body_length: int | None = None
        """The length of the body of the request that was parsed last; None if it is chunked."""

    @abstractmethod
    def _count_message(self, *, valid: bool) -> None:
        """Take note of a head that is complete, or, if it is not `valid`, of what is no HTTP."""

    @abstractmethod
    def _count_body(self, size: int) -> None:
        """Count `size` bytes of a body that is not complete, with its framing."""

    @abstractmethod
    def _count_head(self, size: int) -> None:
        """Count `size` bytes of a head that is not complete."""

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
        """Parse what arrived, and what waits from before, piece by piece: nothing is parsed that cannot be served soon."""
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
        """Parse a turn's worth of what waits, and go on reading where no more waits.

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
                request = ReceivedRequest(message, payload, self)
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
        """Keep what may be a part of the end of a head or of a chunked body."""
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
