"""Request bodies: read within the limits of one request and within the memory budget of the worker.

1. What the head already rules out (media type, encoding, length) is refused before a byte of the body is read.
2. A body that arrives too slowly is refused as soon as it is below `min_body_rate`, long before a large body's full timeout.
3. All bodies that a worker holds at once stay within `body_budget`, which is shared among accounts. A large body is refused where
   its declared length has no room, and where the room ends while it arrives.
4. Before a large body is read, the plugins that have planned a step decide: one that is over its limits sends nothing large.
5. A body is held until the first byte of the answer: after that no upstream is called.

The memory is shared so (`BodyBudget`):

6. A body takes what has arrived of it, not what its head declares: a declared body that does not come takes nothing.
7. The bodies of one account take at most as much as is still free. So any number of accounts leave room for one more: one
   account takes half of the memory, two take a third each. These are the dynamic thresholds of switches with shared memory.
8. An account may always have one body, if there is room for it at all.

Large bodies are checked part by part, while the event loop has nothing else to do, so that others are served in between
(`LargeBodies`). The check of a body of 8 MiB takes some 100 ms where it is as expensive as it can be. A part takes a millisecond,
except for those that a parser does at once, which take 10 ms for a long text. Accounts take turns: a large body of one does not
wait for all those of another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Final, TypeAlias

import msgspec
from aiohttp import StreamReader
from aiohttp.hdrs import CONTENT_TYPE

from gateway.base.addresses import network_of
from gateway.base.errors import Refused, unavailable
from gateway.chat.request import Body
from gateway.config.schema import Port
from gateway.domain.exchange import Exchange
from gateway.domain.facts import Caller
from gateway.operations.wire_format import WireFormat
from gateway.proxy.caller import CallerConnection
from gateway.proxy.scheduler import Turns
from gateway.server.head import BROKEN, ParsedRequest

SMALL_SHARE: Final = 16 * 1024
"""A body up to this size is read even where the budget is used up: a few large bodies do not shut out the other callers."""

Steps: TypeAlias = Generator[None, None, Body]

SMALL: Final = 64 * 1024
"""Bytes up to which a body is checked at once: the check takes less than a millisecond."""


class IncomingBody(msgspec.Struct, eq=False):
    """The body of one request. It has its share of the budget until the answer begins: then `release` frees what received it."""

    _port: Port
    _budget: BodyBudget
    _check: Callable[[bytes | bytearray, WireFormat, str, Exchange | None], Body | Awaitable[Body]]
    """Returns the checked body of an account or an address, and of its exchange."""
    _wire: WireFormat | None
    _request: ParsedRequest
    _caller: CallerConnection
    _share: BodyShare | None = None
    exchange: Exchange | None = None
    """Whose body it is, until it ends: the exchange refers to its body. To be set before it is read."""

    def read(self) -> Body | Awaitable[Body]:
        """Read the whole body within the limits and check it. Raises `Refused`, and `ConnectionError` if the caller left."""
        wire, exchange, content = self._wire, self.exchange, self._request.content
        if wire is None or exchange is None or content is None:  # there is none, or it was read and released
            raise ConnectionResetError
        if self._share is not None:  # of an earlier call, which was cancelled
            self._share.release()
        owner = _owner(exchange)
        share = self._share = BodyShare(self._budget, owner)
        if not isinstance(content, bytes):
            return self._receive_and_check(content, share, wire, exchange)
        try:
            _check_media(self._request, wire.accepts)
            self._check_size(len(content), share)
        except Refused:
            self._leave_unread()
            raise
        return self._check(content, wire, owner, exchange)

    def _leave_unread(self) -> None:
        self._caller.close_after()
        self._request.protocol.unclear = True

    async def _receive_and_check(
        self, content: StreamReader, share: BodyShare, wire: WireFormat, exchange: Exchange
    ) -> Body:
        try:
            raw = await self._receive(content, share, exchange, wire.accepts)
        except Refused:
            self._leave_unread()
            raise
        # Of no exchange where the caller left meanwhile.
        checked = self._check(raw, wire, share.owner, self.exchange)
        return checked if isinstance(checked, Body) else await checked

    async def check(self, raw: bytes) -> Body:
        """Return the checked body that a plugin has made of it. Raises `Refused`."""
        if self._share is None or self._wire is None or self.exchange is None:
            raise ConnectionResetError
        self._check_size(len(raw), self._share)
        checked = self._check(raw, self._wire, _owner(self.exchange), self.exchange)
        return checked if isinstance(checked, Body) else await checked

    def end(self) -> None:
        """Give back the body's part of the budget. May be called again."""
        share, self._share, self.exchange = self._share, None, None
        if share is not None:
            share.release()

    def release(self) -> None:
        """Free the memory that receiving the request needed."""
        self.end()
        self._request.release()
        self._request.protocol.release()

    async def _receive(
        self, content: StreamReader, share: BodyShare, exchange: Exchange, media: str
    ) -> bytes | bytearray:
        """Return the whole body, of this type, where it may have to be waited for."""
        request = self._request
        try:
            _check_head(request, self._port.max_body, media)
            share.check(request.content_length or 0)
            await _decide_first(request, exchange)
            if expects_continue(request):
                self._caller.send_continue()
            if content.is_eof():  # the whole body is here: nothing to wait for
                raw = await content.readany()
                self._check_size(len(raw), share)
                return raw
            return await self._collect_unless_stopped(content, share, exchange)
        except TimeoutError:
            raise Refused(408, "body_timeout", "The body took too long to arrive. Send it again.") from None
        except BROKEN as error:
            error.__traceback__ = None  # the body's stream keeps the error, and that would keep what was read
            raise Refused(400, "invalid_request", "The body's framing is broken.") from None

    async def _collect_unless_stopped(self, content: StreamReader, share: BodyShare, exchange: Exchange) -> bytearray:
        """Return the body. Raises the error that the exchange is stopped with, as after a revocation."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None) as timeout:
                exchange.on_stop = lambda: None if timeout.expired() else timeout.reschedule(loop.time())
                if exchange.stopped is not None:
                    raise exchange.stopped
                return await self._collect(content, share)
        except TimeoutError:
            raise exchange.stopped or TimeoutError from None
        finally:
            exchange.on_stop = None

    async def _collect(self, content: StreamReader, share: BodyShare) -> bytearray:
        """Read into one growing buffer: joining pieces at the end would hold the body in memory twice."""
        port, began = self._port, asyncio.get_running_loop().time()
        raw = bytearray()
        async with asyncio.timeout(None) as timeout:
            while True:
                timeout.reschedule(began + min(port.body_timeout, port.body_grace + len(raw) / port.min_body_rate))
                piece = await content.readany()
                if not piece:
                    return raw
                self._check_size(len(raw) + len(piece), share)
                raw += piece
                await asyncio.sleep(0)  # what waits already is returned without a pause

    def _check_size(self, size: int, share: BodyShare) -> None:
        if size > self._port.max_body:
            raise _too_large(self._port.max_body)
        share.grow(size)


async def _decide_first(request: ParsedRequest, exchange: Exchange) -> None:
    """Let the plugins above decide before a body is read that is large, or may be."""
    length = request.content_length
    small = request.is_eof() if length is None else length <= SMALL
    if not small and exchange.hooks is not None:
        await exchange.hooks.before_body()


def expects_continue(request: ParsedRequest) -> bool:
    """Return whether the caller waits for `100 Continue` before it sends the body."""
    return request.headers.get("Expect", "").lower() == "100-continue"


def _owner(exchange: Exchange) -> str:
    """Return whose share of the budget a body takes: the account's, or the address's where there is no account."""
    caller = exchange.facts.get(Caller)
    return network_of(exchange.request.peer) if caller is None else f"account {caller.account}"


def _check_head(request: ParsedRequest, max_body: int, media: str) -> None:
    headers = request.headers
    if "Content-Encoding" in headers and any(
        value.lower() != "identity" for value in headers.getall("Content-Encoding")
    ):
        raise Refused(415, "unsupported_media_type", "Send the body without Content-Encoding.")
    _check_media(request, media)
    if (request.content_length or 0) > max_body:
        raise _too_large(max_body)


def _check_media(request: ParsedRequest, media: str) -> None:
    media_type = request.headers.get(CONTENT_TYPE, "")
    if media_type != media and media_type.partition(";")[0].strip().lower() != media:
        raise Refused(415, "unsupported_media_type", f"Send the header `Content-Type: {media}`.")


def _too_large(max_body: int) -> Refused:
    return Refused(413, "body_too_large", f"The body is larger than {max_body} bytes. Shorten the conversation.")


class Owner(msgspec.Struct):
    """Bytes that one account, or one address, holds. `first`: the body that its share does not limit."""

    held: int = 0
    first: BodyShare | None = None


class BodyBudget(msgspec.Struct):
    """Memory budget of a worker for bodies: the bytes of all open exchanges, in all and for each owner."""

    size: int
    reserved: int = 0
    owners: dict[str, Owner] = {}


class BodyShare(msgspec.Struct, eq=False):
    """Bytes that the body of one request holds of the budget, until `release`."""

    _budget: BodyBudget
    owner: str
    held: int = 0

    def check(self, size: int) -> None:
        """Raise `Refused` where a body of `size` bytes has no room now, or would exceed what its owner may have."""
        if size <= max(SMALL_SHARE, self.held):
            return
        more = size - self.held
        free = self._budget.size - self._budget.reserved - more
        if free < 0:
            raise unavailable()
        has = self._budget.owners.get(self.owner)
        if has is not None and has.first not in (None, self) and has.held + more > free:
            text = "Your large requests take their share of the memory. Wait for one to be answered, then retry."
            raise Refused(429, "too_many_concurrent", text, retry_after_s=1)

    def grow(self, size: int) -> None:
        """Hold `size` bytes in all, if that is more than before. Raises `Refused` as `check` does."""
        if size > SMALL_SHARE:
            self.check(size)
        if size > self.held:
            budget, more = self._budget, size - self.held
            has = budget.owners.get(self.owner)
            if has is None:
                has = budget.owners[self.owner] = Owner()
            has.held += more
            if has.first is None and size > SMALL_SHARE:
                has.first = self
            budget.reserved += more
            self.held = size

    def release(self) -> None:
        """Give everything back. The owner's next body that grows is then not limited by its share. May be called again."""
        if self.held:
            has = self._budget.owners[self.owner]
            has.held -= self.held
            if has.first is self:
                has.first = None
            if not has.held:
                del self._budget.owners[self.owner]
            self._budget.reserved -= self.held
            self.held = 0


class LargeBodies:
    """The order in which a worker checks large bodies."""

    def __init__(self) -> None:
        self._turns = Turns()

    async def check(self, steps: Steps, owner: str) -> Body:
        """Return the body of an account or an address whose check has these steps. Raises `Refused`."""
        checked: asyncio.Future[Body] = asyncio.get_running_loop().create_future()
        self._wait(steps, checked, owner)
        try:
            return await checked
        finally:
            del checked  # else it and the refusal that it raises refer to each other, and keep the body

    def _wait(self, steps: Steps, checked: asyncio.Future[Body], owner: str) -> None:
        # Not a function that refers to itself: only the garbage collector would free it, and with it the body.
        self._turns.wait(partial(self._step, steps, checked, owner), owner)

    def _step(self, steps: Steps, checked: asyncio.Future[Body], owner: str) -> None:
        if checked.done():  # cancelled: the caller has left
            return
        try:
            next(steps)
        except StopIteration as end:
            checked.set_result(end.value)
        except Refused as refusal:
            checked.set_exception(refusal.with_traceback(None))
        except Exception as error:
            checked.set_exception(error)
        else:
            self._wait(steps, checked, owner)
