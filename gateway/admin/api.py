"""`/api/v1`: the table of operations over HTTP, JSON in and out; some send CSV, or server-sent events."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from aiohttp import web

from gateway.admin import openapi
from gateway.admin.connection import note_known
from gateway.admin.csv_file import CsvFiles
from gateway.admin.live import LiveUsage
from gateway.admin.received import body_of, query_of
from gateway.admin.repeats import REPLAYED, Answer, Repeatable, answered
from gateway.admin.unbroken import Unbroken
from gateway.management.desk import Actor, LocalDesk
from gateway.management.errors import PREFIX, refused
from gateway.management.operation import Arguments, Operation
from gateway.management.streamed import CsvFile, Feed, Streamed
from gateway.management.table import OPERATIONS

__all__ = ["ACTOR", "PREFIX", "DeskOf", "add_routes", "refused"]

ACTOR: Final = web.RequestKey("actor", Actor)
"""Where a request has who sent it."""

DeskOf = Callable[[Actor, str], LocalDesk]
"""Returns the desk of an actor, with what a repeated request has in common with the first, or an empty text."""

Send = Callable[[web.Request, Streamed], Awaitable[web.StreamResponse]]
"""Sends what is no JSON."""


def add_routes(application: web.Application, desk_of: DeskOf, live: LiveUsage) -> None:
    """Add a route for each operation. `live` has the streams of all paths."""
    unbroken, files = Unbroken(), CsvFiles()

    async def send(request: web.Request, streamed: Streamed) -> web.StreamResponse:
        if isinstance(streamed, Feed):
            return await live.send(request, streamed)
        if isinstance(streamed, CsvFile):
            return await files.send(request, streamed)
        raise TypeError(f"nothing sends {streamed}")

    for operation in OPERATIONS:
        path = PREFIX + operation.path
        for name in operation.in_path:  # any text, also an empty one: the operation says what is wrong with it
            path = path.replace(f"{{{name}}}", f"{{{name}:[^/]*}}")
        application.router.add_route(operation.method, path, _handler(operation, desk_of, unbroken, send))
    for path in (PREFIX + openapi.PATH, openapi.PATH):
        application.router.add_get(path, _description, allow_head=False)
    application.on_cleanup.append(unbroken.end)


async def _description(_: web.Request) -> web.Response:
    return web.Response(body=openapi.encoded(), content_type="application/json")


def _handler(
    operation: Operation[Any, Any], desk_of: DeskOf, unbroken: Unbroken, send: Send
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handle(request: web.Request) -> web.StreamResponse:
        actor = request[ACTOR]
        actor.need(operation.scope)  # before anything that was sent is read
        query = query_of(request, operation)
        body = await body_of(request, operation)
        note_known(request)
        arguments = Arguments(dict(request.match_info), query, body)
        repeatable = Repeatable.of(request, actor, operation, arguments)
        desk = desk_of(actor, repeatable.desk_key)
        if operation.writes:
            work = partial(desk.perform, operation, arguments)
            answer = await unbroken.done(answered(desk.store.client, repeatable, operation, work))
        else:
            result = await desk.perform(operation, arguments)
            if isinstance(result, Streamed):
                return await send(request, result)
            answer = Answer.of(operation, result)
        if not answer.body:
            return web.Response(status=answer.status)
        headers = {REPLAYED: "true"} if answer.replayed else None
        return web.Response(status=answer.status, body=answer.body, headers=headers, content_type="application/json")

    return handle
