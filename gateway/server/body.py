"""Request bodies: read within the limits of one request and within the memory budget of the worker.

1. What the head already rules out (media type, encoding, length) is refused before a byte of the body is read.
2. A body that arrives too slowly is refused as soon as it is below `min_body_rate`, long before a large body's full timeout.
3. All bodies that a worker holds at once stay within `body_budget`. A large body that does not fit is refused with 503. The
   bodies of one account take half of it at most, so that one account cannot shut out the others.
4. A body is held until the first byte of the answer: after that no upstream is called.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

from aiohttp import ClientPayloadError, StreamReader, web
from aiohttp.http_exceptions import HttpProcessingError

from gateway.config.schema import Port
from gateway.errors import Refused, unavailable
from gateway.exchange import Exchange
from gateway.facts import Caller
from gateway.proxy.caller import CallerConnection

SMALL: Final = 16 * 1024
"""A body up to this size is read even where the budget is used up: a few large bodies do not shut out the other callers."""


class BodyReader:
    """Reads the body of one request, and keeps its share of the budget until `release`."""

    __slots__ = ("_account", "_budget", "_port", "_reserved", "exchange")

    def __init__(self, port: Port, budget: BodyBudget) -> None:
        self._port = port
        self._budget = budget
        self._reserved = 0
        self._account = ""
        self.exchange: Exchange | None = None
        """Whose body it is. Forgotten in `release`, since the exchange refers to its reader."""

    async def read(self, request: web.BaseRequest, caller: CallerConnection) -> bytes | bytearray:
        """Return the whole body. Raises `Refused`, and `ConnectionError` if the caller left."""
        if self.exchange is not None and (whose := self.exchange.get(Caller)) is not None:
            self._account = whose.account
        try:
            _check_head(request, self._port.max_body)
            self._reserve(request.content_length or 0)
            if expects_continue(request):
                caller.send_continue()
            if request.content.is_eof():  # the whole body is here: nothing to wait for
                raw = await request.content.readany()
                self._check_size(len(raw))
                return raw
            return await self._collect(request.content)
        except TimeoutError:
            raise Refused(408, "body_timeout", "The body took too long to arrive. Send it again.") from None
        except (ClientPayloadError, web.RequestPayloadError, HttpProcessingError):
            raise Refused(400, "invalid_request", "The body's framing is broken.") from None

    def release(self) -> None:
        """Give the reserved bytes back to the budget. May be called again."""
        self._budget.give_back(self._account, self._reserved)
        self._reserved = 0
        self.exchange = None

    async def _collect(self, content: StreamReader) -> bytearray:
        """Read into one growing buffer: joining pieces at the end would hold the body in memory twice."""
        port, began = self._port, asyncio.get_running_loop().time()
        raw = bytearray()
        async with asyncio.timeout(None) as timeout:
            while True:
                timeout.reschedule(began + min(port.body_timeout, port.body_grace + len(raw) / port.min_body_rate))
                piece = await content.readany()
                if not piece:
                    return raw
                self._check_size(len(raw) + len(piece))
                raw += piece

    def _check_size(self, size: int) -> None:
        if size > self._port.max_body:
            raise _too_large(self._port.max_body)
        self._reserve(size)

    def _reserve(self, size: int) -> None:
        """Reserve `size` bytes in total. A declared length is reserved at once: those that came first get through."""
        more = max(0, size - self._reserved)
        if size > SMALL:
            self._budget.check(self._account, self._reserved, more)
        self._reserved += more
        self._budget.take(self._account, more)


class BodyBudget:
    """How many bytes the bodies of all open exchanges of a worker hold, and those of each account."""

    __slots__ = ("_of_account", "_size", "reserved")

    def __init__(self, size: int) -> None:
        self._size = size
        self.reserved = 0
        self._of_account: Counter[str] = Counter()

    def check(self, account: str, held: int, more: int) -> None:
        """Raise `Refused` where `more` bytes for a body that holds `held` do not fit, or exceed the account's share.

        An account may always have one body.
        """
        if self.reserved + more > self._size:
            raise unavailable()
        others = self._of_account[account] - held if account else 0
        if others and others + held + more > self._size // 2:
            text = (
                "Large requests of this account take its share of the memory. Wait for one to be answered, then retry."
            )
            raise Refused(429, "too_many_concurrent", text, retry_after_s=1)

    def take(self, account: str, size: int) -> None:
        """Reserve `size` bytes."""
        self.reserved += size
        self._of_account[account] += size

    def give_back(self, account: str, size: int) -> None:
        """Give `size` reserved bytes back."""
        self.reserved -= size
        self._of_account[account] -= size
        if not self._of_account[account]:
            del self._of_account[account]


def expects_continue(request: web.BaseRequest) -> bool:
    """Return whether the caller waits for `100 Continue` before it sends the body."""
    return request.headers.get("Expect", "").lower() == "100-continue"


def _check_head(request: web.BaseRequest, max_body: int) -> None:
    if any(value.lower() != "identity" for value in request.headers.getall("Content-Encoding", ())):
        raise Refused(415, "unsupported_media_type", "Send the body without Content-Encoding.")
    if request.headers.get("Content-Type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refused(415, "unsupported_media_type", "Send the header `Content-Type: application/json`.")
    if (request.content_length or 0) > max_body:
        raise _too_large(max_body)


def _too_large(max_body: int) -> Refused:
    return Refused(413, "body_too_large", f"The body is larger than {max_body} bytes. Shorten the conversation.")
