"""`/api/v1`: the table of actions over HTTP, JSON in and out; some send CSV, or server-sent events.

The query and the JSON body of a request are checked against the structs of the action. A refusal says in words, with the
parameter or the field as `param`, what is wrong, before anything is done. CSV is written as it is read, so that a file of any
length takes no more memory than some lines.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, NoReturn

import msgspec
from aiohttp import web

from gateway.admin.actions.action import PREFIX, Action, Actor, Arguments, refused
from gateway.admin.actions.local import LocalClient
from gateway.admin.actions.table import ACTIONS
from gateway.admin.actions.usage import CsvFile, Feed
from gateway.admin.http import openapi
from gateway.admin.http.idempotency import REPLAYED, Idempotency, KeptAnswer, Unbroken, answered
from gateway.admin.http.usage_feed import LiveUsage
from gateway.base.errors import Refused

__all__ = ["ACTOR", "PREFIX", "ClientOf", "add_routes", "refused"]

ACTOR: Final = web.RequestKey("actor", Actor)
"""Where a request has who sent it."""

ClientOf = Callable[[Actor, str], LocalClient]
"""Returns the client of an actor, with what a repeated request has in common with the first, or an empty text."""

MAX_BODY: Final = 10 * 1024 * 1024
"""Bytes of a body: an import of many rows is the largest."""
LARGE: Final = 64 * 1024
"""Bytes of a body that is checked in a thread."""
LIST: Final = "by"
"""The parameter that is a list: with commas, or given several times, as generated clients do."""
_PLACE: Final = re.compile(r"^(?P<what>.*?)(?: - at `(?:\$\.?)(?P<path>.*)`)?$", re.DOTALL)
_FIELD: Final = re.compile(r"(?:missing required|contains unknown) field `(.*)`")


def add_routes(application: web.Application, client_of: ClientOf, live: LiveUsage) -> None:
    """Add a route for each action. `live` has the streams of all paths."""
    unbroken = Unbroken()
    for action in ACTIONS:
        path = PREFIX + action.path
        for name in action.in_path:  # any text, also an empty one: the action says what is wrong with it
            path = path.replace(f"{{{name}}}", f"{{{name}:[^/]*}}")
        application.router.add_route(action.method, path, _handler(action, client_of, unbroken, live))
    for path in (PREFIX + openapi.PATH, openapi.PATH):
        application.router.add_get(path, _description, allow_head=False)
    application.on_cleanup.append(unbroken.end)


async def _description(_: web.Request) -> web.Response:
    return web.Response(body=openapi.encoded(), content_type="application/json")


def _handler(
    action: Action[Any, Any], client_of: ClientOf, unbroken: Unbroken, live: LiveUsage
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handle(request: web.Request) -> web.StreamResponse:
        actor = request[ACTOR]
        actor.need(action.scope)  # before anything that was sent is read
        query = query_of(request, action)
        body = await body_of(request, action)
        arguments = Arguments(dict(request.match_info), query, body)
        known = Idempotency.of(client_of(actor, "").store.client, request, actor, action, arguments)
        client = client_of(actor, known.client_key if known else "")
        if action.writes:
            work = partial(client.perform, action, arguments)
            answer = await unbroken.done(answered(known, action, work))
        else:
            result = await client.perform(action, arguments)
            if isinstance(result, Feed):
                return await live.send(request, result)
            if isinstance(result, CsvFile):
                return await send_csv(request, result)
            answer = KeptAnswer.of(action, result)
        if not answer.body:
            return web.Response(status=answer.status)
        headers = {REPLAYED: "true"} if answer.replayed else None
        return web.Response(status=answer.status, body=answer.body, headers=headers, content_type="application/json")

    return handle


def query_of(request: web.Request, action: Action[Any, Any]) -> msgspec.Struct | None:
    """Return the query. Raises `Refused` (400) for a parameter that the action does not have, or has twice."""
    kind = action.query
    names = () if kind is None else tuple(field.encode_name for field in msgspec.structs.fields(kind))
    values: dict[str, str] = {}
    for name, text in request.query.items():
        if name not in names:
            there = ", ".join(names) or "none"
            raise Refused(
                400, "invalid_request", f"There is no parameter {name[:100]!a} here; there are: {there}.", param="query"
            )
        if name in values and name != LIST:
            raise Refused(400, "invalid_request", f"Give the parameter `{name}` once.", param=name)
        values[name] = f"{values[name]},{text}" if name in values else text
    if kind is None:
        return None
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        _refuse(error, "query")


async def body_of(request: web.Request, action: Action[Any, Any]) -> msgspec.Struct | None:
    """Return the body; without one, that of an empty object.

    Raises `Refused`: 400 for what is no JSON or is not as the action has it, 413, 415.
    """
    try:
        raw = await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise Refused(413, "body_too_large", f"A body here has at most {MAX_BODY} bytes.") from None
    except web.RequestPayloadError:
        raise Refused(400, "invalid_request", "The body cannot be read.", param="body") from None
    if raw and request.content_type != "application/json":
        raise Refused(415, "unsupported_media_type", "Send JSON, with the header `Content-Type: application/json`.")
    if action.body is None:
        if raw.strip() not in (b"", b"{}"):
            raise Refused(400, "invalid_request", "This operation has no body.", param="body")
        return None
    if len(raw) > LARGE:
        return await asyncio.to_thread(_decoded, raw, action.body)
    return _decoded(raw or b"{}", action.body)


def _decoded(raw: bytes, kind: type[msgspec.Struct]) -> msgspec.Struct:
    try:
        decoded = msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        _refuse(error, "body", kind)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise Refused(400, "invalid_request", f"The body is no JSON: {_sentence(str(error))}", param="body") from None
    except RecursionError:
        raise Refused(400, "invalid_request", "The body is nested too deeply.", param="body") from None
    return decoded


def _refuse(error: msgspec.ValidationError, where: str, kind: type[msgspec.Struct] | None = None) -> NoReturn:
    """Raise `Refused` with the place that a validation names, and the fields of `kind` for one that is unknown."""
    match = _PLACE.match(str(error))
    what, path = (match["what"], match["path"] or "") if match else (str(error), "")
    field = _FIELD.search(what)
    place = ".".join(part for part in (path, field[1] if field else "") if part)
    said = f"`{place}`" if place and not field else f"The {where}"
    if kind is not None and not path and "unknown field" in what:
        what = f"{what}; there are: {', '.join(each.encode_name for each in msgspec.structs.fields(kind))}"
    raise Refused(400, "invalid_request", f"{said}: {_sentence(what)}", param=_as_param(place) or where) from None


def _as_param(text: str) -> str:
    return text.encode("ascii", "backslashreplace").decode()[:200]


def _sentence(text: str) -> str:
    first = text[:1] if text[1:2].isupper() else text[:1].lower()
    return f"{first}{text[1:500].removesuffix('.')}.".encode("utf-8", "backslashreplace").decode()


async def send_csv(request: web.Request, file: CsvFile) -> web.StreamResponse:
    """Send a file. Raises what is wrong before its first line."""
    disposition = f'attachment; filename="{file.name}"'
    response = web.StreamResponse(headers={"Content-Disposition": disposition})
    response.content_type, response.charset = file.content_type, "utf-8"
    first = await anext(file.pieces)
    await response.prepare(request)
    await response.write(first.encode())
    async for piece in file.pieces:
        await response.write(piece.encode())
    await response.write_eof()
    return response
