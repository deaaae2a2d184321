"""Reads the bodies of requests: within the limits of one, within the budget of all.

1. What the head already forbids (media type, encoding, length) is refused before a byte of the body was read.
2. A body that comes too slowly is cut off as soon as that is sure, long before the time that a large one may take.
3. All the bodies that a worker holds at once stay within `body_budget`; what is large and does not fit is a 503, not memory.
"""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import ClientPayloadError, StreamReader, web
from aiohttp.http_exceptions import HttpProcessingError

from gateway.config.schema import Port
from gateway.errors import Refused, unavailable
from gateway.proxy.caller import CallerConnection

SMALL: Final = 16 * 1024
"""A body up to this size is read whatever is held: a few who fill the budget do not shut out the others."""


class BodyReader:
    """The body of one request, from its head until its exchange is over."""

    __slots__ = ("_budget", "_held", "_port")

    def __init__(self, port: Port, budget: BodyBudget) -> None:
        self._port = port
        self._budget = budget
        self._held = 0

    async def read(self, request: web.BaseRequest, caller: CallerConnection) -> bytes | bytearray:
        """The whole body. Raises `Refused`; `ConnectionError` if the caller left."""
        try:
            _check_head(request, self._port.max_body)
            self._hold(request.content_length or 0)
            if expects(request):
                caller.proceed()
            if request.content.is_eof():  # all of it is here: nothing to wait for
                raw = await request.content.readany()
                self._take(len(raw))
                return raw
            return await self._collect(request.content)
        except TimeoutError:
            raise Refused(408, "body_timeout", "The body took too long to arrive. Send it again.") from None
        except (ClientPayloadError, web.RequestPayloadError, HttpProcessingError):
            raise Refused(400, "invalid_request", "The body's framing is broken.") from None

    def release(self) -> None:
        """Give back what the body took of the budget; the exchange is over."""
        self._budget.held -= self._held
        self._held = 0

    async def _collect(self, content: StreamReader) -> bytearray:
        """What comes, into one growing place: pieces that are joined at the end would be in memory twice."""
        port, began = self._port, asyncio.get_running_loop().time()
        raw = bytearray()
        async with asyncio.timeout(None) as patience:
            while True:
                patience.reschedule(began + min(port.body_timeout, port.body_grace + len(raw) / port.min_body_rate))
                piece = await content.readany()
                if not piece:
                    return raw
                self._take(len(raw) + len(piece))
                raw += piece

    def _take(self, size: int) -> None:
        if size > self._port.max_body:
            raise _too_large(self._port.max_body)
        self._hold(size)

    def _hold(self, size: int) -> None:
        """Take so much of the budget in all. A length that was told is taken at once, so that those who came first get through."""
        more = max(0, size - self._held)
        if self._budget.held + more > self._port.body_budget and size > SMALL:
            raise unavailable()
        self._held += more
        self._budget.held += more


class BodyBudget:
    """Bytes of all the bodies that a worker holds."""

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held = 0


def expects(request: web.BaseRequest) -> bool:
    """Whether the caller waits to be told before it sends the body."""
    return request.headers.get("Expect", "").lower() == "100-continue"


def _check_head(request: web.BaseRequest, max_body: int) -> None:
    if any(value.lower() != "identity" for value in request.headers.getall("Content-Encoding", ())):
        raise Refused(415, "unsupported_media_type", "Send the body without Content-Encoding.")
    if request.headers.get("Content-Type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refused(415, "unsupported_media_type", "Send the header `Content-Type: application/json`.")
    if (request.content_length or 0) > max_body:
        raise _too_large(max_body)


def _too_large(most: int) -> Refused:
    return Refused(413, "body_too_large", f"The body is larger than {most} bytes. Shorten the conversation.")
