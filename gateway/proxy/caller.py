"""The caller's side of an exchange: its socket, and what may be written to it.

1. Every answer is written here, whole heads included, so that no header leaves that is not on our list.
2. A stream that went wrong never ends properly: it is cut without the final chunk, so that no client can take a truncated
   answer for a whole one. The cut comes a tenth of a second after the error event, since some clients discard what they
   have not read when the connection fails.
3. Nobody who does not read keeps a socket for long: what waits to be sent a while after the end of an answer is dropped.
4. The caller leaving is told to whoever registered with `on_gone`; it cancels nothing by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from gateway.errors import Refused, headers_of, internal, render
from gateway.request_id import new_id

CUT_AFTER_S: Final = 0.1
UNREAD_S: Final = 30.0
"""How long what was written of an ended answer may wait to be read."""
MALFORMED: Final = "This is not a well-formed HTTP/1.1 request; check the request line, the headers and the framing."

_STATUS_LINES: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}
_JSON: Final = "application/json; charset=utf-8"


class CallerConnection:
    """One exchange's hold on the caller's connection."""

    __slots__ = (
        "_keep_alive",
        "_last",
        "_protocol",
        "_transport",
        "chunked",
        "finished",
        "gone",
        "on_flow",
        "on_gone",
        "started",
    )

    def __init__(
        self, protocol: CallerProtocol, transport: asyncio.Transport, *, http_1_1: bool, keep_alive: bool
    ) -> None:
        self._protocol = protocol
        self._transport = transport
        self._keep_alive = keep_alive
        self._last = b""
        self.chunked = http_1_1
        self.started = False
        self.finished = False
        self.gone = False
        self.on_gone: Callable[[], None] | None = None
        self.on_flow: Callable[[bool], None] | None = None
        """Told True when the caller's buffer is full, False when it has drained."""
        protocol.side = self

    @property
    def keep_alive(self) -> bool:
        """Whether the connection may carry another request after this answer."""
        return self._keep_alive and self.finished and not self.gone

    @property
    def unsent(self) -> int:
        """Bytes that the kernel has not taken yet."""
        return 0 if self.gone else self._transport.get_write_buffer_size()

    def close_after(self) -> None:
        """Do not keep the connection: something on it was not read."""
        self._keep_alive = False

    def reply(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """A whole answer."""
        self.started = self.finished = True
        head = self._head(status, headers, f"Content-Length: {len(body)}\r\n")
        self._write(head if status == 304 else head + body)
        self._wait_for_reader()

    def promise(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """A whole answer of which nothing leaves before `finish`."""
        self.started = True
        self._last = self._head(status, headers, f"Content-Length: {len(body)}\r\n") + body

    def refuse(self, error: Refused, request_id: str, headers: Mapping[str, str]) -> None:
        """A whole error answer, in the one error shape."""
        merged = {"Content-Type": _JSON, **headers, **headers_of(error)}
        self.reply(error.status, merged, render(error, request_id))

    def begin(self, headers: Mapping[str, str], first: bytes) -> None:
        """The head of a stream and its first events, in one write."""
        self.started = True
        self._last = b"0\r\n\r\n" if self.chunked else b""
        if not self.chunked:
            self._keep_alive = False
        head = self._head(200, headers, "Transfer-Encoding: chunked\r\n" if self.chunked else "")
        # An empty chunk would be the proper end of the answer.
        self._write(head + (b"%x\r\n%b\r\n" % (len(first), first) if self.chunked and first else first))

    def write(self, data: bytes) -> None:
        """More of the stream, which is not empty, in one write. Nothing happens once the caller is gone."""
        if not self.gone:
            self._transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self.chunked else data)

    def finish(self) -> None:
        """The proper end of a stream, or what was promised; nothing for an answer that was whole before."""
        if self.finished:
            return
        self.finished = True
        if self._last:
            self._write(self._last)
        self._wait_for_reader()

    async def cut(self, last: bytes) -> None:
        """The improper end of a stream: `last` is the error event, which the caller gets the time to read."""
        if last:
            self.write(last)
        self._keep_alive = False
        if not self.gone:
            await asyncio.sleep(CUT_AFTER_S)
        if not self.gone:
            self._transport.close()
            self._wait_for_reader()

    def abort(self) -> None:
        """Drop the connection with all that waits to be sent: the caller does not read."""
        self._keep_alive = False
        if not self.gone:
            self._transport.abort()

    def proceed(self) -> None:
        """Tell a caller that waits for it (`Expect: 100-continue`) to send the body."""
        self._write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def lost(self) -> None:
        """The connection is gone; called by the protocol."""
        self.gone = True
        if self.on_gone is not None and not self.finished:
            self.on_gone()

    def _wait_for_reader(self) -> None:
        if self.unsent:
            asyncio.get_running_loop().call_later(UNREAD_S, self._drop_unread)

    def _drop_unread(self) -> None:
        if self.unsent and self._protocol.side is self:
            self._transport.abort()

    def _write(self, data: bytes) -> None:
        if not self.gone:
            self._transport.write(data)

    def _head(self, status: int, headers: Mapping[str, str], framing: str) -> bytes:
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        connection = "" if self._keep_alive else "Connection: close\r\n"
        start = _STATUS_LINES.get(status) or f"HTTP/1.1 {status} \r\n"
        return f"{start}{lines}{framing}{connection}\r\n".encode("latin-1")


class CallerProtocol(web.RequestHandler):
    """aiohttp's server protocol, which also tells the exchange on it when the caller leaves or reads too slowly."""

    __slots__ = ("side",)

    side: CallerConnection | None

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.side = None

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.side is not None and self.side.on_flow is not None:
            self.side.on_flow(True)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.side is not None and self.side.on_flow is not None:
            self.side.on_flow(False)

    def connection_lost(self, exc: BaseException | None) -> None:
        side, self.side = self.side, None
        super().connection_lost(exc)
        if side is not None:
            side.lost()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what is not HTTP, in the one error shape; nothing of what came is repeated."""
        if (self.side is not None and self.side.started) or self.transport is None:
            raise ConnectionError("the answer has begun")
        side = CallerConnection(self, self.transport, http_1_1=True, keep_alive=False)
        status = 431 if isinstance(exc, LineTooLong) else status
        error = Refused(status, "invalid_request", MALFORMED) if status < 500 else internal()
        request_id = new_id()
        side.refuse(error, request_id, {"x-request-id": request_id})
        return Written(side)


class Written(web.StreamResponse):
    """What aiohttp is handed for an answer that is on the socket already."""

    def __init__(self, side: CallerConnection) -> None:
        super().__init__()
        self._side = side

    @property
    def keep_alive(self) -> bool:
        """Whether aiohttp waits for another request on the connection."""
        return self._side.keep_alive

    async def prepare(self, request: web.BaseRequest) -> None:
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        return None
