"""The callers' pages on a port of their own (`portal:`), where nothing of the operator's port is: what callers may be let to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web
from aiohttp.typedefs import Handler

from gateway.admin.http.responses import add_headers, answered, is_lost

if TYPE_CHECKING:
    from gateway.admin.pages.pages import Pages

KNOWN = "Known here: the pages that a link leads to, which the operator makes."


class Portal:
    """The application of that port."""

    def __init__(self, pages: Pages) -> None:
        """`pages`: those of callers alone."""
        self._pages = pages

    def application(self) -> web.Application:
        """Return the application with all routes."""
        application = web.Application(middlewares=[self._guard])
        application.router.add_get("/healthz", self._health)
        self._pages.add_routes(application)
        application.on_response_prepare.append(add_headers)
        return application

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        return await answered(request, self._pages.missing if is_lost(request) else handler, KNOWN)

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")
