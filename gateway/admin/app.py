"""The admin port: metrics, the usage log and the API over HTTP, for operators. On loopback unless the file says otherwise.

1. A caller without a token learns only that the port is served: `GET /healthz` answers `ok`, all else 401.
2. It runs in a process of its own, which the gateway does not need: an address that is taken is logged as an error once, and
   tried again.
3. Nothing is buffered for a client of the live stream that reads slowly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Set as AbstractSet
from datetime import date
from pathlib import Path
from typing import Final, Protocol

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from gateway.admin import api
from gateway.admin.answers import ID, add_headers, error_response, of_http
from gateway.admin.api import ACTOR, DeskOf
from gateway.admin.callers import Callers
from gateway.admin.connection import note_known
from gateway.admin.live import LIVE, LiveUsage
from gateway.errors import GatewayError, Refused, StoreError, internal
from gateway.log import Logger
from gateway.management.operation import Scope
from gateway.management.streamed import Feed
from gateway.metrics.exporter import Exporter
from gateway.request_id import new_id
from gateway.usage import gaps, queries
from gateway.usage.tables import GROUPS

KNOWN: Final = (
    f"Known here: GET /metrics, /usage/live, /usage/summary, and what GET {api.PREFIX}/openapi.json describes."
)
MAX_GAPS: Final = 20
"""Gaps of the usage log that a header names, the last ones."""

log = Logger("gateway.admin.app")


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
                note_known(request)
                if not request.path.startswith(api.PREFIX) and Scope.READ not in actor.scopes:
                    raise Refused(403, "scope_missing", "This needs the scope `read`.")
            return await handler(request)
        except Refused as refused:
            return error_response(request, refused)
        except web.HTTPException as error:
            if error.status < 400:
                raise
            return error_response(request, of_http(error, KNOWN))
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
