"""The caller's connection during one exchange, and what may be written to it.

1. Every response is written here, head included: no header of aiohttp or of an upstream is sent.
2. A stream that failed is cut off without the final chunk, so that no client can take a truncated answer for a complete one.
   The connection is closed a tenth of a second after the error event, because some clients discard what they have not read
   when a connection fails.
3. A caller that does not read cannot keep a socket: what is unsent `UNREAD_S` after the end of a response is dropped.
4. A caller that disconnects is reported to `on_gone`; nothing is cancelled here.
5. A head is rendered before anything is written. One that cannot be sent raises `InvalidHeader`.
6. Where this is compiled, a chunk goes to the kernel at once while the transport has nothing unsent: of a transport, a write
   takes ten times the instructions. What the kernel does not take is the transport's, and so is every error.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from email.utils import formatdate
from http import HTTPStatus
from time import time as now
from typing import Any, Final, Protocol

from gateway.base.errors import GatewayError, Refused, headers_of
from gateway.operations.wire_format import Errors

try:
    import cython
except ImportError:  # nothing is compiled here
    from gateway.base import compiled as cython

CUT_AFTER_S: Final = 0.1
UNREAD_S: Final = 30.0
"""How long the rest of a finished response may wait to be read."""

UNKNOWN: Final = -2
NONE: Final = -1

_CHUNK_HEADS: Final = tuple(b"%x\r\n" % size for size in range(1024))
"""The first line of each small chunk: formatting a number costs more than the rest of a write."""

_JSON: Final = "application/json; charset=utf-8"

STREAM_HEADERS: Final = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
"""The headers of a stream that begins."""
_STREAM_LINES: Final = "".join(f"\r\n{name}: {value}" for name, value in STREAM_HEADERS.items())

MAX_SHOWN: Final = 64
"""Characters of the name of an invalid header that are logged."""

_STATUS_LINES: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}
_STARTS: Final[dict[int, Any]] = {}
"""How heads of this second begin, by status; 0 has the second."""
_LINES: Final[dict[str, str]] = {}
"""What stands before the value of each header that was sent: most responses have the same ones."""
_MORE_LINES: Final[dict[str, str]] = {}
"""The same of streams, beside `STREAM_HEADERS`."""
MAX_LINES: Final = 1024
_NOT_IN_NAME: Final = re.compile(r"[^!#$%&'*+.^_`|~0-9A-Za-z-]")
_NOT_IN_VALUE: Final = re.compile(r"[^\t\x20-\x7e\x80-\xff]")

OWN: Final = frozenset({"connection", "content-length", "date", "transfer-encoding", "x-request-id"})
"""Headers that the gateway writes itself. Two that say where the body ends let a client and a proxy in between disagree about that;
two ids name two requests.
"""


class ConnectionOwner(Protocol):
    """The protocol of a connection. It reports to the exchange that its connection currently serves."""

    caller: CallerConnection | None
    cut_off: bool
    """Whether the gateway closes the connection, and not the caller."""


class CallerConnection:
    """The caller's connection, for the time of one exchange."""

    __slots__ = (
        "_bodyless",
        "_descriptor",
        "_flushed",
        "_keep_alive",
        "_last",
        "_owner",
        "_transport",
        "chunked",
        "finished",
        "gone",
        "on_flow",
        "on_gone",
        "request_id",
        "started",
    )

    def __init__(
        self,
        owner: ConnectionOwner,
        transport: asyncio.Transport | None,
        *,
        http_1_1: bool,
        keep_alive: bool,
        bodyless: bool = False,
    ) -> None:
        """Take the connection over. `transport` is None where the caller has left, `bodyless` for a request by HEAD."""
        self._owner = owner
        self._transport = transport or asyncio.Transport()
        self._bodyless = bodyless
        self._keep_alive = keep_alive
        self._last = b""
        self._descriptor = UNKNOWN
        """Of the socket, without TLS; below 0 for any other connection."""
        self._flushed = False
        """The transport has nothing unsent, and the descriptor is known."""
        self.chunked = http_1_1
        self.request_id = ""
        """The id of the exchange, which each response names."""
        self.started = False
        self.finished = False
        self.gone = transport is None
        self.on_gone: Callable[[], None] | None = None
        self.on_flow: Callable[[bool], None] | None = None
        """Called with True when the caller's write buffer is full, with False when it has drained."""
        owner.caller = self

    @property
    def keep_alive(self) -> bool:
        """Whether the connection may carry another request after this response."""
        return self._keep_alive and self.finished and not self.gone

    @property
    def unsent(self) -> int:
        """Bytes that were written and that the kernel has not taken yet."""
        return 0 if self.gone else self._transport.get_write_buffer_size()

    def close_after(self) -> None:
        """Close the connection after the response: part of what it carried was not read."""
        self._keep_alive = False

    def reply(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Write a complete response."""
        head = self._head(status, headers, f"Content-Length: {len(body)}\r\n")
        self.started = self.finished = True
        self._write(head if status == 304 or self._bodyless else head + body)
        self._limit_wait_for_reader()

    def prepare(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Set a complete response that `finish` will write."""
        self._last = self._head(status, headers, f"Content-Length: {len(body)}\r\n") + body
        self.started = True

    def refuse(self, error: Refused, request_id: str, headers: Mapping[str, str], errors: Errors) -> None:
        """Write a complete error response, as `errors` are told."""
        self.request_id = request_id
        merged = {"Content-Type": _JSON, **headers, **headers_of(error)}
        self.reply(error.status, merged, errors.body(error, request_id))

    def stream_head(self, headers: Mapping[str, str]) -> bytes:
        """Return the head of a stream, for `begin`: with `STREAM_HEADERS`, and these."""
        return self._head(200, headers, "Transfer-Encoding: chunked\r\n" if self.chunked else "", _STREAM_LINES)

    def begin(self, head: bytes, first: bytes) -> None:
        """Write the head of a stream and its first events, in one call."""
        self.started = True
        self._last = b"0\r\n\r\n" if self.chunked else b""
        # An empty chunk would end the response.
        self._write(head + (b"%x\r\n%b\r\n" % (len(first), first) if self.chunked and first else first))

    def write(self, data: bytes) -> None:
        """Write more of the stream, in one call. `data` is not empty. Does nothing once the caller is gone."""
        if not self.gone:
            if self.chunked:
                size = len(data)
                head = _CHUNK_HEADS[size] if size < len(_CHUNK_HEADS) else b"%x\r\n" % size
                data = b"".join((head, data, b"\r\n"))
            self._write(data)

    def write_chunk(self, chunk: bytes) -> None:
        """Write more of a stream in chunks, which is one already."""
        if cython.compiled and not self.gone and (self._flushed or self._is_flushed()):
            sent = write(self._descriptor, chunk, len(chunk))  # type: ignore[name-defined]  # noqa: F821
            if sent == len(chunk):
                return
            chunk = chunk[max(sent, 0) :]
        self._write(chunk)

    def finish(self) -> None:
        """Write the end of a stream, or the response that `prepare` set. Does nothing after `reply`."""
        if self.finished:
            return
        self.finished = True
        if self._last:
            self._write(self._last)
        self._limit_wait_for_reader()

    async def cut(self, last: bytes) -> None:
        """Cut a stream off without its end. `last` is an error event, which the caller gets the time to read."""
        if last:
            self.write(last)
        self._keep_alive = False
        if not self.gone:
            await asyncio.sleep(CUT_AFTER_S)
            self._owner.cut_off |= not self.gone
        if not self.gone:
            self._transport.close()
            self._limit_wait_for_reader()

    def abort(self) -> None:
        """Drop the connection and all that is unsent: the caller does not read."""
        self._keep_alive = False
        if not self.gone:
            self._owner.cut_off = True
            self._transport.abort()

    def send_continue(self) -> None:
        """Tell a caller that sent `Expect: 100-continue` to send the body."""
        self._write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def connection_lost(self) -> None:
        """Note that the connection is gone. Called by the protocol."""
        self.gone = True
        if self.on_gone is not None and not self.finished:
            self.on_gone()

    def _limit_wait_for_reader(self) -> None:
        if self.unsent:
            asyncio.get_running_loop().call_later(UNREAD_S, self._drop_unread)

    def _drop_unread(self) -> None:
        if self.unsent and self._owner.caller is self:
            self._transport.abort()

    def _write(self, data: bytes) -> None:
        self._flushed = False
        if not self.gone:
            self._transport.write(data)

    def _is_flushed(self) -> bool:
        if self._descriptor == UNKNOWN:
            sock = self._transport.get_extra_info("socket")
            encrypted = self._transport.get_extra_info("sslcontext") is not None
            self._descriptor = NONE if encrypted or sock is None else sock.fileno()
        self._flushed = self._descriptor >= 0 and self.unsent == 0
        return self._flushed

    def _head(self, status: int, headers: Mapping[str, str], framing: str, constant: str = "") -> bytes:
        if self.request_id:
            framing += f"x-request-id: {self.request_id}\r\n"
        if not self._keep_alive:
            framing += "Connection: close\r\n"
        return render_head(status, headers, framing, constant)


class InvalidHeader(GatewayError):
    """A header cannot be sent. The message names it, and does not contain its value."""


def render_head(status: int, headers: Mapping[str, str], framing: str, constant: str = "") -> bytes:
    """Return the head of a response. `framing`: the lines of the gateway's own. Raises `InvalidHeader`.

    `constant`: the lines of `STREAM_HEADERS`, of a stream that has them except where `headers` has others.
    """
    given = headers if type(headers) is dict else dict(headers)
    lines, known = [_start(status, int(now())), constant], _MORE_LINES if constant else _LINES
    for name, value in given.items():
        line = known.get(name)
        if line is None:
            if constant and name in STREAM_HEADERS:
                return render_head(status, {**STREAM_HEADERS, **headers}, framing)
            line = _new_line(name, known)
        if line is None:
            raise _invalid(headers)
        lines.append(line)
        lines.append(value)
    text = "".join(lines[3::2])  # one look at all values together costs less than one at each
    if not ((text.isascii() and text.isprintable()) or all(map(_is_sendable, headers, lines[3::2]))):
        raise _invalid(headers)
    lines += ("\r\n", framing, "\r\n")
    return "".join(lines).encode("latin-1")


def valid_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that can be sent."""
    return {name: value for name, value in headers.items() if _is_valid(name, value)}


def _new_line(name: str, known: dict[str, str]) -> str | None:
    """Return what stands before the value of a header, and keep it; None for a name that cannot be sent."""
    if not _is_valid(name, ""):
        return None
    if len(known) == MAX_LINES:
        known.clear()
    return known.setdefault(name, f"\r\n{name}: ")


def _invalid(headers: Mapping[str, str]) -> InvalidHeader:
    """Return the error about the first header that cannot be sent."""
    name = next(name for name, value in headers.items() if not _is_valid(name, value))
    if str(name).lower() in OWN:
        return InvalidHeader(f"the response header {name!r} cannot be sent: the gateway writes its own")
    return InvalidHeader(
        f"the response header {str(name)[:MAX_SHOWN]!r} cannot be sent: a name is a token, and a value has no control "
        "characters and none outside latin-1"
    )


def _is_valid(name: str, value: str) -> bool:
    return _is_sendable(name, value) and str(name).lower() not in OWN


def _is_sendable(name: str, value: str) -> bool:
    return bool(name) and not (_NOT_IN_NAME.search(str(name)) or _NOT_IN_VALUE.search(str(value)))


def _start(status: int, second: int) -> str:
    """Return the status line, and the `Date` line without its end (RFC 9110, 6.6.1), which are made once a second."""
    if _STARTS.get(0) != second:
        _STARTS.clear()
        _STARTS[0] = second
    start = _STARTS.get(status)
    if start is None:
        date = formatdate(second, usegmt=True)
        line = _STATUS_LINES.get(status) or f"HTTP/1.1 {status} \r\n"
        start = _STARTS[status] = f"{line}Date: {date}"
    return start
