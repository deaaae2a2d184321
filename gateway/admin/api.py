"""`/api/v1`: the table of operations over HTTP, JSON in and out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec
from aiohttp import web

from gateway.errors import GatewayError, Refused
from gateway.management.desk import Actor, LocalDesk
from gateway.management.operation import Arguments, Operation
from gateway.management.table import OPERATIONS

PREFIX: Final = "/api/v1"
STATUSES: Final[Mapping[str, tuple[int, str]]] = {
    "refused": (400, "invalid_request"),
    "misconfigured": (400, "invalid_request"),
    "not_found": (404, "not_found"),
    "exists": (409, "exists"),
    "conflict": (409, "conflict"),
    "store_away": (503, "service_unavailable"),
}
"""Kinds of errors with their status and code."""

ACTOR: Final = web.RequestKey("actor", Actor)
"""Where a request has who sent it."""

DeskOf = Callable[[Actor, str], LocalDesk]
"""Returns the desk of an actor, with what a repeated request has in common with the first, or an empty text."""


def add_routes(application: web.Application, desk_of: DeskOf) -> None:
    """Add a route for each operation."""
    for operation in OPERATIONS:
        application.router.add_route(operation.method, PREFIX + operation.path, _handler(operation, desk_of))


def _handler(operation: Operation[Any, Any], desk_of: DeskOf) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        desk = desk_of(request[ACTOR], "")
        query = None if operation.query is None else _query(request, operation.query)
        body = None if operation.body is None else await _body(request, operation.body)
        result = await desk.perform(operation, Arguments(dict(request.match_info), query, body))
        if result is None:
            return web.Response(status=204)
        return web.Response(status=operation.status, body=msgspec.json.encode(result), content_type="application/json")

    return handle


def refused(error: GatewayError) -> Refused:
    """Return an error of the gateway as the answer that says so."""
    status, code = STATUSES[error.kind]
    message = str(error) if error.kind != "store_away" else "The store does not answer: nothing was changed. Try again."
    return Refused(status, code, f"{message[:1].upper()}{message[1:].removesuffix('.')}.")


def _query(request: web.Request, kind: type[msgspec.Struct]) -> msgspec.Struct:
    values: dict[str, str] = {}
    for name, text in request.query.items():
        if name in values:
            raise Refused(400, "invalid_request", f"Give the parameter {name!a} once.", param="query")
        values[name] = text
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Refused(400, "invalid_request", f"The query: {error}.", param="query") from None


async def _body(request: web.Request, kind: type[msgspec.Struct]) -> msgspec.Struct:
    try:
        return msgspec.json.decode(await request.read(), type=kind)
    except msgspec.DecodeError as error:
        raise Refused(400, "invalid_request", f"The body: {error}.", param="body") from None
