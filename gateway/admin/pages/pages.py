"""The routes of the pages, and what is done around each: who looks, the form's checks, errors as pages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Set
from contextlib import nullcontext
from functools import partial
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler
from aiohttp_session import SESSION_KEY, session_middleware

from gateway.admin.api import ACTOR, DeskOf, refused
from gateway.admin.connection import note_known
from gateway.admin.csv_file import CsvFiles
from gateway.admin.pages import accounts, audit, channels, configuration, forms, now, own, requests, revenue, tokens
from gateway.admin.pages.door import OWN, Door, Visitor
from gateway.admin.pages.forms import Form
from gateway.admin.pages.own_bounds import OwnBounds
from gateway.admin.pages.pulse import Pulse
from gateway.admin.pages.rendering import Assets, render, set_up
from gateway.admin.pages.sessions import StoreStorage
from gateway.admin.pages.visit import FILES, VISITOR, Page, Visit, context_of
from gateway.admin.unbroken import Unbroken
from gateway.errors import GatewayError, Refused, StoreAway, headers_of, internal
from gateway.log import Logger
from gateway.management.desk import Actor
from gateway.management.links import ENTER
from gateway.management.operation import Scope
from gateway.metrics.shared import SharedNumbers

COOKIE: Final = "sluicegate"
"""Of the operator's port. That of a port for callers alone has another name: browsers send a host's cookies to all its ports."""
PAGES: Final[tuple[tuple[str, str, Page], ...]] = (
    *now.PAGES,
    *requests.PAGES,
    *accounts.PAGES,
    *tokens.PAGES,
    *channels.PAGES,
    *revenue.PAGES,
    *configuration.PAGES,
    *audit.PAGES,
)
OWN_PAGES: Final[tuple[tuple[str, str, Page], ...]] = own.PAGES
"""Those of callers."""
OPERATORS_ONLY: Final = "This page is for operators. Yours is /my."
CALLERS_ONLY: Final = "This page is for callers, who enter by a link of their own: `gateway account link ID` makes one."
NOBODY: Final = Actor("nobody", frozenset())

log = Logger("gateway.admin.pages.pages")


class Pages:
    """The pages of one operator's port."""

    def __init__(
        self,
        desk_of: DeskOf,
        admin_token: Callable[[], str],
        numbers: Mapping[str, SharedNumbers],
        *,
        operators: bool = True,
    ) -> None:
        """`desk_of` returns the desk of who looks, `admin_token` the token that is accepted at the moment.

        `numbers`: what the processes of this gateway count, by their names. Without `operators`, only callers' pages are there.
        """
        self._desk_of = desk_of
        self._operators = operators
        desk = desk_of(NOBODY, "")
        self._door = Door(desk.store, lambda: desk_of(NOBODY, "").config, admin_token, operators=operators)
        self._storage = StoreStorage(
            desk.store.client, COOKIE if operators else f"{COOKIE}-portal", self._door.is_secure
        )
        self._sessions = session_middleware(self._storage)
        self._assets = Assets()
        self._unbroken = Unbroken()
        self._own_bounds = OwnBounds()
        self._pulse = Pulse(desk.usage_folder, numbers, desk.store.answers)

    def add_routes(self, application: web.Application) -> frozenset[web.AbstractResource]:
        """Add the routes, and return what they belong to: the pages check themselves who looks."""
        set_up(application, self._assets)
        application.on_cleanup.append(self._unbroken.end)
        application[now.PULSE], application[FILES] = self._pulse, CsvFiles()
        application.on_shutdown.append(self._pulse.stop)
        if self._operators:
            application.cleanup_ctx.append(self._warming)
        add = application.router.add_route
        routes = [
            add("GET", "/static/{name}", self._assets.get),
            add("GET", ENTER, self._guarded(self._door_page)),
            add("POST", ENTER, self._guarded(self._enter)),
            add("POST", "/leave", self._guarded(self._leave)),
            *(add(method, path, self._guarded(self._handler(page, own=True))) for method, path, page in OWN_PAGES),
        ]
        if self._operators:
            routes += [add(method, path, self._guarded(self._handler(page))) for method, path, page in PAGES]
        else:
            routes.append(add("GET", "/", self._guarded(self._to_own)))
        shown = {path for method, path, _ in (*OWN_PAGES, *PAGES) if method == "GET"}
        for method, path, _ in (*OWN_PAGES, *(PAGES if self._operators else ())):
            if method == "POST" and path not in shown:
                routes.append(add("GET", path, self._guarded(_back_to(path, shown))))
        return frozenset(route.resource for route in routes if route.resource is not None)

    async def _warming(self, _: web.Application) -> AsyncIterator[None]:
        """Read what takes long when it is read first, beside the requests that come meanwhile."""

        async def warm() -> None:
            try:
                await revenue.warm(self._desk_of(Actor("start", frozenset({Scope.READ})), ""))
            except GatewayError as error:
                log.warning("pages_not_warm", reason=str(error))

        task = asyncio.get_running_loop().create_task(warm())
        yield
        task.cancel()
        await asyncio.wait((task,))

    async def _to_own(self, _: web.Request) -> web.StreamResponse:
        raise web.HTTPSeeOther(OWN)

    def _guarded(self, handler: Handler) -> Handler:
        """Return a handler with sessions, whose errors are pages."""

        async def answer(request: web.Request) -> web.StreamResponse:
            try:
                return await handler(request)
            except (web.HTTPException, ConnectionError):
                raise
            except Exception as error:
                return self._problem(request, error)

        async def handle(request: web.Request) -> web.StreamResponse:
            try:
                return await self._sessions(request, answer)
            except StoreAway as error:  # where the session cannot be saved
                return self._problem(request, error)

        return handle

    def _handler(self, page: Page, *, own: bool = False) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            visitor = await self._door.visitor(request)
            if visitor is None:
                return render(request, "stranger.html", context_of(request), 401)
            request[ACTOR], request[VISITOR] = visitor.actor, visitor
            if own != bool(visitor.account):
                raise Refused(403, "other_pages", CALLERS_ONLY if own else OPERATORS_ONLY)
            async with self._own_bounds.turn(visitor.account) if own else nullcontext():
                return await self._shown(request, visitor, page)

        return handle

    async def _shown(self, request: web.Request, visitor: Visitor, page: Page) -> web.StreamResponse:
        """Answer somebody who has entered, and may see the page."""
        note_known(request)
        form = Form({})
        if request.method == "POST":
            form = await forms.read(request)
            note_known(request)
            forms.check_proof(form, visitor.form)
            if visitor.account:
                self._own_bounds.count_change(visitor.account)
        key = form["once"] and f"{visitor.form} {form['once']}"
        desk = self._desk_of(visitor.actor, key)
        visit = Visit(request, visitor, desk, form, partial(self._is_still_in, request))
        return await (self._unbroken.done(page(visit)) if request.method == "POST" else page(visit))

    async def _is_still_in(self, request: web.Request) -> bool:
        request[SESSION_KEY] = await self._storage.load_session(request)
        return await self._door.visitor(request) is not None

    async def _door_page(self, request: web.Request) -> web.StreamResponse:
        """Show the form that sends a ticket: a program that only follows links uses none up."""
        ticket = request.query.get("ticket", "")
        if not ticket:
            return render(request, "stranger.html", context_of(request), 401)
        return render(request, "enter.html", context_of(request) | {"ticket": ticket})

    async def _enter(self, request: web.Request) -> web.StreamResponse:
        form = await forms.read(request)
        raise web.HTTPSeeOther(await self._door.enter(request, form["ticket"]))

    async def _leave(self, request: web.Request) -> web.StreamResponse:
        visitor = await self._door.visitor(request)
        form = await forms.read(request)
        if visitor is not None:
            forms.check_proof(form, visitor.form)
            await self._door.leave(request)
        return render(request, "left.html", context_of(request) | {"by_header": bool(visitor and visitor.by_header)})

    def _problem(self, request: web.Request, error: Exception) -> web.Response:
        """Return an error as a page."""
        if isinstance(error, GatewayError):
            shown = error if isinstance(error, Refused) else refused(error)
        else:
            log.error("page_failed", exc_info=error)
            shown = internal()
        response = render(request, "problem.html", context_of(request) | {"error": shown}, shown.status)
        if shown.status == 429:
            response.headers.update(headers_of(shown))
        return response


def _back_to(path: str, shown: Set[str]) -> Handler:
    """Return the handler of somebody who looks at the address of a form, as after a reload: it shows the page with the form."""
    parts = path.count("/")
    while path not in shown:
        path, parts = path.rpartition("/")[0], parts - 1

    async def handle(request: web.Request) -> web.StreamResponse:
        raise web.HTTPSeeOther("/".join(request.rel_url.raw_path.split("/")[: parts + 1]))

    return handle
