"""The public port of one worker: a request head becomes an exchange and runs.

The raw path is matched exactly. `Host` is ignored, and so is the query, except by lists; it is never forwarded. The body is read
when a plugin first needs it, so a request that is refused on its head is refused without reading the body. It is checked then,
and again when a plugin has changed it. Preflight requests of browsers have no token, so they are answered before the chain:
without a record and without a call of the store.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextvars import copy_context
from functools import partial
from typing import Final

import msgspec
from aiohttp import HttpVersion10, HttpVersion11

from gateway.base import ids
from gateway.base.errors import Refused, unavailable
from gateway.chain.chain import Chain
from gateway.chain.services import Services
from gateway.chat.request import Body, checked
from gateway.config.schema import Port
from gateway.domain.exchange import Exchange, Request
from gateway.domain.facts import Caller
from gateway.domain.reply import Reply
from gateway.operations.kept import with_kept
from gateway.operations.operation import MISDIRECTED, Operation, errors_of
from gateway.operations.wire_format import CheckedBody, WireFormat
from gateway.proxy.caller import CallerConnection
from gateway.proxy.failure import CallerGone
from gateway.proxy.lifecycle import ExchangeRunner, LocalHandler
from gateway.proxy.scheduler import AddressTurns
from gateway.server.body import SMALL, BodyBudget, IncomingBody, LargeBodies, expects_continue
from gateway.server.connections import Connections, max_descriptor
from gateway.server.head import CallersConnection, ParsedRequest, head_too_large
from gateway.server.listener import Listener
from gateway.server.own_records import Lookups
from gateway.server.protocol import ServerProtocol, Shared
from gateway.server.routes import HEALTH, POSTED, LocalRoutes, misdirected, operation_of
from gateway.server.trusted_proxies import TrustedProxies
from gateway.usage.completeness import late_since

BASE: Final = "/v1"
HANDLER_STOP_S: Final = 1.0
"""How long a request that a stop has to cancel may go on, such as one whose plugin waits for something."""
LAST_REQUESTS_S: Final = 0.3
"""How long a gateway that stops waits for requests on their way, where connections are open."""

NOT_NAMED: Final = (
    "Pages of this origin may not call this gateway. A token does not belong in a browser: call from a server. Or the operator "
    "names the origin in `port.cors_origins`."
)


class Gateway:
    """The public port of one worker."""

    def __init__(self, port: Port, chain: Chain, services: Services, runner: ExchangeRunner) -> None:
        self.port = port
        self.runner = runner
        self._lookups = Lookups()
        self.draining = self.closing = False
        self.cut = asyncio.Event()
        """Ends the wait of `drain` for open exchanges."""
        self.budget = BodyBudget(port.body_budget)
        self.connections = Connections(port)
        self._large_bodies = LargeBodies()
        self._use(chain, services)
        self._shared: Shared | None = None
        self._listener: Listener | None = None
        self._unserved: set[asyncio.Task[None]] = set()
        self.trust(port.trusted_proxies)

    def trust(self, proxies: Sequence[str]) -> None:
        """Believe the headers in which these addresses name the callers that they forward."""
        self._proxies = TrustedProxies(proxies) if proxies else None

    async def listen(self, bound: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Accept connections on a bound socket."""
        turns = AddressTurns()
        self._shared = Shared(
            self.port,
            self.connections,
            self._handle,
            self._on_unserved,
            max_descriptor(),
            turns,
            copy_context(),
            set(),
        )
        protocol = partial(ServerProtocol, self._shared)
        self._listener = Listener(bound, self.connections, protocol, turns, tls, self.port.handshake_timeout)

    def swap(self, chain: Chain, services: Services) -> Chain:
        """Serve new exchanges with `chain`. Return the chain before, whose exchanges may still be in progress."""
        old = self.chain
        self._use(chain, services)
        self.runner.metrics.use(services.catalogue)
        return old

    def _use(self, chain: Chain, services: Services) -> None:
        self.chain, self.services = chain, services
        self.routes = LocalRoutes(services, self._lookups, self.runner.failover.pool)
        self._rules = services.catalogue.body_rules(self.port)

    async def drain(self) -> None:
        """Accept no more, and let open exchanges finish within `port.drain` seconds; end the rest with the error event.

        A balancer whose connection is refused goes on to the next gateway. What arrives on an open connection is served, and the
        connection closed after it; in the end it is answered with 503.
        """
        self.draining = True
        if self._shared is None or self._listener is None:
            return
        self._listener.stop()
        if self.connections.open:  # a request may be on its way
            await asyncio.sleep(min(LAST_REQUESTS_S, self.port.drain))
        await self.runner.wait_idle(self.port.drain, self.cut)
        self.closing = True
        self.runner.failover.stop_relays()
        await self.runner.wait_ended()
        await self._shared.stop(HANDLER_STOP_S)
        if self._unserved:
            await asyncio.wait(self._unserved, timeout=HANDLER_STOP_S)
        await self.runner.wait_ended(HANDLER_STOP_S)

    def _handle(self, request: ParsedRequest) -> Awaitable[bool]:
        """Answer a request. Return whether its connection may carry another one."""
        protocol = request.protocol
        operation = POSTED.get(request.raw_path) if request.ordinary else None
        if operation is None or protocol.transport is None or self._is_full(protocol):
            return self._handle_unusual(request)
        caller = CallerConnection(protocol, protocol.transport, http_1_1=True, keep_alive=not self.draining)
        protocol.unclear = False
        return self._run(request, caller, operation, "", self.routes)

    def _is_full(self, protocol: CallersConnection) -> bool:
        return self.closing or protocol.crowded or self.runner.open >= self.port.max_open

    async def _handle_unusual(self, request: ParsedRequest) -> bool:
        """Answer a request of any kind."""
        protocol, ordinary = request.protocol, request.ordinary
        transport = protocol.transport
        path = request.raw_path.partition("?")[0]
        if transport is None:  # it was closed between the end of the head and now
            self._on_unserved(request, not protocol.cut_off)
            raise ConnectionResetError
        http_1_1 = ordinary or request.version >= HttpVersion11
        caller = CallerConnection(
            protocol,
            transport,
            http_1_1=http_1_1,
            keep_alive=request.keep_alive and http_1_1 and not self.draining,
            bodyless=request.method == "HEAD",
        )
        if (granted := self._granted(request)) is not None:
            caller.reply(200, granted, b"")
            await asyncio.sleep(0)  # requests that cost nothing leave the loop to others, too
            return caller.keep_alive
        if path in HEALTH and request.method in ("GET", "HEAD"):
            await self._health(caller, path)
            return caller.keep_alive
        refusal = None if ordinary else _refused_head(request, self.port.max_head)
        unclear = refusal is not None or (not ordinary and _is_unclear(request))
        if refusal is None and self._is_full(protocol):
            refusal = unavailable()
        protocol.unclear = unclear
        if refusal is not None or unclear:
            caller.close_after()
        # A request that every caller would be refused skips the plugins, except those with `sees_misdirected`.
        operation, argument = (MISDIRECTED, "") if refusal else operation_of(request.method, path)
        if operation is MISDIRECTED and ((page := refused_preflight(request)) or not path.startswith(BASE)):
            exchange = self._exchange(request, operation, argument, _no_body)
            error = refusal or page or misdirected(request.method, path)
            caller.refuse(error, exchange.id, exchange.response_headers, errors_of(path))
            await asyncio.sleep(0)  # requests that cost nothing leave the loop to others, too
            return caller.keep_alive
        local = _refuse_with(refusal) if refusal else self.routes
        return await self._run(request, caller, operation, argument, local)

    async def _run(
        self, request: ParsedRequest, caller: CallerConnection, operation: Operation, argument: str, local: LocalHandler
    ) -> bool:
        """Run the exchange of a request. Return whether its connection may carry another one."""
        wire = operation.wire
        body = IncomingBody(self.port, self.budget, self.check, wire, request, caller)
        exchange = self._exchange(request, operation, argument, body.read, body.release)
        exchange.check_body = body.check
        if wire is not None:
            length = request.content_length
            exchange.whole = request.ordinary or (length is not None and length <= SMALL and request.is_eof())
            if wire.id_header:
                exchange.response_headers[wire.id_header] = exchange.id
        body.exchange = exchange
        try:
            await self.runner.run(exchange, self.chain, caller, local)
        finally:
            body.end()
        slot = request.protocol.slot
        if not slot.known:
            slot.known = Caller in exchange
        return caller.keep_alive

    def _exchange(
        self,
        request: ParsedRequest,
        operation: Operation,
        argument: str,
        read_body: Callable[[], Body | Awaitable[Body]],
        on_body_dropped: Callable[[], None] = lambda: None,
    ) -> Exchange:
        peer = request.protocol.slot.peer
        if self._proxies is not None:
            peer = self._proxies.caller_of(peer, request.headers)
        path, _, query = request.raw_path.partition("?")
        head = Request(request.method, path, request.headers, peer, operation, argument, query)
        return Exchange(head, read_body, on_body_dropped, self.chain.generation)

    def _on_unserved(self, request: ParsedRequest, left: bool) -> None:
        """Leave a record of a request that was read and is not served, because its connection closes. `left`: the caller did it."""
        if not request.raw_path.startswith(BASE):
            return
        exchange = self._exchange(request, MISDIRECTED, "", _no_body)
        caller = CallerConnection(request.protocol, None, http_1_1=True, keep_alive=False)

        async def end(_: Exchange) -> Reply:
            raise CallerGone if left else unavailable()

        task = asyncio.create_task(self.runner.run(exchange, self.chain, caller, end))
        self._unserved.add(task)
        task.add_done_callback(self._unserved.discard)

    def _granted(self, request: ParsedRequest) -> dict[str, str] | None:
        """Return the headers that let a page of another origin call, where a request asks for that and it may; else None."""
        return None

    async def _health(self, caller: CallerConnection, path: str) -> None:
        ready = not self.draining and (path == "/healthz" or await self.services.store.answers())
        headers = {"Content-Type": "text/plain"}
        if path == "/readyz":
            headers["x-config-generation"] = str(self.chain.generation)
        notes = []
        if ahead_s := ids.ahead_ms() // 1000:
            notes.append(f"the store's clock is {ahead_s} s ahead of this one")
        if late := late_since(self.services.store.usage.folder):
            notes.append(f"the usage log is {ids.now_ms() // 1000 - late // 1000} s behind")
        ok = f"ok, but {' and '.join(notes)}" if notes else "ok"
        caller.reply(200 if ready else 503, headers, f"{ok if ready else 'degraded'}\n".encode())

    def check(
        self, raw: bytes | bytearray, wire: WireFormat, owner: str, exchange: Exchange | None
    ) -> Body | Awaitable[Body]:
        """Return the checked body in its wire format, with the model that its alias stands for; `owner` is whose it is.

        Raises `Refused`, and `StoreAway`.
        """
        rules = self._rules
        texts = wire.check_texts(raw, rules)
        if texts is None or texts.model in rules.aliases:
            return self._check_in_steps(raw, wire, owner, exchange)
        return texts

    async def _check_in_steps(
        self, raw: bytes | bytearray, wire: WireFormat, owner: str, exchange: Exchange | None
    ) -> Body:
        steps = wire.check(raw, self._rules)
        body = checked(steps) if len(raw) <= SMALL else await self._large_bodies.check(steps, owner)
        if (model := self._rules.aliases.get(body.model)) is not None:
            if exchange is not None and not exchange.model:  # the caller's own body, not one that a plugin has changed
                exchange.requested_model, exchange.changed_by = body.model, (*exchange.changed_by, "aliases")
            body = msgspec.structs.replace(body, model=model)
        return await self._with_kept(body, exchange) if wire.keeps else body

    async def _with_kept(self, body: Body, exchange: Exchange | None) -> Body:
        """Return a body with what it names of earlier answers: the caller's own, of models that it may use."""
        caller, catalogue = None if exchange is None else exchange.get(Caller), self.services.catalogue
        model = catalogue.models.get(body.model)
        if not isinstance(body, CheckedBody) or not body.refers or model is None:
            return body
        found = {} if caller is None else await self.services.store.kept_ids.find(caller.account, body.refers)
        usable = {name: each for name, each in found.items() if caller and catalogue.allows(caller, each.model)}
        return with_kept(body, usable, model.context_length)


async def _no_body() -> Body:
    raise ConnectionResetError


def _refused_head(request: ParsedRequest, max_head: int) -> Refused | None:
    """Return why no caller could be served with this head: it is too large, or its framing is unclear. Else None."""
    if request.head_bytes > max_head:
        return head_too_large(max_head)
    coding = request.headers.get("Transfer-Encoding")
    if request.version not in (HttpVersion10, HttpVersion11):
        return Refused(400, "invalid_request", "Send the request as HTTP/1.1.")
    if coding is not None and (coding.lower() != "chunked" or request.version == HttpVersion10):
        return Refused(400, "invalid_request", "Send the body with Content-Length, or with the one coding `chunked`.")
    return None


def _is_unclear(request: ParsedRequest) -> bool:
    """Return whether caller and gateway may disagree about where the next request begins."""
    coding = request.headers.get("Transfer-Encoding", "chunked")
    return coding.lower() != "chunked" or expects_continue(request) or request.method == "CONNECT"


def _refuse_with(refusal: Refused) -> LocalHandler:
    async def handler(_: Exchange) -> Reply:
        raise refusal

    return handler


def is_preflight(request: ParsedRequest) -> bool:
    """Return whether a request is a browser's question about another one."""
    headers = request.headers
    return request.method == "OPTIONS" and "Origin" in headers and "Access-Control-Request-Method" in headers


def refused_preflight(request: ParsedRequest) -> Refused | None:
    """Return the refusal of a CORS preflight request that is not granted; None for a request that is no preflight."""
    if not is_preflight(request):
        return None
    return Refused(405, "method_not_allowed", NOT_NAMED, headers={"Allow": "GET, POST"})
