"""The public port of one worker: a request head becomes an exchange and runs.

The raw path is matched exactly. The query and `Host` are ignored, and the query is never forwarded. The body is read when a
plugin first needs it, so a request that is refused on its head is refused without reading the body.
"""

from __future__ import annotations

import socket
import ssl
from itertools import chain as chained
from typing import Final

from aiohttp import HttpVersion11, web

from gateway.chain import Chain
from gateway.chat.request import Body, BodyRules, check
from gateway.config.schema import Port
from gateway.errors import Refused, unavailable
from gateway.exchange import Exchange, Operation, Reply, Request
from gateway.proxy.caller import CallerConnection
from gateway.proxy.lifecycle import ExchangeRunner, LocalHandler
from gateway.server.body import BodyBudget, BodyReader, expects_continue
from gateway.server.listener import Listener
from gateway.server.protocol import SentResponse, Server, ServerProtocol, head_too_large
from gateway.server.routes import HEALTH, LocalRoutes, misdirected, operation_of
from gateway.services import Services

HANDLER_STOP_S: Final = 1.0
"""How long a request that a stop has to cancel may go on, such as one whose plugin waits for something."""


class Gateway:
    """The public port of one worker."""

    def __init__(self, port: Port, chain: Chain, services: Services, runner: ExchangeRunner) -> None:
        self.port = port
        self.chain = chain
        self.services = services
        self.runner = runner
        self.routes = LocalRoutes(services.catalogue, services.store)
        self.draining = False
        self.budget = BodyBudget()
        self._rules = BodyRules(allow_non_streaming=port.allow_non_streaming, allow_fields=frozenset(port.allow_fields))
        self._web_runner: web.ServerRunner | None = None
        self._listener: Listener | None = None

    async def listen(self, bound: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Accept connections on a bound socket."""
        server = Server(self._handle, self.port)
        self._web_runner = web.ServerRunner(server, shutdown_timeout=HANDLER_STOP_S)
        await self._web_runner.setup()
        self._listener = Listener(bound, server, tls, self.port.handshake_timeout)

    def swap(self, chain: Chain, services: Services) -> Chain:
        """Serve new exchanges with `chain`. Return the chain before, whose exchanges may still be in progress."""
        old, self.chain = self.chain, chain
        self.services = services
        self.routes = LocalRoutes(services.catalogue, services.store)
        self.runner.metrics.catalogue = services.catalogue
        return old

    async def drain(self) -> None:
        """Stop accepting; let open exchanges finish within `port.drain` seconds; end the rest with the error event."""
        self.draining = True
        if self._web_runner is None or self._listener is None:
            return
        self._listener.stop()
        await self.runner.wait_idle(self.port.drain)
        self.runner.failover.stop_relays()
        await self.runner.wait_ended()
        await self._web_runner.cleanup()
        await self.runner.wait_ended(HANDLER_STOP_S)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        protocol, transport = request.protocol, request.transport
        if transport is None or not isinstance(protocol, ServerProtocol):
            raise ConnectionResetError
        caller = CallerConnection(
            protocol,
            transport,
            http_1_1=request.version >= HttpVersion11,
            keep_alive=bool(request.keep_alive),
        )
        path = request.raw_path.partition("?")[0]
        if path in HEALTH and request.method == "GET":
            await self._health(caller, path)
            return SentResponse(caller)
        refusal = self._refusal(request, crowded=protocol.crowded)
        if refusal is not None or expects_continue(request) or request.method in ("CONNECT", "HEAD"):
            caller.close_after()  # caller and gateway may disagree about where the next message begins
        # A request that every caller would be refused skips the plugins, except those with `sees_misdirected`.
        operation, argument = (Operation.MISDIRECTED, "") if refusal else operation_of(request.method, path)
        peer = transport.get_extra_info("peername")
        head = Request(
            request.method,
            path,
            request.headers,
            peer[0] if isinstance(peer, tuple) else "",
            operation,
            argument,
        )
        reader = BodyReader(self.port, self.budget)
        exchange = Exchange(head, lambda: self._body(request, caller, reader), generation=self.chain.generation)
        exchange.response_headers["x-request-id"] = exchange.id
        if operation is Operation.MISDIRECTED and not path.startswith("/v1"):
            error = refusal or misdirected(request.method, path)
            caller.refuse(error, exchange.id, exchange.response_headers)
            return SentResponse(caller)
        try:
            await self.runner.run(exchange, self.chain, caller, _refuse_with(refusal) if refusal else self.routes)
        finally:
            reader.release()
        return SentResponse(caller)

    def _refusal(self, request: web.BaseRequest, *, crowded: bool) -> Refused | None:
        """Return why no caller could be served with this head: unclear framing, too large, or no capacity. Else None."""
        if sum(map(len, chained.from_iterable(request.raw_headers))) > self.port.max_head:
            return head_too_large(self.port.max_head)
        coding = request.headers.get("Transfer-Encoding")
        if coding is not None and coding.lower() != "chunked":
            return Refused(
                400, "invalid_request", "Send the body with Content-Length, or with the one coding `chunked`."
            )
        if self.draining or crowded or self.runner.open >= self.port.max_open:
            return unavailable()
        return None

    async def _health(self, caller: CallerConnection, path: str) -> None:
        ready = not self.draining and (path == "/healthz" or await self.services.store.answers())
        headers = {"Content-Type": "text/plain"}
        if path == "/readyz":
            headers["x-config-generation"] = str(self.chain.generation)
        caller.reply(200 if ready else 503, headers, b"ok\n" if ready else b"degraded\n")

    async def _body(self, request: web.BaseRequest, caller: CallerConnection, reader: BodyReader) -> Body:
        """Read the whole body within the limits and check it. Raises `Refused`, and `ConnectionError` if the caller left."""
        try:
            raw = await reader.read(request, caller)
        except Refused:
            caller.close_after()
            raise
        return check(raw, self._rules)


def _refuse_with(refusal: Refused) -> LocalHandler:
    async def handler(_: Exchange) -> Reply:
        raise refusal

    return handler
