"""The smallest value that fits a JSON schema, for callers that ask for one: enough for client libraries to read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

DEEPEST: Final = 32
"""Levels of a schema that refers to itself."""


def smallest(schema: Any, root: Any = None, depth: int = 0) -> Any:
    """Return a value with nothing in it that the schema does not want."""
    if not isinstance(schema, Mapping) or depth > DEEPEST:
        return None
    root = root or schema
    if "const" in schema or schema.get("enum"):
        return schema["const"] if "const" in schema else schema["enum"][0]
    for name in ("anyOf", "oneOf", "allOf"):
        if schema.get(name):
            return smallest(schema[name][0], root, depth + 1)
    if str(schema.get("$ref", "")).startswith("#"):
        found = root
        for step in schema["$ref"].split("/")[1:]:
            found = found.get(step, {})
        return smallest(found, root, depth + 1)
    kind = schema.get("type", "object" if "properties" in schema else "null")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        fields = schema.get("properties", {})
        return {name: smallest(fields.get(name), root, depth + 1) for name in schema.get("required", ())}
    if kind == "array":
        return [smallest(schema.get("items"), root, depth + 1)] * schema.get("minItems", 0)
    if kind in ("integer", "number"):
        return schema.get("minimum", schema.get("exclusiveMinimum", -1) + 1)
    return {"string": "x" * schema.get("minLength", 0), "boolean": False}.get(kind)
