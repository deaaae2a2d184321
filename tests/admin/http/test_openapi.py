"""The description of the API is that of the routes: none more, none less, with schemas."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from gateway.admin.actions.action import PREFIX, Action
from gateway.admin.actions.table import ACTIONS
from gateway.admin.http import openapi
from tests.admin.http.conftest import TOKEN, Client


@pytest.fixture(scope="module")
def described() -> Any:
    return msgspec.json.decode(openapi.encoded())


async def test_it_has_the_routes_that_are_served_and_no_other(api: Client, described: Any) -> None:
    served = set()
    for route in api.server.app.router.routes():  # type: ignore[attr-defined]
        assert route.resource is not None
        path = re.sub(r"\{(\w+)[^}]*\}", r"{\1}", route.resource.canonical)
        if path.startswith(PREFIX):
            served.add((route.method.lower(), path))
    told = {(method, path) for path, methods in described["paths"].items() for method in methods}
    assert told == served


async def test_it_is_served_to_anybody(api: Client, described: Any) -> None:
    for path in (f"{PREFIX}{openapi.PATH}", openapi.PATH):
        async with api.get(path, headers={"Authorization": f"Bearer {TOKEN}"}) as response:
            assert (response.status, await response.json()) == (200, described)
        async with api.get(path) as response:
            assert (response.status, await response.json()) == (200, described)


@pytest.mark.parametrize("action", ACTIONS, ids=lambda each: each.name)
def test_each_operation_is_told_with_its_parameters_scope_and_errors(action: Action[Any, Any], described: Any) -> None:
    told = described["paths"][PREFIX + action.path][action.method.lower()]
    assert told["operationId"] == action.name
    assert action.description
    assert told["summary"][0].isupper()
    assert f"Scope: `{action.scope}`" in told["description"]
    parameters = {(each["in"], each["name"]): each for each in told["parameters"]}
    assert [name for place, name in parameters if place == "path"] == list(action.in_path)
    fields = () if action.query is None else msgspec.structs.fields(action.query)
    assert [name for place, name in parameters if place == "query"] == [field.encode_name for field in fields]
    assert (("header", "Idempotency-Key") in parameters) == action.writes
    assert {"400", "401", "403", "503", str(action.status)} <= set(told["responses"])
    assert ("requestBody" in told) == (action.body is not None)


def test_every_reference_is_there_and_every_struct_is_described(described: Any) -> None:
    schemas = described["components"]["schemas"]
    referred = set(re.findall(r'"#/components/schemas/([^"]+)"', msgspec.json.encode(described).decode()))
    assert referred == set(schemas)
    assert [
        name for name, schema in schemas.items() if schema.get("type") == "object" and not schema.get("description")
    ] == []


def test_generated_clients_compile(described: Any) -> None:
    """A field with a default counts as required in TypeScript; a model with a field of its own name shadows it in Python."""
    schemas = described["components"]["schemas"]
    found = re.findall(r'"requestBody".*?"#/components/schemas/(\w+)"', msgspec.json.encode(described).decode())
    assert len(found) > 8
    sent = list(found)
    for name in sent:
        sent += set(re.findall(r"schemas/(\w+)", str(schemas[name]))) - set(sent)
        fields = schemas[name].get("properties", {})
        assert [field for field, schema in fields.items() if "default" in schema] == [], name
    snake = {name: re.sub(r"(?<=.)(?=[A-Z])", "_", name).lower() for name in schemas}
    assert [name for name, schema in schemas.items() if snake[name] in schema.get("properties", {})] == []


def test_operations_have_names_of_their_own() -> None:
    names = [action.name for action in ACTIONS]
    assert len(set(names)) == len(names)
