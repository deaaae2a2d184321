"""Parts of every answer of the operator's port and of the portal: an id, headers for browsers, and errors in one shape."""

from __future__ import annotations

from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler

from gateway.admin.actions.action import refused
from gateway.base.errors import GatewayError, Refused, StoreError, headers_of, internal, render
from gateway.base.ids import new_id
from gateway.base.log import log

NOTHING: Final = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
ID: Final = web.RequestKey("request_id", str)


def of_http(error: web.HTTPException, known: str) -> Refused:
    """Return an error of aiohttp in the shape of all others. `known`: what is said of a path that is not there."""
    if error.status == 405:
        allowed = error.headers.get("Allow", "")
        return Refused(405, "method_not_allowed", f"Allowed here: {allowed}.", headers={"Allow": allowed})
    if error.status == 413:
        return Refused(413, "body_too_large", "The body is too large.")
    if error.status == 404:
        return Refused(404, "unknown_path", known)
    return Refused(max(400, error.status), "invalid_request", f"{error.reason}.")


def is_lost(request: web.Request) -> bool:
    """Return whether a person with a browser asks for what is not there."""
    return isinstance(request.match_info.http_exception, web.HTTPNotFound) and "text/html" in request.headers.get(
        "Accept", ""
    )


async def answered(request: web.Request, handler: Handler, known: str) -> web.StreamResponse:
    """Return the answer of a handler to a request, which gets an id; what it raises is an error in the shape of all others."""
    request[ID] = new_id()
    try:
        return await handler(request)
    except ConnectionError:
        raise
    except web.HTTPException as error:
        if error.status < 400:
            raise
        return error_response(request, of_http(error, known))
    except Exception as error:
        if isinstance(error, GatewayError) and not isinstance(error, StoreError):
            return error_response(request, refused(error))
        log.error("admin_request_failed", exc_info=error)
        return error_response(request, internal())


def error_response(request: web.BaseRequest, error: Refused) -> web.Response:
    """Return an error in the shape of all others."""
    body = render(error, request[ID])
    return web.Response(status=error.status, body=body, headers=headers_of(error), content_type="application/json")


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Let no browser run, frame or keep what this port answers."""
    complete(response)
    if ID in request:
        response.headers.setdefault("x-request-id", request[ID])


def complete(response: web.StreamResponse) -> None:
    """Let no browser run, frame or keep what this port answers; pages say more exactly what they need."""
    response.headers.setdefault("Content-Security-Policy", NOTHING)
    if response.headers.get("Cache-Control", "no-cache") == "no-cache":  # what the library of the live stream says
        response.headers["Cache-Control"] = "no-store"
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers.setdefault("Referrer-Policy", "no-referrer")
    response.headers["Server"] = "sluicegate"  # not which versions of what it is made of
