"""The body of a request: read and checked when it is first needed, and checked again when a plugin has changed it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import cast

from gateway.chat.request import Body
from gateway.config.schema import Port
from gateway.errors import Refused
from gateway.exchange import Exchange
from gateway.proxy.caller import CallerConnection
from gateway.server.body import BodyReader
from gateway.server.body_budget import BodyBudget
from gateway.server.protocol import ServerProtocol
from gateway.server.received import ReceivedRequest


class IncomingBody:
    """The body of one request, until the answer begins: then `release` frees what was needed to receive the request."""

    __slots__ = ("_caller", "_check", "_reader", "_request")

    def __init__(
        self,
        port: Port,
        budget: BodyBudget,
        check: Callable[[bytes | bytearray, str], Awaitable[Body]],
        request: ReceivedRequest,
        caller: CallerConnection,
    ) -> None:
        """Take the head of a request. `check` returns the checked body of an account or an address."""
        self._check = check
        self._request = request
        self._caller = caller
        self._reader: BodyReader | None = BodyReader(port, budget)

    def belongs_to(self, exchange: Exchange) -> None:
        """Set whose body it is."""
        if self._reader is not None:
            self._reader.exchange = exchange

    async def read(self) -> Body:
        """Read the whole body within the limits and check it. Raises `Refused`, and `ConnectionError` if the caller left."""
        if self._reader is None:
            raise ConnectionResetError
        try:
            raw = await self._reader.read(self._request, self._caller)
        except Refused:
            self._caller.close_after()
            cast("ServerProtocol", self._request.protocol).unclear = True
            raise
        return await self._check(raw, self._reader.owner if self._reader is not None else "")

    async def check(self, raw: bytes) -> Body:
        """Return the checked body that a plugin has made of it. Raises `Refused`."""
        if self._reader is None:
            raise ConnectionResetError
        self._reader.fit(len(raw))
        return await self._check(raw, self._reader.owner)

    def end(self) -> None:
        """Give back what the body holds of the budget. May be called again."""
        if self._reader is not None:
            self._reader.release()
            self._reader = None

    def release(self) -> None:
        """Free what was needed to receive the request."""
        self.end()
        self._request.release()
        cast("ServerProtocol", self._request.protocol).release()
