"""Errors of the head of a request, and the response object that aiohttp gets in place of one of its own."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from gateway.base.errors import Refused
from gateway.proxy.caller import CallerConnection

MAX_LINE: Final = 8190
"""Bytes of a request line."""
MAX_HEADERS: Final = 128
LINGER_S: Final = 2.0
"""How long the rest of a refused request is read and dropped. Closing at once could destroy the response before it is read."""
MALFORMED: Final = "This is not a well-formed HTTP/1.1 request; check the request line, the headers and the framing."


class SentResponse(web.StreamResponse):
    """The response that aiohttp gets from a handler: it is on the socket already, so aiohttp writes nothing."""

    def __init__(self, caller: CallerConnection) -> None:
        super().__init__()
        self._caller = caller

    @property
    def keep_alive(self) -> bool:
        """Whether aiohttp waits for another request on the connection."""
        return self._caller.keep_alive

    async def prepare(self, request: web.BaseRequest) -> None:
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        return None


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
