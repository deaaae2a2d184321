"""The admin port: metrics and the API over HTTP, for operators. On loopback unless the file says otherwise.

The callers' pages may be on a port of their own (`portal:`), where nothing of the operator's port is.

1. A caller without a token learns only that the port is served (`GET /healthz` answers `ok`), and what is in every gateway: the
   description of the API, and the documents. All else is 401.
2. It runs in a process of its own, which the gateway does not need: an address that is taken is logged as an error once, and
   tried again.
3. Nothing is buffered for a client of the live stream that reads slowly.
4. A caller has the admin token, or a management token with its scopes. Wrong tokens are counted and logged with their address:
   nobody finds a token of 256 random bits by trying.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Final

from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from gateway.admin.actions.action import Actor, Scope
from gateway.admin.actions.management_tokens import ManagementTokens
from gateway.admin.http import api, openapi
from gateway.admin.http.api import ACTOR, ClientOf
from gateway.admin.http.responses import add_headers, answered, is_lost
from gateway.admin.http.usage_feed import LiveUsage
from gateway.base.errors import Refused
from gateway.base.log import log
from gateway.metrics.exporter import Exporter

if TYPE_CHECKING:
    from gateway.admin.pages.pages import Pages

METRICS: Final = "/metrics"
KNOWN: Final = f"Known here: GET /metrics, and what GET {api.PREFIX}/openapi.json describes."
KNOWN_TO_CALLERS: Final = "Known here: the pages that a link leads to, which the operator makes."

OPEN: Final = ("/healthz", openapi.PATH, f"{api.PREFIX}{openapi.PATH}")
"""What everybody may read: nothing of this gateway is in it."""

ADMIN: Final = Actor("admin.token")


class Admin:
    """The routes of the admin port, and the check of who calls before them."""

    def __init__(
        self, callers: Callers, exporter: Exporter, client_of: ClientOf | None = None, pages: Pages | None = None
    ) -> None:
        """Serve the metrics of `exporter`; and with `client_of`, the API."""
        self._exporter = exporter
        self._callers = callers
        self._client_of = client_of
        self._live = LiveUsage()
        self._pages = pages
        self._of_pages: AbstractSet[web.AbstractResource] = frozenset()

    def application(self) -> web.Application:
        """Return the application with all routes."""
        application = web.Application(middlewares=[self._guard], client_max_size=api.MAX_BODY)
        application.router.add_get("/healthz", _health)
        application.router.add_get(METRICS, self._metrics)
        if self._client_of is not None:
            api.add_routes(application, self._client_of, self._live)
        if self._pages is not None:
            self._of_pages = self._pages.add_routes(application)
        application.on_shutdown.append(self._live.stop)
        application.on_response_prepare.append(add_headers)
        return application

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Find out who calls, before the handler answers."""

        async def of_somebody(request: web.Request) -> web.StreamResponse:
            if self._pages is not None and is_lost(request):
                return await self._pages.missing(request)
            if request.match_info.route.resource not in self._of_pages and request.path not in OPEN:
                authorization = request.headers.get("Authorization", "")
                request[ACTOR] = actor = await self._callers.of(authorization, request.remote or "")
                scopes = {Scope.READ, Scope.METRICS} if request.path == METRICS else {Scope.READ}
                if not request.path.startswith(api.PREFIX) and not scopes & actor.scopes:
                    raise Refused(403, "scope_missing", f"This needs the scope `{min(scopes)}`.")
            return await handler(request)

        return await answered(request, of_somebody, KNOWN)

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._exporter.exposition(), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})


async def _health(_: web.Request) -> web.Response:
    return web.Response(text="ok\n")


def portal(pages: Pages) -> web.Application:
    """Return the application of the portal. `pages`: those of callers alone."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        return await answered(request, pages.missing if is_lost(request) else handler, KNOWN_TO_CALLERS)

    application = web.Application(middlewares=[guard])
    application.router.add_get("/healthz", _health)
    pages.add_routes(application)
    application.on_response_prepare.append(add_headers)
    return application


class Callers:
    """Finds out who calls."""

    def __init__(
        self, token: Callable[[], str], tokens: ManagementTokens, count: Callable[[], None] = lambda: None
    ) -> None:
        """`token` returns the admin token, and is asked at each request. `count` is called for each wrong token."""
        self._token = token
        self._tokens = tokens
        self._count = count

    async def of(self, authorization: str, address: str) -> Actor:
        """Return who sent a request with this header from this address.

        Raises `Refused` (401), and `StoreAway` for management tokens.
        """
        scheme, _, text = authorization.partition(" ")
        if scheme.lower() == "bearer":
            given = text.strip().encode("utf-8", "surrogateescape")
            if hmac.compare_digest(given, self._token().encode()):
                return ADMIN
            token = await self._tokens.authenticate(text.strip())
            if token is not None:
                scopes = frozenset(map(Scope, set(token.scopes) & set(Scope)))
                return Actor(f"token {token.id} {token.name}".rstrip(), scopes, token.id)
        if authorization:
            self._count()
            log.warning("admin_tokens_wrong", address=address)
        raise Refused(
            401, "token_invalid", "Send the admin token or a management token: `Authorization: Bearer TOKEN`."
        )
