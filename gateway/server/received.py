"""A request as it was received: its head, and the reader of its body until that was read.

aiohttp's server refers to the parsed message, to the reader of the body and to the request until the response has ended, which
may take an hour for a stream. Here one small object is all three, and `release` frees what only the body needed.
"""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import Any, Final, Protocol

from aiohttp import HttpVersion, StreamReader
from aiohttp.http import RawRequestMessage
from multidict import CIMultiDictProxy

AIOHTTP_NAMES: Final = ("_cancel", "_finish", "_task")
"""What aiohttp's `RequestHandler` uses of a request without its documentation, as read in 3.14.5."""


class Connection(Protocol):
    """The protocol of the connection of a request."""

    transport: asyncio.Transport | None


class ReceivedRequest:
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

    def __init__(self, message: RawRequestMessage, content: StreamReader, protocol: Connection) -> None:
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

    # Called by aiohttp, on what it takes for the reader of the body.

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

    # Called by aiohttp, on what it takes for the request.

    def _cancel(self, error: BaseException) -> None:
        self.set_exception(error)

    def _finish(self) -> None:
        return None


def received(message: Any, content: Any, protocol: Connection, *_: object) -> ReceivedRequest:
    """Return the request of a message; a request that takes the place of a message is returned as it is."""
    if isinstance(message, ReceivedRequest):
        return message
    return ReceivedRequest(message, content, protocol)
