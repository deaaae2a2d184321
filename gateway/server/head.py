"""A request of a caller: its head, the reader of its body, and the errors of a head."""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import Final, Protocol

from aiohttp import ClientPayloadError, HttpVersion, StreamReader, web
from aiohttp.http import RawRequestMessage
from aiohttp.http_exceptions import HttpProcessingError
from multidict import CIMultiDictProxy

from gateway.base.errors import Refused
from gateway.proxy.caller import CallerConnection
from gateway.server.connections import Slot

MAX_LINE: Final = 8190
"""Bytes of a request line."""
MAX_HEADERS: Final = 128
LINGER_S: Final = 2.0
"""How long the rest of a refused request is read and dropped. Closing at once could destroy the response before it is read."""
MALFORMED: Final = "This is not a well-formed HTTP/1.1 request; check the request line, the headers and the framing."

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
        self.content: StreamReader | None = content
        """The reader of the body. None once nothing of it is needed."""
        self.protocol = protocol

    @property
    def transport(self) -> asyncio.Transport | None:
        """The caller's connection; None once it is closed."""
        return self.protocol.transport

    def release(self) -> None:
        """Free the reader of the body, which was read."""
        self.content = None

    def is_eof(self) -> bool:
        """Return whether the body has arrived."""
        return self.content is None or self.content.is_eof()

    async def discard_rest(self, within_s: float) -> bool:
        """Read and drop what is left of the body. Return whether it has ended."""
        if self.is_eof():
            return True
        try:
            async with asyncio.timeout(within_s):
                while self.content is not None and not self.content.is_eof():
                    await self.content.readany()
        except (TimeoutError, ConnectionError, *BROKEN) as error:
            error.__traceback__ = None  # the reader keeps the error, which would keep its frames
            return False
        return True

    def set_exception(self, error: BaseException) -> None:
        """Fail further reads of the body."""
        if self.content is not None:
            self.content.set_exception(error)


def head_too_large(max_bytes: int) -> Refused:
    """Return the error for a request line and headers of more than `max_bytes` together."""
    return Refused(
        431, "invalid_request", f"The headers are larger than {max_bytes} bytes in all. Send fewer or shorter ones."
    )


def too_many_headers() -> Refused:
    """Return the error for a head with too many headers."""
    return Refused(431, "invalid_request", f"The request has more than {MAX_HEADERS} headers. Send fewer.")


def line_too_long(max_bytes: int) -> Refused:
    """Return the error for a request line, a header or a line of the framing that is too long to be read."""
    text = f"The request line is longer than {MAX_LINE} bytes, or a header than {max_bytes}. Send a shorter one."
    return Refused(431, "invalid_request", text)


def head_too_slow() -> Refused:
    """Return the error for a head that did not arrive within `head_timeout`."""
    return Refused(408, "invalid_request", "The head of the request took too long to arrive. Send it again.")
