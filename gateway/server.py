"""aiohttp on the public port: the head of a request becomes an exchange, and runs.

The raw path is matched exactly; the query is ignored and never forwarded; `Host` decides nothing. The body is read when a
plugin first needs it, so that what is refused on its head alone was never read.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

from aiohttp import ClientPayloadError, HttpVersion11, web
from aiohttp.http_exceptions import HttpProcessingError

from gateway.answers import Answers, misdirected, operation_of
from gateway.body import Body, BodyRules, check
from gateway.caller import CallerProtocol, CallerSide, Written
from gateway.chain import Chain
from gateway.config import Port
from gateway.errors import Refused, unavailable
from gateway.exchange import Exchange, Operation, Reply, Request
from gateway.life import Life
from gateway.plugin import Services

READ_BUFFER = 64 * 1024


class Door(web.Server):
    """aiohttp's low-level server with our protocol for its connections."""

    def __init__(self, handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]], port: Port) -> None:
        super().__init__(handler)  # type: ignore[arg-type, unused-ignore]
        self._port = port

    def __call__(self) -> web.RequestHandler:
        return CallerProtocol(
            self,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=self._port.idle_timeout,
            access_log=None,
            max_line_size=8190,
            max_field_size=self._port.max_head,
            lingering_time=2,
            read_bufsize=READ_BUFFER,
            auto_decompress=False,
        )


class Gateway:
    """One worker's public port."""

    def __init__(self, port: Port, chain: Chain, services: Services, life: Life) -> None:
        self.port = port
        self.chain = chain
        self.services = services
        self.life = life
        self.answers = Answers(services.catalogue, services.store)
        self.draining = False
        self._rules = BodyRules(allow_non_streaming=port.allow_non_streaming)
        self._runner: web.ServerRunner | None = None

    async def listen(self, listener: socket.socket) -> None:
        """Begin to accept on a bound socket."""
        self._runner = web.ServerRunner(Door(self._handle, self.port))
        await self._runner.setup()
        await web.SockSite(self._runner, listener, backlog=4096).start()

    def swap(self, chain: Chain, services: Services) -> Chain:
        """Serve new exchanges with another chain; returns the one before, whose exchanges may still be under way."""
        old, self.chain = self.chain, chain
        self.services = services
        self.answers = Answers(services.catalogue, services.store)
        return old

    async def drain(self) -> None:
        """Stop accepting, let open exchanges finish within `port.drain` seconds, end the rest with the error event."""
        self.draining = True
        if self._runner is None:
            return
        for site in list(self._runner.sites):
            await site.stop()
        await self.life.idle(self.port.drain)
        self.life.pipe.stop_streams()
        await self._runner.cleanup()
        await self.life.settled()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        protocol, transport = request.protocol, request.transport
        if transport is None or not isinstance(protocol, CallerProtocol):
            raise ConnectionResetError
        caller = CallerSide(
            protocol,
            transport,
            http_1_1=request.version >= HttpVersion11,
            keep_alive=bool(request.keep_alive),
        )
        path = request.raw_path.partition("?")[0]
        if path in ("/healthz", "/readyz"):
            await self._health(caller, path)
            return Written(caller)
        # While draining, nobody decides anything: only who sees all that arrives is told.
        operation, argument = (Operation.MISDIRECTED, "") if self.draining else operation_of(request.method, path)
        peer = transport.get_extra_info("peername")
        head = Request(
            request.method,
            path,
            request.headers,
            peer[0] if isinstance(peer, tuple) else "",
            operation,
            argument,
        )
        exchange = Exchange(head, lambda: self._body(request, caller), generation=self.chain.generation)
        exchange.response_headers["x-request-id"] = exchange.id
        if self.draining:
            caller.close_after()
        if operation is Operation.MISDIRECTED and not path.startswith("/v1"):
            caller.refuse(misdirected(request.method, path), exchange.id, exchange.response_headers)
        else:
            await self.life.run(exchange, self.chain, caller, _stopping if self.draining else self.answers)
        return Written(caller)

    async def _health(self, caller: CallerSide, path: str) -> None:
        ready = not self.draining and (path == "/healthz" or await self.services.store.answers())
        caller.reply(200 if ready else 503, {"Content-Type": "text/plain"}, b"ok\n" if ready else b"degraded\n")

    async def _body(self, request: web.BaseRequest, caller: CallerSide) -> Body:
        """Read the whole body within the limits, and check it. Raises `Refused`; `ConnectionError` if the caller left."""
        try:
            _check_head(request, self.port)
            if request.headers.get("Expect", "").lower() == "100-continue":
                caller.proceed()
            async with asyncio.timeout(self.port.body_timeout):
                raw = await _read(request, self.port.max_body)
        except TimeoutError:
            caller.close_after()
            raise Refused(408, "body_timeout", "The body took too long to arrive. Send it again.") from None
        except (ClientPayloadError, web.RequestPayloadError, HttpProcessingError):
            caller.close_after()
            raise Refused(400, "invalid_request", "The body's framing is broken.") from None
        except Refused:
            caller.close_after()
            raise
        return check(raw, self._rules)


async def _stopping(_: Exchange) -> Reply:
    raise unavailable()


def _check_head(request: web.BaseRequest, port: Port) -> None:
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise Refused(415, "unsupported_media_type", "Send the body without Content-Encoding.")
    if request.headers.get("Content-Type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refused(415, "unsupported_media_type", "Send the header `Content-Type: application/json`.")
    if (request.content_length or 0) > port.max_body:
        raise _too_large(port.max_body)


async def _read(request: web.BaseRequest, most: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while not request.content.at_eof():
        piece = await request.content.readany()
        size += len(piece)
        if size > most:
            raise _too_large(most)
        pieces.append(piece)
    return b"".join(pieces)


def _too_large(most: int) -> Refused:
    return Refused(413, "body_too_large", f"The body is larger than {most} bytes. Shorten the conversation.")
