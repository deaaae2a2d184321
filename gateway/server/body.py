"""Request bodies: read within the limits of one request and within the memory budget of the worker.

1. What the head already rules out (media type, encoding, length) is refused before a byte of the body is read.
2. A body that arrives too slowly is refused as soon as it is below `min_body_rate`, long before a large body's full timeout.
3. All bodies that a worker holds at once stay within `body_budget`, which `gateway.server.body_budget` shares among accounts. A
   large body is refused where its declared length has no room, and where the room ends while it arrives.
4. Before a large body is read, the plugins that have planned a step decide: one that is over its limits sends nothing large.
5. A body is held until the first byte of the answer: after that no upstream is called.
"""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import ClientPayloadError, StreamReader, web
from aiohttp.http_exceptions import HttpProcessingError

from gateway.addresses import network_of
from gateway.config.schema import Port
from gateway.errors import Refused
from gateway.exchange import Exchange
from gateway.facts import Caller
from gateway.proxy.caller import CallerConnection
from gateway.server.body_budget import BodyBudget, BodyShare
from gateway.server.large_bodies import SMALL
from gateway.server.received import ReceivedRequest

JSON: Final = "application/json"


class BodyReader:
    """Reads the body of one request, and keeps its share of the budget until `release`."""

    __slots__ = ("_budget", "_port", "_share", "exchange", "owner")

    def __init__(self, port: Port, budget: BodyBudget) -> None:
        self._port = port
        self._budget = budget
        self._share = BodyShare(budget, "")
        self.owner = ""
        """The account or the address whose share of the budget the body takes. Set by `read`."""
        self.exchange: Exchange | None = None
        """Whose body it is. Forgotten in `release`, since the exchange refers to its reader."""

    async def read(self, request: ReceivedRequest, caller: CallerConnection) -> bytes | bytearray:
        """Return the whole body. Raises `Refused`, and `ConnectionError` if the caller left."""
        self.owner = _owner(self.exchange)
        self._share.release()  # of an earlier call, which was cancelled
        self._share = BodyShare(self._budget, self.owner)
        try:
            _check_head(request, self._port.max_body)
            self._share.check(request.content_length or 0)
            await self._decide_first(request)
            if expects_continue(request):
                caller.send_continue()
            content = request.content
            if content is None:  # it was read and released
                raise ConnectionResetError
            if content.is_eof():  # the whole body is here: nothing to wait for
                raw = await content.readany()
                self._check_size(len(raw))
                return raw
            if self.exchange is not None:
                return await self._collect_unless_stopped(content, self.exchange)
            return await self._collect(content)
        except TimeoutError:
            raise Refused(408, "body_timeout", "The body took too long to arrive. Send it again.") from None
        except (ClientPayloadError, web.RequestPayloadError, HttpProcessingError) as error:
            error.__traceback__ = None  # the body's stream keeps the error, and that would keep what was read
            raise Refused(400, "invalid_request", "The body's framing is broken.") from None

    def fit(self, size: int) -> None:
        """Hold `size` bytes, of a body that a plugin has changed. Raises `Refused` as `read` does."""
        self._check_size(size)

    async def _decide_first(self, request: ReceivedRequest) -> None:
        """Let the plugins above decide before a body is read that is large, or may be."""
        length = request.content_length
        small = request.is_eof() if length is None else length <= SMALL
        if not small and self.exchange is not None and self.exchange.hooks is not None:
            await self.exchange.hooks.before_body()

    def release(self) -> None:
        """Give the reserved bytes back to the budget. May be called again."""
        self._share.release()
        self.exchange = None

    async def _collect_unless_stopped(self, content: StreamReader, exchange: Exchange) -> bytearray:
        """Return the body. Raises what the exchange is stopped with."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None) as timeout:
                exchange.on_stop = lambda: None if timeout.expired() else timeout.reschedule(loop.time())
                if exchange.stopped is not None:
                    raise exchange.stopped
                return await self._collect(content)
        except TimeoutError:
            raise exchange.stopped or TimeoutError from None
        finally:
            exchange.on_stop = None

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
                await asyncio.sleep(0)  # what waits already is returned without a pause

    def _check_size(self, size: int) -> None:
        if size > self._port.max_body:
            raise _too_large(self._port.max_body)
        self._share.grow(size)


def expects_continue(request: ReceivedRequest) -> bool:
    """Return whether the caller waits for `100 Continue` before it sends the body."""
    return request.headers.get("Expect", "").lower() == "100-continue"


def _owner(exchange: Exchange | None) -> str:
    """Return whose share of the budget a body takes: the account's, or the address's where there is no account."""
    if exchange is None:
        return ""
    caller = exchange.get(Caller)
    return f"address {network_of(exchange.request.peer)}" if caller is None else f"account {caller.account}"


def _check_head(request: ReceivedRequest, max_body: int) -> None:
    headers = request.headers
    if "Content-Encoding" in headers and any(
        value.lower() != "identity" for value in headers.getall("Content-Encoding")
    ):
        raise Refused(415, "unsupported_media_type", "Send the body without Content-Encoding.")
    media_type = headers.get("Content-Type", "")
    if media_type != JSON and media_type.partition(";")[0].strip().lower() != JSON:
        raise Refused(415, "unsupported_media_type", "Send the header `Content-Type: application/json`.")
    if (request.content_length or 0) > max_body:
        raise _too_large(max_body)


def _too_large(max_body: int) -> Refused:
    return Refused(413, "body_too_large", f"The body is larger than {max_body} bytes. Shorten the conversation.")
