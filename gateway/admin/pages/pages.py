"""The routes of the pages, and what is done around each: who looks, the form's checks, errors as pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any, Final

from aiohttp import web
from aiohttp.typedefs import Handler
from aiohttp_session import SESSION_KEY, session_middleware

from gateway.admin.actions import channels as channel_actions
from gateway.admin.actions.action import Actor, Scope
from gateway.admin.actions.channels import ChannelNow
from gateway.admin.actions.links import ENTER
from gateway.admin.http.api import ACTOR, ClientOf, refused
from gateway.admin.http.idempotency import Unbroken
from gateway.admin.pages import (
    accounts,
    callers,
    channels,
    charts,
    docs,
    logs,
    now,
    requests,
    revenue,
    tokens,
    view,
)
from gateway.admin.pages.callers import OwnBounds
from gateway.admin.pages.login import OWN, Login, StoreStorage, User
from gateway.admin.pages.now import LiveStats
from gateway.admin.pages.view import USER, Assets, Form, Page, View, context_of, render, set_up
from gateway.base.errors import GatewayError, Refused, StoreAway, headers_of, internal
from gateway.base.log import log
from gateway.metrics.shared import SharedNumbers

COOKIE: Final = "sluicegate"
"""Of the operator's port. That of a port for callers alone has another name: browsers send a host's cookies to all its ports."""
PAGES: Final[tuple[tuple[str, str, Page], ...]] = (
    *now.PAGES,
    *charts.PAGES,
    *requests.PAGES,
    *accounts.PAGES,
    *tokens.PAGES,
    *channels.PAGES,
    *revenue.PAGES,
    *channels.CONFIGURATION_PAGES,
    *logs.PAGES,
)
OWN_PAGES: Final[tuple[tuple[str, str, Page], ...]] = (*callers.PAGES, *tokens.OWN_PAGES)
"""Those of callers."""
OPERATORS_ONLY: Final = "This page is for operators. Yours is /my."
CALLERS_ONLY: Final = "This page is for callers, who enter by a link of their own: `gateway account link ID` makes one."
NOBODY: Final = Actor("nobody", frozenset())


class Pages:
    """The pages of one operator's port."""

    def __init__(
        self,
        client_of: ClientOf,
        admin_token: Callable[[], str],
        numbers: Mapping[str, SharedNumbers],
        *,
        operators: bool = True,
    ) -> None:
        """`client_of` returns the client of who looks, `admin_token` the token that is accepted at the moment.

        `numbers`: what the processes of this gateway count, by their names. Without `operators`, only callers' pages are there.
        """
        self._client_of = client_of
        self._operators = operators
        client = client_of(NOBODY, "")
        self._login = Login(client.store, lambda: client_of(NOBODY, "").config, admin_token, operators=operators)
        self._storage = StoreStorage(
            client.store.client, COOKIE if operators else f"{COOKIE}-portal", self._login.is_secure
        )
        self._sessions = session_middleware(self._storage)
        self._assets = Assets()
        self._unbroken = Unbroken()
        self._own_bounds = OwnBounds()
        self._live_stats = LiveStats(client.usage_home, numbers, client.store.answers, self._channels)

    def add_routes(self, application: web.Application) -> frozenset[web.AbstractResource]:
        """Add the routes, and return what they belong to: the pages check themselves who looks."""
        set_up(application, self._assets)
        application.on_cleanup.append(self._unbroken.end)
        application[now.LIVE_STATS] = self._live_stats
        application.on_shutdown.append(self._live_stats.stop)
        add = application.router.add_route
        routes = [
            add("GET", "/static/{name}", self._assets.get),
            add("GET", ENTER, self._guarded(self._login_page)),
            add("POST", ENTER, self._guarded(self._enter)),
            add("POST", "/leave", self._guarded(self._leave)),
            *(add(method, path, self._guarded(self._handler(page, own=True))) for method, path, page in OWN_PAGES),
        ]
        if self._operators:
            routes += [add(method, path, self._guarded(self._handler(page))) for method, path, page in PAGES]
            routes += [
                add("GET", path, self._guarded(self._documents(docs.show)))
                for path in (docs.DOCS, f"{docs.DOCS}/{{name:.+}}")
            ]
        else:
            path = f"{docs.DOCS}/{docs.FOR_CALLERS}"
            routes += [
                add("GET", "/", self._guarded(self._to_own)),
                add("GET", path, self._guarded(self._documents(docs.show_for_callers))),
            ]
        shown = {path for method, path, _ in (*OWN_PAGES, *PAGES) if method == "GET"}
        for method, path, _ in (*OWN_PAGES, *(PAGES if self._operators else ())):
            if method == "POST" and path not in shown:
                routes.append(add("GET", path, self._guarded(_back_to(path, shown))))
        return frozenset(route.resource for route in routes if route.resource is not None)

    async def _channels(self) -> list[ChannelNow]:
        return (await channel_actions.list_(self._client_of(Actor("now", frozenset({Scope.READ})), ""))).data

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
            user = await self._login.user(request)
            if user is None:
                return self._signed_out(request)
            request[ACTOR], request[USER] = user.actor, user
            if own != bool(user.account):
                raise Refused(403, "other_pages", CALLERS_ONLY if own else OPERATORS_ONLY)
            async with self._own_bounds.turn(user.account) if own else nullcontext():
                return await self._shown(request, user, page)

        return handle

    async def _shown(self, request: web.Request, user: User, page: Page) -> web.StreamResponse:
        """Answer somebody who has entered, and may see the page."""
        form = Form({})
        if request.method == "POST":
            form = await view.read(request)
            view.check_proof(form, user.form)
            if user.account:
                self._own_bounds.count_change(user.account)
        key = form["once"] and f"{user.form} {form['once']}"
        client = self._client_of(user.actor, key)
        shown = page(View(request, user, client, form, partial(self._is_still_in, request)))
        return await (self._unbroken.done(shown) if request.method == "POST" else shown)

    async def _is_still_in(self, request: web.Request) -> bool:
        request[SESSION_KEY] = await self._storage.load_session(request)
        return await self._login.user(request) is not None

    async def _login_page(self, request: web.Request) -> web.StreamResponse:
        """Show the form that sends a ticket: a program that only follows links uses none up."""
        ticket = request.query.get("ticket", "")
        if not ticket:
            return self._signed_out(request)
        return render(request, "enter.html", context_of(request) | {"ticket": ticket})

    def _documents(self, show: Handler) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            with suppress(GatewayError):  # they are for anybody, also while the store is away
                if (user := await self._login.user(request)) is not None:
                    request[USER] = user
            return await show(request)

        return handle

    async def missing(self, request: web.Request) -> web.StreamResponse:
        """Say that there is no such page."""

        async def page(request: web.Request) -> web.StreamResponse:
            user = await self._login.user(request)
            if user is None:
                return self._signed_out(request)
            request[USER] = user
            raise Refused(404, "not_found", "There is no page at this address.")

        return await self._guarded(page)(request)

    def _signed_out(
        self, request: web.Request, template: str = "signed_out.html", status: int = 401, **more: Any
    ) -> web.Response:
        """Return a page for somebody who has not entered: at the portal with what the operator tells callers."""
        portal = None if self._operators else self._client_of(NOBODY, "").config.portal
        context = {"portal": portal, "takes_tokens": self._login.takes_tokens(request)} | more
        return render(request, template, context_of(request) | context, status)

    async def _enter(self, request: web.Request) -> web.StreamResponse:
        form = await view.read(request)
        if text := form["token"]:
            raise web.HTTPSeeOther(await self._login.sign_in(request, text))
        raise web.HTTPSeeOther(await self._login.enter(request, form["ticket"]))

    async def _leave(self, request: web.Request) -> web.StreamResponse:
        user = await self._login.user(request)
        form = await view.read(request)
        if user is not None:
            view.check_proof(form, user.form)
            await self._login.leave(request)
        return self._signed_out(request, "left.html", 200, by_header=bool(user and user.by_header))

    def _problem(self, request: web.Request, error: Exception) -> web.Response:
        """Return an error as a page."""
        if isinstance(error, GatewayError):
            shown = error if isinstance(error, Refused) else refused(error)
        else:
            log.error("page_failed", exc_info=error)
            shown = internal()
        response = self._signed_out(request, "problem.html", shown.status, error=shown)
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
