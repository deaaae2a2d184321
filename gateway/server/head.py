"""A request of a caller: its head, the reader of its body, and the errors of a head.

A request that one read of the socket brought as a whole, as nearly all are, is parsed by a compiled function, where there is one
(`_head.pyx`). It takes only what every parser understands alike: `POST` by HTTP/1.1 with one `Host` and one `Content-Length`,
headers of printable ASCII of which none is sent twice, no coding, no `Expect`, no `Upgrade`, and nothing behind the body. Anything
else is left to aiohttp's parser, which takes eight times the instructions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Final, Protocol

from aiohttp import ClientPayloadError, HttpVersion, HttpVersion11, StreamReader, web
from aiohttp.http import RawRequestMessage
from aiohttp.http_exceptions import BadHttpMessage, HttpProcessingError, LineTooLong
from multidict import CIMultiDict, CIMultiDictProxy

from gateway.base import compiled
from gateway.base.errors import Refused
from gateway.proxy.caller import CallerConnection
from gateway.server.connections import Slot

MAX_LINE: Final = 8190
"""Bytes of a request line."""
MAX_HEADERS: Final = 128
LINGER_S: Final = 2.0
"""How long the rest of a refused request is read and dropped. Closing at once could destroy the response before it is read."""
MALFORMED: Final = "This is not a well-formed HTTP/1.1 request; check the request line, the headers and the framing."

MOST_PATH: Final = MAX_LINE - len("POST  HTTP/1.1\r\n")
SOURCE: Final = Path(__file__).with_name("_head.pyx")

Whole = tuple[str, list[tuple[str, str]], int, bytes]
"""Path, headers, the bytes of their names and values, and the body."""

_head, _ = compiled.load("gateway.server._head", SOURCE)
whole_request: Final[Callable[[bytes, int], Whole | None] | None] = _head.whole_request if _head else None
"""Returns an ordinary request that some data is, whose path has at most so many characters; None for any other data."""

BROKEN: Final = (ClientPayloadError, web.RequestPayloadError, HttpProcessingError)
"""What a reader of a body raises where its framing is broken."""


class CallersConnection(Protocol):
    """The connection of a request, see `gateway.server.protocol.ServerProtocol`."""

    transport: asyncio.Transport | None
    slot: Slot
    caller: CallerConnection | None
    crowded: bool
    cut_off: bool
    unclear: bool

    def release(self) -> None:
        """Free what only a further request needs."""


class ParsedRequest:
    """One request: its head, and the reader of its body."""

    __slots__ = (
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

    def __init__(self, message: RawRequestMessage, content: StreamReader, protocol: CallersConnection) -> None:
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
        self.content: StreamReader | bytes | None = content
        """The reader of the body, or a body that has arrived with the head. None once nothing of it is needed."""
        self.protocol = protocol

    @classmethod
    def whole(cls, whole: Whole, protocol: CallersConnection) -> ParsedRequest:
        """Return a request that was received with its body."""
        request = cls.__new__(cls)
        request.raw_path, headers, request.head_bytes, request.content = whole
        request.method, request.version, request.keep_alive = "POST", HttpVersion11, True
        request.headers = CIMultiDictProxy(CIMultiDict(headers))
        request.content_length = len(whole[3])
        request.protocol = protocol
        return request

    @property
    def ordinary(self) -> bool:
        """Whether the compiled parser took it, so that it has none of the headers by which a request is framed in another way."""
        return type(self.content) is bytes

    @property
    def transport(self) -> asyncio.Transport | None:
        """The caller's connection; None once it is closed."""
        return self.protocol.transport

    def release(self) -> None:
        """Free the reader of the body, which was read."""
        self.content = None

    def is_eof(self) -> bool:
        """Return whether the body has arrived."""
        return not isinstance(self.content, StreamReader) or self.content.is_eof()

    async def discard_rest(self, within_s: float) -> bool:
        """Read and drop what is left of the body. Return whether it has ended."""
        try:
            async with asyncio.timeout(within_s):
                while isinstance(self.content, StreamReader) and not self.content.is_eof():
                    await self.content.readany()
        except (TimeoutError, ConnectionError, *BROKEN) as error:
            error.__traceback__ = None  # the reader keeps the error, which would keep its frames
            return False
        return True

    def set_exception(self, error: BaseException) -> None:
        """Fail further reads of the body."""
        if isinstance(self.content, StreamReader):
            self.content.set_exception(error)
        else:
            self.content = None


def head_too_large(max_bytes: int) -> Refused:
    """Return the error for a request line and headers of more than `max_bytes` together."""
    return Refused(
        431, "invalid_request", f"The headers are larger than {max_bytes} bytes in all. Send fewer or shorter ones."
    )


def malformed(error: HttpProcessingError, max_head: int) -> Refused:
    """Return the error for data that is not HTTP, or has too much of it. Nothing of the data is repeated."""
    if isinstance(error, LineTooLong):
        text = f"The request line is longer than {MAX_LINE} bytes, or a header than {max_head}. Send a shorter one."
        return Refused(431, "invalid_request", text)
    if isinstance(error, BadHttpMessage) and error.message.startswith("Too many headers"):
        return Refused(431, "invalid_request", f"The request has more than {MAX_HEADERS} headers. Send fewer.")
    return Refused(400, "invalid_request", MALFORMED)


def head_too_slow() -> Refused:
    """Return the error for a head that did not arrive within `head_timeout`."""
    return Refused(408, "invalid_request", "The head of the request took too long to arrive. Send it again.")
