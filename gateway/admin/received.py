"""What a request to the API has: its query and its JSON body, checked against the structs of the operation.

Everything that is refused here is refused in words, with the parameter or the field as `param`, before anything is done.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any, Final, NoReturn

import msgspec
from aiohttp import web

from gateway.errors import Refused
from gateway.management.operation import Operation

BODY_TIMEOUT_S: Final = 60.0
LARGE: Final = 64 * 1024
"""Bytes of a body that is checked in a thread."""
_PLACE: Final = re.compile(r"^(?P<what>.*?)(?: - at `(?:\$\.?)(?P<path>.*)`)?$", re.DOTALL)
_FIELD: Final = re.compile(r"(?:missing required|contains unknown) field `(.*)`")


def query_of(request: web.Request, operation: Operation[Any, Any]) -> msgspec.Struct | None:
    """Return the query. Raises `Refused` (400) for a parameter that the operation does not have, or has twice."""
    kind = operation.query
    names = () if kind is None else tuple(field.encode_name for field in msgspec.structs.fields(kind))
    values: dict[str, str] = {}
    for name, text in request.query.items():
        if name not in names:
            there = ", ".join(names) or "none"
            raise Refused(
                400, "invalid_request", f"There is no parameter {name[:100]!a} here; there are: {there}.", param="query"
            )
        if name in values:
            raise Refused(400, "invalid_request", f"Give the parameter `{name}` once.", param=name)
        values[name] = text
    if kind is None:
        return None
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        _refuse(error, "query")


async def body_of(request: web.Request, operation: Operation[Any, Any]) -> msgspec.Struct | None:
    """Return the body; without one, that of an empty object.

    Raises `Refused`: 400 for what is no JSON or is not as the operation has it, 408, 413, 415.
    """
    raw = await _read(request, operation.max_body)
    if raw and request.content_type != "application/json":
        raise Refused(415, "unsupported_media_type", "Send JSON, with the header `Content-Type: application/json`.")
    if operation.body is None:
        if raw.strip() not in (b"", b"{}"):
            raise Refused(400, "invalid_request", "This operation has no body.", param="body")
        return None
    if len(raw) > LARGE:
        return await asyncio.to_thread(_decoded, raw, operation.body)
    return _decoded(raw or b"{}", operation.body)


async def _read(request: web.Request, limit: int) -> bytes:
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise Refused(415, "unsupported_media_type", "Send the body without Content-Encoding.")
    if (request.content_length or 0) > limit:
        raise _too_large(limit)
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for piece in request.content.iter_any():
                body += piece
                if len(body) > limit:
                    raise _too_large(limit)
    except TimeoutError:
        raise Refused(408, "body_timeout", f"The body did not arrive within {BODY_TIMEOUT_S:g} s.") from None
    except web.RequestPayloadError:
        raise Refused(400, "invalid_request", "The body cannot be read.", param="body") from None
    return bytes(body)


def _too_large(limit: int) -> Refused:
    return Refused(413, "body_too_large", f"A body here has at most {limit} bytes.")


def _decoded(raw: bytes, kind: type[msgspec.Struct]) -> msgspec.Struct:
    try:
        decoded = msgspec.json.decode(raw, type=kind)
        json.loads(raw, object_pairs_hook=_refuse_duplicates)
    except msgspec.ValidationError as error:
        _refuse(error, "body")
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise Refused(400, "invalid_request", f"The body is no JSON: {_sentence(str(error))}", param="body") from None
    except RecursionError:
        raise Refused(400, "invalid_request", "The body is nested too deeply.", param="body") from None
    return decoded


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise Refused(400, "invalid_request", f"The field {name[:100]!a} is there twice.", param=_as_param(name))
        seen.add(name)


def _refuse(error: msgspec.ValidationError, where: str) -> NoReturn:
    """Raise `Refused` with the place that a validation names."""
    match = _PLACE.match(str(error))
    what, path = (match["what"], match["path"] or "") if match else (str(error), "")
    field = _FIELD.search(what)
    place = ".".join(part for part in (path, field[1] if field else "") if part)
    said = f"`{place}`" if place and not field else f"The {where}"
    raise Refused(400, "invalid_request", f"{said}: {_sentence(what)}", param=_as_param(place) or where) from None


def _as_param(text: str) -> str:
    return text.encode("ascii", "backslashreplace").decode()[:200]


def _sentence(text: str) -> str:
    first = text[:1] if text[1:2].isupper() else text[:1].lower()
    return f"{first}{text[1:500].removesuffix('.')}.".encode("utf-8", "backslashreplace").decode()
