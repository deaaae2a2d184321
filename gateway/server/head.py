"""A request of a caller: its head, the reader of its body, and the errors of a head.

A request that one read of the socket brought as a whole, as nearly all are, is parsed by `whole_request`. It takes only what every
parser understands alike: `POST` by HTTP/1.1 with one `Host` and one `Content-Length`, headers of printable ASCII of which none is
sent twice, no coding, no `Expect`, no `Upgrade`, and nothing behind the body. Anything else is left to aiohttp's parser, which
takes eight times the instructions; where nothing is compiled, it is the faster one and takes all.
"""

from __future__ import annotations

import asyncio
import re
from itertools import chain
from typing import Final, Protocol

from aiohttp import ClientPayloadError, HttpVersion, StreamReader, hdrs, web
from aiohttp.http import RawRequestMessage
from aiohttp.http_exceptions import BadHttpMessage, HttpProcessingError, LineTooLong
from multidict import CIMultiDictProxy, istr

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
START: Final = b"POST /"
VERSION: Final = b" HTTP/1.1\r\n"
MOST_NAMES: Final = 256
_PRINTABLE: Final = bytes(range(0x20, 0x7F))
_NAME: Final = b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_IN_NAME: Final = bytes(map(_NAME.__contains__, range(256)))
_IN_PATH: Final = bytes(map(_PRINTABLE.translate(None, b" #").__contains__, range(256)))
_IN_VALUE: Final = bytes(map(_PRINTABLE.__contains__, range(256)))
_ELSEWHERE: Final = re.compile(r"transfer-encoding|upgrade|expect|content-encoding|proxy-connection|sec-websocket.+")
"""Headers of requests that are left to aiohttp's parser."""
_KNOWN: Final = {name.lower(): name for name in vars(hdrs).values() if isinstance(name, istr)}
_NAMES: Final[dict[str, tuple[str, str]]] = {}

Whole = tuple[str, list[tuple[str, str]], int, bytes]
"""Path, headers, the bytes of their names and values, and the body."""

BROKEN: Final = (ClientPayloadError, web.RequestPayloadError, HttpProcessingError)
"""What a reader of a body raises where its framing is broken."""
UNREAD: Final = (TimeoutError, ConnectionError, *BROKEN)


def _name_of(name: str) -> tuple[str, str] | None:
    """Return a header's name in small letters, and in the type that a dictionary of headers compares fastest. Names recur."""
    found = _NAMES.get(name)
    if found is None:
        lower = name.lower()
        if _ELSEWHERE.fullmatch(lower) is not None:
            return None
        found = lower, _KNOWN.get(lower) or istr(name)
        if len(_NAMES) < MOST_NAMES:
            _NAMES[name] = found
    return found


def whole_request(data: bytes) -> Whole | None:
    """Return an ordinary request that some data is; None for any other data."""
    at, end, size, most = len(START) - 1, len(data), 0, MAX_HEADERS
    text, in_path, in_name, in_value = data, _IN_PATH, _IN_NAME, _IN_VALUE
    if not data.startswith(START):
        return None
    begin = at
    while at < end and in_path[text[at]]:
        at += 1
    path = text[begin:at].decode("latin-1")
    if at - begin > MOST_PATH or not data.startswith(VERSION, at):
        return None
    at += len(VERSION)
    headers: list[tuple[str, str]] = []
    values: dict[str, str] = {}
    while at + 1 < end and not (text[at] == 0x0D and text[at + 1] == 0x0A):
        begin = at
        while at < end and in_name[text[at]]:
            at += 1
        known = _name_of(text[begin:at].decode("latin-1"))
        if known is None or at in (begin, end) or text[at] != 0x3A or len(headers) == most:
            return None
        size += at - begin
        at += 1
        while at < end and text[at] == 0x20:
            at += 1
        begin = at
        while at < end and in_value[text[at]]:
            at += 1
        if at + 1 >= end or text[at] != 0x0D or text[at + 1] != 0x0A or (at > begin and text[at - 1] == 0x20):
            return None
        value = text[begin:at].decode("latin-1")
        size += at - begin
        values[known[0]] = value
        headers.append((known[1], value))
        at += 2
    at += 2
    length, connection = values.get("content-length", ""), values.get("connection", "keep-alive")
    if (
        at > end  # the head has no end
        or len(values) != len(headers)  # one was sent twice
        or not values.get("host")
        or (connection != "keep-alive" and connection.lower() != "keep-alive")
        or not (length.isdigit() and len(length) < 10 and end - at == int(length))
    ):
        return None
    return path, headers, size, data[at:]


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
        "ordinary",
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
        self.ordinary = False
        """Whether `whole_request` took it, so that it has none of the headers by which a request is framed in another way."""
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
        return not isinstance(self.content, StreamReader) or self.content.is_eof()

    async def discard_rest(self, within_s: float) -> bool:
        """Read and drop what is left of the body. Return whether it has ended."""
        try:
            async with asyncio.timeout(within_s):
                while isinstance(self.content, StreamReader) and not self.content.is_eof():
                    await self.content.readany()
        except UNREAD as error:
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
