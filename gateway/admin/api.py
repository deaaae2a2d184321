"""`/api/v1`: the table of operations over HTTP, JSON in and out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from aiohttp import web

from gateway.admin.received import body_of, query_of
from gateway.admin.unbroken import Unbroken
from gateway.management.desk import Actor, LocalDesk
from gateway.management.errors import PREFIX, refused
from gateway.management.operation import Arguments, Operation
from gateway.management.table import OPERATIONS

__all__ = ["ACTOR", "PREFIX", "DeskOf", "add_routes", "refused"]

ACTOR: Final = web.RequestKey("actor", Actor)
"""Where a request has who sent it."""

DeskOf = Callable[[Actor, str], LocalDesk]
"""Returns the desk of an actor, with what a repeated request has in common with the first, or an empty text."""


def add_routes(application: web.Application, desk_of: DeskOf) -> None:
    """Add a route for each operation."""
    unbroken = Unbroken()
    for operation in OPERATIONS:
        path = PREFIX + operation.path
        for (
            name
        ) in operation.in_path:  # also a text that is empty or has braces, of which the operation says what is wrong
            path = path.replace(f"{{{name}}}", f"{{{name}:[^/]*}}")
        application.router.add_route(operation.method, path, _handler(operation, desk_of, unbroken))
    application.on_cleanup.append(unbroken.end)


def _handler(
    operation: Operation[Any, Any], desk_of: DeskOf, unbroken: Unbroken
) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        desk = desk_of(request[ACTOR], "")
        query = query_of(request, operation)
        body, _ = await body_of(request, operation)
        work = desk.perform(operation, Arguments(dict(request.match_info), query, body))
        result = await (unbroken.done(work) if operation.writes else work)
        if result is None:
            return web.Response(status=204)
        return web.Response(status=operation.status, body=msgspec.json.encode(result), content_type="application/json")

    return handle
