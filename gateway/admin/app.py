"""The admin port: metrics, the usage log and the API over HTTP, for operators. On loopback unless the file says otherwise.

1. A caller without a token learns only that the port is served: `GET /healthz` answers `ok`, all else 401.
2. It runs in a process of its own, which the gateway does not need: an address that is taken is logged as an error once, and
   tried again.
3. Nothing is buffered for a client of the live stream that reads slowly.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager, suppress
from datetime import date
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from gateway.admin import api
from gateway.admin.api import ACTOR, DeskOf
from gateway.admin.callers import Callers
from gateway.admin.live import LIVE, LiveUsage
from gateway.config.schema import host_port
from gateway.errors import GatewayError, Refused, StoreError, cannot_listen, headers_of, internal, render
from gateway.log import Logger
from gateway.management.operation import Scope
from gateway.management.streamed import Feed
from gateway.metrics.exporter import Exporter
from gateway.request_id import new_id
from gateway.server.answers import MALFORMED
from gateway.usage import gaps, queries
from gateway.usage.tables import GROUPS

RETRY_INTERVAL_S: Final = 10.0
SHUTDOWN_TIMEOUT_S: Final = 0.5
NOTHING: Final = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
ID: Final = web.RequestKey("request_id", str)
KNOWN: Final = (
    f"Known here: GET /metrics, /usage/live, /usage/summary, and what GET {api.PREFIX}/openapi.json describes."
)
MAX_GAPS: Final = 20
"""Gaps of the usage log that a header names, the last ones."""

log = Logger("gateway.admin.app")


class Site(Protocol):
    """What is served on a port."""

    def application(self) -> web.Application:
        """Return a new application."""


async def run(site: Site, address: str, stop: asyncio.Event, name: str = "admin") -> None:
    """Serve `site` on `address` until `stop` is set; while another program listens there, try again.

    `name`: of the setting with the address, for the log.
    """
    reported = False
    while not stop.is_set():
        try:
            async with serving(site, address):
                log.info(f"{name}_port_served", address=address)
                await stop.wait()
        except OSError as error:
            if not reported:
                reason = cannot_listen(address, error)
                log.error(f"{name}_port_not_served", reason=reason, cure=f"stop it or change `{name}:`")
            reported = True
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), RETRY_INTERVAL_S)


@asynccontextmanager
async def serving(site: Site, address: str) -> AsyncIterator[int]:
    """Serve `site` on `address` and yield the port's number. Raises `OSError` when the address is taken."""
    runner = _Runner(
        site.application(), access_log=None, shutdown_timeout=SHUTDOWN_TIMEOUT_S, handler_cancellation=True
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, *host_port(address)).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


class _Handler(web.RequestHandler):
    """A connection, which answers also what is no request of HTTP with the headers that every answer has."""

    __slots__ = ()

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, *given: Any, **named: Any
    ) -> web.StreamResponse:
        if status < 500:  # aiohttp would log it with a traceback, and repeat what was sent
            request[ID] = new_id()
            response: web.StreamResponse = error_response(request, Refused(status, "invalid_request", MALFORMED))
            response.headers["x-request-id"] = request[ID]
            response.force_close()
        else:
            response = super().handle_error(request, status, *given, **named)
        _complete(response)
        return response


class _Server(web.Server):
    def __call__(self) -> web.RequestHandler:
        return _Handler(self, loop=self._loop, **self._kwargs)


class _Runner(web.AppRunner):
    async def _make_server(self) -> web.Server:
        server = await super()._make_server()
        server.__class__ = _Server
        return server


class OwnPages(Protocol):
    """Pages, which find out themselves who looks at them."""

    def add_routes(self, application: web.Application) -> AbstractSet[web.AbstractResource]:
        """Add their routes, and return what these belong to."""


class Admin:
    """The routes of the admin port, and the check of who calls before them."""

    def __init__(
        self,
        folder: Path,
        callers: Callers,
        exporter: Exporter,
        desk_of: DeskOf | None = None,
        pages: OwnPages | None = None,
    ) -> None:
        """Answer from the usage log in `folder` and the metrics of `exporter`; and with `desk_of`, serve the API."""
        self._folder = folder
        self._exporter = exporter
        self._callers = callers
        self._desk_of = desk_of
        self._live = LiveUsage()
        self._pages = pages
        self._of_pages: AbstractSet[web.AbstractResource] = frozenset()

    def application(self) -> web.Application:
        """Return the application with all routes."""
        application = web.Application(middlewares=[self._guard])
        application.router.add_get("/healthz", self._health)
        application.router.add_get("/metrics", self._metrics)
        application.router.add_get(LIVE, self._follow)
        application.router.add_get("/usage/summary", self._summary)
        if self._desk_of is not None:
            api.add_routes(application, self._desk_of, self._live)
        if self._pages is not None:
            self._of_pages = self._pages.add_routes(application)
        application.on_shutdown.append(self._live.stop)
        application.on_response_prepare.append(add_headers)
        return application

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Find out who calls, and turn what the handler raises into an error response."""
        request[ID] = new_id()
        try:
            if request.match_info.route.resource in self._of_pages:
                return await handler(request)
            if request.path != "/healthz":
                authorization = request.headers.get("Authorization", "")
                request[ACTOR] = actor = await self._callers.of(authorization, request.remote or "")
                if not request.path.startswith(api.PREFIX) and Scope.READ not in actor.scopes:
                    raise Refused(403, "scope_missing", "This needs the scope `read`.")
            return await handler(request)
        except Refused as refused:
            return error_response(request, refused)
        except web.HTTPException as error:
            if error.status < 400:
                raise
            return error_response(request, of_http(error))
        except ConnectionError:
            raise
        except StoreError as error:
            log.error("admin_request_failed", reason=str(error))
            return error_response(request, internal())
        except GatewayError as error:
            return error_response(request, api.refused(error))
        except Exception as error:
            log.error("admin_request_failed", exc_info=error)
            return error_response(request, internal())

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._exporter.exposition(), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})

    async def _follow(self, request: web.Request) -> web.StreamResponse:
        account = request.query.get("account")
        return await self._live.send(request, Feed(self._folder, lambda record: account in (None, record.account)))

    async def _summary(self, request: web.Request) -> web.Response:
        by = [name for name in request.query.get("by", "day").split(",") if name]
        if not set(by) <= set(GROUPS):
            raise Refused(400, "invalid_request", f"`by` is some of {', '.join(GROUPS)}, with commas.", param="by")
        first, last = _day(request, "from"), _day(request, "to")
        totals = await asyncio.to_thread(queries.summary, self._folder, by, since=first, until=last)
        notes = await asyncio.to_thread(gaps.notes, self._folder, *gaps.span_ms(first, last))
        missing = {"Usage-Log-Gaps": "; ".join(notes[-MAX_GAPS:])} if notes else {}
        return web.Response(body=msgspec.json.encode(totals), headers=missing, content_type="application/json")


def _day(request: web.Request, name: str) -> str | None:
    """Return a day of the query as ISO 8601, or None. Raises `Refused` when it is not a day."""
    text = request.query.get(name)
    try:
        return text and date.fromisoformat(text).isoformat()
    except ValueError:
        raise Refused(400, "invalid_request", f"`{name}` is a day such as 2026-11-21.", param=name) from None


def of_http(error: web.HTTPException, known: str = KNOWN) -> Refused:
    """Return an error of aiohttp in the shape of all others. `known`: what is said of a path that is not there."""
    if error.status == 405:
        allowed = error.headers.get("Allow", "")
        return Refused(405, "method_not_allowed", f"Allowed here: {allowed}.", headers={"Allow": allowed})
    if error.status == 413:
        return Refused(413, "body_too_large", "The body is too large.")
    if error.status == 404:
        return Refused(404, "unknown_path", known)
    return Refused(max(400, error.status), "invalid_request", f"{error.reason}.")


def error_response(request: web.BaseRequest, refused: Refused) -> web.Response:
    """Return an error in the shape of all others."""
    body = render(refused, request[ID])
    return web.Response(status=refused.status, body=body, headers=headers_of(refused), content_type="application/json")


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Let no browser run, frame or keep what this port answers."""
    _complete(response)
    if ID in request:
        response.headers.setdefault("x-request-id", request[ID])


def _complete(response: web.StreamResponse) -> None:
    """Let no browser run, frame or keep what this port answers; pages say more exactly what they need."""
    response.headers.setdefault("Content-Security-Policy", NOTHING)
    if response.headers.get("Cache-Control", "no-cache") == "no-cache":  # what the library of the live stream says
        response.headers["Cache-Control"] = "no-store"
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers.setdefault("Referrer-Policy", "no-referrer")
