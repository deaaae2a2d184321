"""The description of the API as OpenAPI 3.1, made from the table of actions and the structs that they take and return."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import version
from types import NoneType
from typing import Any, Final

import msgspec

from gateway.admin.actions.action import PREFIX, Action, Scope
from gateway.admin.actions.table import ACTIONS

PATH: Final = "/openapi.json"
"""Below the prefix, and at the root. It needs no token: it has nothing of this gateway."""
REFERENCE: Final = "#/components/schemas/{name}"
IN_PATH: Final[Mapping[str, str]] = {
    "account": "The account's id, or `ext:` and its external id.",
    "transaction": "The transaction id of a credit.",
    "token": "The token's id, as in alice-1a2b3c4d, or of a management token; not the token itself.",
    "id": "The request's id: what its caller got as `x-request-id`.",
    "name": "The channel's name in the configuration.",
    "number": "The credential's number in `api_keys`, counted from 1.",
}
ERRORS: Final[Mapping[int, str]] = {
    400: "Something in it is wrong; `param` names the parameter or the field.",
    401: "There is no token, or it is wrong, revoked or expired.",
    403: "The token does not have the scope that the operation needs.",
    404: "What the path or the body names is not there.",
    409: "It is there already, or differs from what was sent before, or its `Idempotency-Key` is in use.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    429: "Too many of these came within a minute.",
    503: "The store does not answer. Try again; a write with the same `Idempotency-Key` is done once.",
}
ABOUT: Final = """\
Everything that an operator does with a gateway, over HTTP: JSON in and out.

Amounts are whole numbers of micros, millionths of the currency's unit. Send `Authorization: Bearer TOKEN` with the admin token,
or with a management token that has the scope of the operation. A write with an `Idempotency-Key` may be repeated: it is done
once, and the answer is the same for 24 hours, but for secrets, which are in the first one alone. Lists are pages: `next` is the
`after` of the next one."""
REPEATABLE: Final = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "A text of your own for this write, so that it can be repeated.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[ -~]+$"},
}


class ErrorDetail(msgspec.Struct):
    """What is wrong. `code` is for programs, `message` says what to do, `param` names the field or parameter at fault."""

    message: str
    type: str
    param: str | None
    code: str
    request_id: str


class ErrorAnswer(msgspec.Struct):
    """The answer to a request that is refused or failed."""

    error: ErrorDetail


@cache
def encoded() -> bytes:
    """Return the description as JSON."""
    return msgspec.json.encode(described(ACTIONS))


def described(actions: Iterable[Action[Any, Any]]) -> dict[str, Any]:
    """Return the description of some actions."""
    actions = tuple(actions)
    types = [kind for each in actions for kind in (each.body, each.returns) if kind is not None and not _format(kind)]
    _, schemas = msgspec.json.schema_components([*types, ErrorAnswer], ref_template=REFERENCE, schema_hook=_anything)
    bodies = [each.body for each in actions if each.body is not None]
    _, sent = msgspec.json.schema_components(bodies, ref_template=REFERENCE, schema_hook=_anything)
    for name in sent:  # generators of clients take a field with a default for one that is always there
        for field in schemas[name].get("properties", {}).values():
            field.pop("default", None)
    paths: dict[str, dict[str, Any]] = {}
    for action in actions:
        paths.setdefault(PREFIX + action.path, {})[action.method.lower()] = _action(action)
    paths[PREFIX + PATH] = {"get": _OWN}
    tags = {_tag(each): None for each in actions}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Sluicegate", "version": version("sluicegate"), "description": ABOUT},
        "servers": [{"url": "/"}],
        "tags": [{"name": tag} for tag in tags],
        "paths": paths,
        "security": [{"token": []}],
        "components": {
            "schemas": schemas,
            "responses": {str(status): _error(text) for status, text in ERRORS.items()},
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": f"The admin token, or a management token. Scopes: {', '.join(Scope)}.",
                }
            },
        },
    }


def _action(action: Action[Any, Any]) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "description": IN_PATH[name], "schema": {"type": "string"}}
        for name in action.in_path
    ]
    result: dict[str, Any] = {
        "operationId": action.name,
        "tags": [_tag(action)],
        "summary": action.summary,
        "description": f"{action.description}\n\nScope: `{action.scope}`.",
        "parameters": [*parameters, *_query(action), *([REPEATABLE] if action.writes else ())],
        "responses": {str(action.status): _success(action), **_refusals(action)},
    }
    if action.body is not None:
        content = {"application/json": {"schema": _schema(action.body)}}
        result["requestBody"] = {"required": True, "content": content}
    return result


def _query(action: Action[Any, Any]) -> list[dict[str, Any]]:
    """Return the parameters of the query, each with the schema of its field."""
    if action.query is None:
        return []
    (_,), schemas = msgspec.json.schema_components([action.query], ref_template=REFERENCE, schema_hook=_anything)
    own = schemas[action.query.__name__]
    required = own.get("required", [])
    parameters = []
    for name, given in own["properties"].items():
        schema = _inlined(given, schemas)
        text = schema.pop("description", None)
        parameter = {"name": name, "in": "query", "required": name in required, "schema": schema}
        parameters.append(parameter | ({"description": text} if text else {}))
    return parameters


def _inlined(schema: Any, schemas: Mapping[str, Any]) -> Any:
    """Return a schema without references to those that only queries have."""
    if isinstance(schema, list):
        return [_inlined(each, schemas) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    return {name: _inlined(value, schemas) for name, value in schema.items()}


def _success(action: Action[Any, Any]) -> dict[str, Any]:
    if action.returns is NoneType:
        return {"description": "It is done."}
    if name := _format(action.returns):
        return {"description": action.summary, "content": {name: {"schema": {"type": "string"}}}}
    schema = _schema(action.returns)
    return {"description": action.summary, "content": {"application/json": {"schema": schema}}}


def _refusals(action: Action[Any, Any]) -> dict[str, Any]:
    statuses = {400, 401, 403, 429, 503}
    if action.in_path or action.body is not None:
        statuses.add(404)
    if action.writes:
        statuses |= {409, 413, 415}
    return {str(status): {"$ref": f"#/components/responses/{status}"} for status in sorted(statuses)}


def _format(kind: Any) -> str:
    """Return the format of what is no JSON, else an empty text."""
    if kind is NoneType:
        return "none"
    return str(getattr(kind, "content_type", ""))


def _anything(kind: type) -> dict[str, Any]:
    """Return the schema of a value of any kind."""
    if kind is object:
        return {"description": "Any value."}
    raise NotImplementedError


def _error(text: str) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": _schema(ErrorAnswer)}}}


def _schema(kind: Any) -> Any:
    (schema,), _ = msgspec.json.schema_components([kind], ref_template=REFERENCE, schema_hook=_anything)
    return schema


def _tag(action: Action[Any, Any]) -> str:
    return action.name.partition(".")[0].replace("_", " ")


_OWN: Final = {
    "operationId": "openapi.read",
    "tags": ["description"],
    "summary": "Return this description.",
    "responses": {
        "200": {
            "description": "This description.",
            "content": {"application/json": {"schema": {"type": "object", "additionalProperties": True}}},
        },
        "401": {"$ref": "#/components/responses/401"},
    },
}
