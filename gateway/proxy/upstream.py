"""One HTTP/1.1 call to an upstream, on a connection from aiohttp's pool.

DNS, TLS, proxies, keep-alive and limits remain aiohttp's. For the time of the answer its transport is given to a small protocol
over llhttp, so that what one read of the socket brought reaches the caller in one write, without a task switch.

aiohttp's own protocol reads in another way than `UpstreamConnection`, and a transport asks how to read only when reading begins:
to give it to the one and back would cost four system calls a request. So a protocol that reads in the same way, `IdleConnection`,
stands in front of aiohttp's in the pool, and passes on what happens.

`AIOHTTP_ATTRIBUTES` lists what this file uses of aiohttp without its documentation; a test fails when an installed aiohttp lacks
one. `gateway.proxy.pool` calls the connector.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol

import httptools
from multidict import CIMultiDict, MultiDict, MultiDictProxy

from gateway.chat.request import BodyPart
from gateway.proxy import framing
from gateway.proxy.scheduler import Turns

try:
    import cython
except ImportError:  # nothing is compiled here
    from gateway.base import compiled as cython

if TYPE_CHECKING:
    from aiohttp.connector import Connection

AIOHTTP_ATTRIBUTES: Final = ("transport", "protocol", "release", "close")
"""Of `aiohttp.connector.Connection`, as read in 3.14.5: the socket's transport, aiohttp's own protocol for it, and the two ways
to give it back to the pool.
"""

MAX_HEAD: Final = 64 * 1024
LINGER_S: Final = 0.5
MAX_SURPLUS: Final = 64 * 1024
"""Bytes that may arrive after the answer before the connection is closed."""

BUFFER: Final = bytearray(16 * 1024)
"""Every read of every upstream goes into this buffer. The data has been copied when the read returns, so that one is enough. Its
size bounds what a stream holds, and the time of a read.
"""
_received: Any = BUFFER
"""The same as a pointer, where this is compiled: a part of it is copied without further objects."""
SMALL_READ: Final = 4 * 1024
"""A longer read is counted, and passed on at once only while there are few of them: a whole short answer arrives so. Else the
connection waits for its turn and is not read meanwhile, as after a read that has filled the buffer, so that more may follow.
"""
_small_read = SMALL_READ
"""The same as a number of C."""

OnData = Callable[[bytes], bool | None]


class ChunkTaker(Protocol):
    """What may take a chunk as it is: a `Relay`."""

    def passes(self, chunk: bytes, begin: int) -> bool:
        """Pass on a chunk, whose data begins at `begin`. Return false where it has to be read."""


class InvalidResponse(Exception):
    """The upstream does not speak HTTP/1.1, or not as requested."""


class UpstreamState(Enum):
    """The state of a call. Data after one of the last four states belongs to no request."""

    WAITING = "nothing was received"
    HEAD = "part of the response was received, and its head is not complete"
    BODY = "the head is complete, and the body is not"
    REUSABLE = "the response is complete, and the connection may carry another request"
    COMPLETE = "the response is complete, and the connection must be closed"
    FAILED = "the response broke off, or is invalid"
    LOST = "the connection was closed before anything was received"


# The name of a module is looked up faster than a member of an enum, and these are needed at each read.
_WAITING: Final = UpstreamState.WAITING
_HEAD: Final = UpstreamState.HEAD
_BODY: Final = UpstreamState.BODY
_REUSABLE: Final = UpstreamState.REUSABLE
_COMPLETE: Final = UpstreamState.COMPLETE
_LOST: Final = UpstreamState.LOST

_BUFFER: Final = bytearray(1024)
"""Bytes that arrive while no request waits for an answer: usually a few before the upstream closes, or none."""

UPSTREAM_ID: Final = "x-request-id"
OTHER_ID: Final = "request-id"
"""Anthropic's name of the same."""
READ: Final = frozenset(
    (
        *(b"content-type", b"content-encoding", b"content-length", b"transfer-encoding"),
        *(UPSTREAM_ID.encode(), OTHER_ID.encode()),
        *(b"retry-after", b"retry-after-ms", b"x-should-retry", b"date"),
    )
)
"""The headers of an answer that the gateway reads. The others, often twenty, are not kept."""
_HEAD_OF_CHUNKS: Final = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
"""What the parser is given in place of the head that was read by hand."""
MAX_ID: Final = 128
ID: Final = re.compile(r"[!-~]+")
TRACE_VALUE: Final = re.compile(r"[\x21-\x7e][\x20-\x7e]{0,511}")


class ResponseReader:
    """What a connection does, without the class of asyncio's protocols, which a class with C attributes cannot extend.

    `on_head` is called with it, once: when status and headers are there, or when there is a `failure`. From `flow_to` on, `on_data`
    gets the body bytes of each read in one piece, and `on_end(clean)` is called once, with whether the response ended as its
    framing announced. Where `on_data` returns true, it has kept data for later: it is called again, without data, when it is
    the connection's turn, and before anything else is read or the end is reported.
    """

    __slots__ = (
        "_backlog",
        "_by_hand",
        "_connection",
        "_head",
        "_head_bytes",
        "_headers",
        "_in_chunk",
        "_keep",
        "_line_ended",
        "_linger",
        "_media_type",
        "_on_data",
        "_on_end",
        "_parsed_head_bytes",
        "_parser",
        "_paused",
        "_pieces",
        "_pieces_in_body",
        "_pooled_protocol",
        "_reading",
        "_relay",
        "_state",
        "_surplus",
        "_transport",
        "_turns",
        "failure",
        "framed",
        "named",
        "on_body",
        "on_head",
        "queued",
        "status",
    )

    def __init__(
        self, connection: Connection, turns: Turns, keep: Callable[[UpstreamConnection], None] | None = None
    ) -> None:
        """Take a connection from the pool. `keep` takes it back where it may carry another request, else the pool does."""
        transport, pooled = connection.transport, connection.protocol
        if transport is None or pooled is None:
            raise ConnectionResetError("the pooled connection was closed")
        self._connection: Any = connection
        self._transport: Any = transport
        self._pooled_protocol = pooled
        self._turns = turns
        self._keep = keep
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append
        """Called by the parser. It is the list's method, so that a piece of an event costs no Python call."""
        self._parser: Any = httptools.HttpResponseParser(self)
        self._linger: asyncio.TimerHandle | None = None
        self._surplus = 0
        self._reading = True
        self._relay: ChunkTaker | None = None
        self._on_data: OnData | None = None
        self._on_end: Callable[[bool], None] | None = None
        self.on_head: Callable[[UpstreamConnection], None] | None = None
        self._expect_answer()
        take(transport, self)  # type: ignore[arg-type]

    def _expect_answer(self) -> None:
        self._pieces.clear()
        self._pieces_in_body = sys.maxsize
        self._in_chunk = True
        """Whether the parser is within a chunk, or before the first one."""
        self._line_ended = False
        """Whether the last read ended with a line. Else it may have cut the size of a chunk."""
        self._state = _WAITING
        self._head_bytes = 0
        self._parsed_head_bytes = 0
        self.framed = False
        """Whether the head says where the body ends: of another one, the end of the connection is the end, cut or not."""
        self._paused = False
        self._backlog = False
        self.queued = False
        """The upstream sent more than is passed on at once, and waits for its turn. Nothing is read meanwhile."""
        self.status = 0
        self._by_hand = False
        """The parser has not seen the head, and all since were whole chunks."""
        self.named = True
        """The answer may have an id."""
        self._head = b""
        self._media_type: str | None = None
        self._headers: CIMultiDict[str] | None = None
        self.failure: InvalidResponse | ConnectionError | None = None

    @property
    def answered(self) -> bool:
        """Whether the upstream sent anything."""
        return self._state not in (_WAITING, _LOST)

    @property
    def headers(self) -> CIMultiDict[str]:
        """The headers of the answer that are read."""
        if self._headers is None:
            lines = [line.partition(b":") for line in self._head.split(b"\r\n")[1:]]
            self._headers = CIMultiDict(
                (name.decode(), value.strip().decode()) for name, _, value in lines if name.lower() in READ
            )
        return self._headers

    def keep_only_id(self) -> None:
        """Free the headers of an answer that is passed on. Providers send some kilobytes of them."""
        if self.named:
            keep_only_id(self.headers)
        self._head = b""

    @property
    def encoded(self) -> bool:
        """Whether the body is compressed, which was not requested."""
        return self.headers.get("Content-Encoding", "identity").lower() != "identity"

    @property
    def media_type(self) -> str:
        """The media type of the body; empty for an encoded one."""
        if self._media_type is not None:
            return self._media_type
        return "" if self.encoded else framing.media_type_of(self.headers.get("Content-Type", ""))

    def send(self, message: Sequence[BodyPart]) -> None:
        """Write the whole request, in one call."""
        self._transport.writelines(message)

    def flow_to(self, on_data: OnData, on_end: Callable[[bool], None], relay: ChunkTaker | None = None) -> None:
        """Pass the body on, beginning with the data that has arrived already. A `relay` is given chunks as they are, first."""
        self._relay = relay
        self._on_data = on_data
        self._on_end = on_end
        self._paused = False
        self._serve()

    def pause(self) -> None:
        """Stop reading: the caller is slower than the upstream."""
        self._paused = True
        self._stop_reading()

    def resume(self) -> None:
        """Pass on the rest of the last read, and read again."""
        if self._paused:
            self._paused = False
            if self._backlog or self._pieces:
                self._queue()
            else:
                self._read_on()

    def release(self, *, at_end: bool = False) -> None:
        """Give the connection back to the pool if it may carry another request; close it otherwise.

        `at_end`: wait until the body has ended, but not longer than `LINGER_S`. What arrives is discarded.
        """
        if at_end and not self.ended:
            self._discard_rest()
            return
        self._on_data = self._on_end = self.on_head = self._relay = None
        if self._reusable:
            if not self._reading:
                self._reading = True
                self._transport.resume_reading()
            (self._keep or ResponseReader.give_back)(self)  # type: ignore[arg-type]
        else:
            self._connection.close()
            self._transport.abort()
            if not self.ended:
                self._state = UpstreamState.FAILED if self.answered else UpstreamState.LOST
            self._forget()

    def give_back(self) -> None:
        """Give a connection whose answer has ended back to the pool."""
        self._transport.set_protocol(IdleConnection(self._pooled_protocol))
        self._connection.release()
        self._forget()

    def again(self) -> bool:
        """Expect the answer to another request. Return false where the connection must not carry one, and is closed."""
        if self._reusable and not self.queued:
            self._expect_answer()
            return True
        self._connection.close()
        self._forget()
        return False

    @property
    def _reusable(self) -> bool:
        return self._state is _REUSABLE and not self._transport.is_closing()

    def _forget(self) -> None:
        # A TLS transport keeps the methods of its last protocol with a buffer. Without this deletion, only the garbage
        # collector would free both, and 256 KiB of the transport.
        self._transport = self._connection = self._keep = None
        self._parser = None  # breaks a reference cycle

    # Not by functions within a function: where that is compiled, they refer to each other.

    def _discard_rest(self) -> None:
        self._surplus = 0
        self._linger = asyncio.get_running_loop().call_later(LINGER_S, self._end_discard)
        self.flow_to(self._discard, self._end_discard)

    def _discard(self, data: bytes) -> None:
        self._surplus += len(data)
        if self._surplus > MAX_SURPLUS:
            self._end_discard()

    def _end_discard(self, clean: bool = False) -> None:
        linger, self._linger = self._linger, None
        if linger is not None:
            linger.cancel()
            self.release()

    # Called by the transport.

    def get_buffer(self, sizehint: int) -> bytearray:
        return BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        """Receive the first `nbytes` of `BUFFER`, which a read has filled. Nearly always they are whole chunks."""
        data = _received[:nbytes] if cython.compiled else bytes(BUFFER[:nbytes])
        on_data, pieces = self._on_data, self._pieces
        if self._state is _WAITING:
            self._state = _HEAD
            if not (cython.compiled and self._takes_head(data)):  # by the interpreter, the parser is faster
                self._parse(data)
        elif self._state is not _BODY and self.ended:
            self._refuse_surplus()
            return
        elif self._in_chunk or not self._line_ended or nbytes > _small_read:
            self._parse(data)
        elif self._passes(data):
            return
        elif not self._takes_chunks(data, 0):
            self._parse(data)
        if nbytes > _small_read and on_data is not None:
            began = time.thread_time()
            if nbytes == len(BUFFER) or self._turns.is_spent(began):
                self._queue()
            else:
                self._pass_on()
                self._turns.count(began)
        elif self._state is _BODY and on_data is not None and len(pieces) == 1:
            if on_data(pieces.pop()):
                self._backlog = True
                self._queue()
        else:
            self._pass_on()

    def _passes(self, data: bytes) -> bool:
        if self._relay is None or self._pieces or self._backlog or self.queued or self._paused:
            return False
        begin = framing.begin_of_chunk(data)
        return begin > 0 and self._relay.passes(data, begin)

    def _takes_head(self, data: bytes) -> bool:
        """Take the head of an ordinary stream, and what follows it. Return false for any other data, which is parsed."""
        found = framing.ordinary_head(data)
        if found is None or found[0] > MAX_HEAD:
            return False
        at, self._media_type, self.named = found
        text = data
        self._by_hand, self._head = True, text[:at]
        self._state, self.status, self.framed, self._in_chunk, self._line_ended = _BODY, 200, True, False, True
        self._report_head()
        if at < len(data) and not self._takes_chunks(data, at):
            self._parse(data[at:])
        return True

    def _takes_chunks(self, data: bytes, at: int) -> bool:
        """Take whole chunks to the end of a read, the last one too. Return false for any other data."""
        last = self._by_hand and data.endswith(b"0\r\n\r\n")
        end = len(data) - 5 if last else len(data)
        if whole := framing.whole_chunks(data, at, end):
            self._pieces.append(whole)
        elif not last or at != end:
            return False
        if last:
            self._state = _REUSABLE
            self._pieces_in_body = len(self._pieces)
        return True

    def _parse(self, data: bytes) -> None:
        self._line_ended = data.endswith(b"\n")
        try:
            if self._by_hand:
                self._parser.feed_data(_HEAD_OF_CHUNKS)
                self._by_hand = False
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade, InvalidResponse):
            self._fail(InvalidResponse("the answer is not HTTP/1.1"))
        if self._state is _HEAD:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD:
                self._fail(InvalidResponse("the head of the answer is too long"))

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._pooled_protocol.connection_lost(exc)
        if self._state is _BODY:
            whole = not self.framed and exc is None
            self._state = UpstreamState.COMPLETE if whole else UpstreamState.FAILED
        elif not self.ended:
            self._fail(ConnectionResetError("the upstream closed the connection"))
        self._pass_on()

    # Called by the parser.

    def on_message_begin(self) -> None:
        if self.ended:  # also where it is a part of a head, which the parser would keep for the next answer
            self._refuse_surplus()

    def on_chunk_header(self) -> None:
        self._in_chunk = True

    def on_chunk_complete(self) -> None:
        self._in_chunk = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._by_hand:
            return
        self._parsed_head_bytes += len(name) + len(value)
        if self._parsed_head_bytes > MAX_HEAD:
            raise InvalidResponse("the head of the answer is too long")
        if name.lower() in READ and not self.ended:
            self.headers.add(name.decode("latin-1"), value.decode("latin-1"))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self._by_hand or self.ended:
            return
        if status < 200:
            if status == 101:
                raise InvalidResponse("switching protocols was not requested")
            self.headers.clear()
            return
        self.status = status
        self.framed = "Content-Length" in self.headers or "Transfer-Encoding" in self.headers or status in (204, 304)
        self._state = _BODY
        self._report_head()

    def on_message_complete(self) -> None:
        if self._state is _BODY:
            keep = self._parser.should_keep_alive()
            self._state = _REUSABLE if keep else _COMPLETE
            self._pieces_in_body = len(self._pieces)  # what the parser may find after it belongs to no request

    @property
    def ended(self) -> bool:
        """Whether nothing more of the response can arrive: it is complete, or it failed."""
        return self._state not in (_BODY, _HEAD, _WAITING)

    def _refuse_surplus(self) -> None:
        """Bytes arrived after the end of the response: the connection must not carry another request."""
        if self._state is UpstreamState.REUSABLE:
            self._state = UpstreamState.COMPLETE

    def _pass_on(self) -> None:
        if self._on_data is None or self._on_end is None or self.queued:
            return
        data = b"".join(self._pieces[: self._pieces_in_body])
        if self._paused and (data or self._backlog):
            return
        self._pieces.clear()
        if data or self._backlog:
            self._backlog = bool(self._on_data(data))
        if self._backlog:
            self._queue()
        elif self.ended and self._on_end is not None:
            on_end, self._on_end = self._on_end, None
            on_end(self._state in (_REUSABLE, _COMPLETE))

    def _queue(self) -> None:
        """Wait for a turn, and do not read before."""
        if not self.queued:
            self.queued = True
            self._stop_reading()
            self._turns.wait(self._serve)

    def _serve(self) -> None:
        """Pass on the data that is left, and read on once none is."""
        self.queued = False
        self._pass_on()
        if self._on_data is not None:
            self._read_on()

    def _stop_reading(self) -> None:
        if self._reading and not self.ended:
            self._reading = False
            self._transport.pause_reading()

    def _read_on(self) -> None:
        if not (self._reading or self._paused or self.queued or self.ended):
            self._reading = True
            self._transport.resume_reading()

    def _fail(self, error: InvalidResponse | ConnectionError) -> None:
        before, self._state = self._state, UpstreamState.FAILED
        if before is _WAITING:
            self._state = UpstreamState.LOST
        if before in (_WAITING, _HEAD):
            self.failure = error
            self._report_head()

    def _report_head(self) -> None:
        if self.on_head is not None:
            self.on_head(self)  # type: ignore[arg-type]


class UpstreamConnection(ResponseReader, asyncio.BufferedProtocol):
    """The response to one request, see `ResponseReader`."""

    __slots__ = ()


class IdleConnection(asyncio.BufferedProtocol):
    """The protocol of a connection while it is in the pool, in front of aiohttp's."""

    __slots__ = ("_pooled",)

    def __init__(self, pooled: asyncio.Protocol) -> None:
        self._pooled = pooled

    def get_buffer(self, sizehint: int) -> bytearray:
        return _BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        self._pooled.data_received(bytes(_BUFFER[:nbytes]))

    def eof_received(self) -> bool | None:
        return self._pooled.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._pooled.connection_lost(exc)


def take(transport: asyncio.Transport, protocol: asyncio.BufferedProtocol) -> None:
    """Give the transport of a connection from the pool to `protocol`, which has a buffer."""
    if isinstance(transport.get_protocol(), (IdleConnection, UpstreamConnection)):
        transport.set_protocol(protocol)
    else:
        transport.pause_reading()
        transport.set_protocol(protocol)
        transport.resume_reading()


def trace_lines(headers: Mapping[str, str]) -> str:
    """Return the lines of a request's head that pass on a trace (W3C Trace Context): the caller's, or that of a plugin.

    Several `tracestate` are one list. They mean nothing without one `traceparent`.
    """
    parent = headers.get("traceparent")
    if parent is None or not TRACE_VALUE.fullmatch(parent):
        return ""
    states = headers.get("tracestate")
    if isinstance(headers, (MultiDict, MultiDictProxy)):
        if len(headers.getall("traceparent")) > 1:
            return ""
        states = ",".join(headers.getall("tracestate", ()))
    if not states or not TRACE_VALUE.fullmatch(states):
        return f"traceparent: {parent}\r\n"
    return f"traceparent: {parent}\r\ntracestate: {states}\r\n"


def kept_id(headers: Mapping[str, str]) -> str:
    """Return the id that an upstream gave its answer, up to 128 characters; empty where it is not visible ASCII."""
    value = headers.get(UPSTREAM_ID) or headers.get(OTHER_ID, "")
    return value[:MAX_ID] if value and ID.fullmatch(value) else ""


def keep_only_id(headers: MutableMapping[str, str]) -> None:
    """Free the headers of an answer that is passed on. Providers send some kilobytes of them."""
    upstream_id = headers.get(UPSTREAM_ID) or headers.get(OTHER_ID)
    headers.clear()
    if upstream_id is not None:
        headers[UPSTREAM_ID] = upstream_id
