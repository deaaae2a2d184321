"""The reference of the operator's API as Markdown, made from its OpenAPI document."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from gateway.admin.actions.table import ACTIONS
from gateway.admin.http.openapi import described


def markdown() -> str:
    """Return the reference: the operations by their subject, then the structures that they take and return."""
    document = described(ACTIONS)
    lines = ["# Reference of the operator's API", "", document["info"]["description"], ""]
    lines += ["It is made from `/openapi.json`, which programs read.", ""]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            lines += [f"## {method.upper()} {path}", "", operation.get("description", operation["summary"]), ""]
            parameters = operation.get("parameters", ())
            rows = ((f"{each['name']} ({each['in']})", each.get("required", False), each) for each in parameters)
            lines += _table("Parameter", rows)
            if "requestBody" in operation:
                lines += [f"Body: {_body(operation['requestBody'])}.", ""]
            success = next(iter(operation["responses"].items()))
            lines += [f"Answer {success[0]}: {_body(success[1]) or 'nothing'}.", ""]
    for name, schema in document["components"]["schemas"].items():
        lines += [f"## {name}", "", " ".join(schema.get("description", "").split()), ""]
        if "enum" in schema:
            lines += [f"One of {_kind(schema)}.", ""]
        needed = schema.get("required", ())
        fields = schema.get("properties", {}).items()
        lines += _table("Field", ((field, field in needed, {"schema": each} | each) for field, each in fields))
    return "\n".join(lines)


def _table(title: str, rows: Iterable[tuple[str, bool, dict[str, Any]]]) -> Iterator[str]:
    cells = []
    for name, needed, each in rows:
        text = " ".join(each.get("description", "").split()).replace("|", r"\|")
        cells.append(f"| {name}{' *' if needed else ''} | {_kind(each['schema'])} | {text} |")
    yield from (f"| {title} (* is required) | Type | |", "|---|---|---|", *cells, "") if cells else ()


def _body(answer: dict[str, Any]) -> str:
    return ", ".join(f"{_kind(each['schema'])}, {name}" for name, each in answer.get("content", {}).items())


def _kind(schema: dict[str, Any]) -> str:
    """Return the type that a schema gives, in words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(map(_kind, schema["anyOf"]))
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"])
    kind = schema.get("type", "any value")
    return f"{kind} of {_kind(schema['items'])}" if "items" in schema else str(kind)
