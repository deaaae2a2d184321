"""Plain data as frozen structs; an error names the place in the file, and what may stand there, in plain words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Any, Final, Literal, TypeVar, Union, get_args, get_origin

import msgspec

from gateway.config.document import Document, Place

Section = TypeVar("Section")

WORDS: Final[Mapping[str, str]] = {
    "object": "a mapping",
    "dict": "a mapping",
    "array": "a list",
    "list": "a list",
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "decimal": "a number",
    "Decimal": "a number",
    "bool": "true or false",
    "null": "null",
    "NoneType": "null",
}
"""The names of types, in Python and in msgspec's errors, as operators read them."""

GOT: Final[Mapping[str, str]] = {**WORDS, "float": "a fraction"}


def convert(document: Document, place: Place, value: object, kind: type[Section]) -> Section:
    """`value`, which stands at `place`, as `kind`. Raises `Misconfigured`."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        text, inner = _split(str(error))
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", text, re.DOTALL):
        known = ", ".join(sorted(_fields(_type_at(kind, inner)))) or "nothing"
        raise document.wrong((*place, *inner, unknown[1]), f"unknown setting; known here: {known}")
    raise document.wrong((*place, *inner), _explained(text, _type_at(kind, inner)))


def in_words(kind: Any) -> str:
    """A setting's type as operators read it: `a whole number or null`, `cancel or drain`."""
    origin = get_origin(kind)
    if origin is Literal:
        return " or ".join(map(str, get_args(kind)))
    if len(_arms(kind)) > 1:
        return " or ".join(in_words(arm) for arm in _arms(kind))
    if hasattr(kind, "__metadata__"):
        return in_words(get_args(kind)[0])
    if origin in (list, tuple, set, frozenset) and get_args(kind):
        return f"a list of {in_words(get_args(kind)[0])}"
    if isinstance(origin or kind, type) and issubclass(origin or kind, msgspec.Struct):
        return WORDS["object"]
    name = getattr(origin or kind, "__name__", str(kind))
    return WORDS.get(name, name)


def _explained(text: str, kind: Any) -> str:
    """An error of msgspec about a setting of the type `kind`, in plain words and with a cure."""
    if missing := re.fullmatch(r"Object missing required field `(.*)`", text):
        return f"`{missing[1]}` is missing; add it"
    if text.startswith("Invalid enum value"):
        return f"must be {in_words(kind)}"
    if text == "Invalid decimal string":
        return "must be a number, such as 0.15"
    if bounded := re.fullmatch(r"Expected `(.*)` (>=|<=|>|<) (.*)", text):
        return f"must be {WORDS.get(bounded[1], bounded[1])} {bounded[2]} {bounded[3].removesuffix('.0')}"
    if wrong := re.fullmatch(r"Expected `(.*)`, got `(.*)`", text):
        expected, got = wrong[1].split(" | "), wrong[2]
        told = f"must be {' or '.join(WORDS.get(name, name) for name in expected)}, not {GOT.get(got, got)}"
        return told + _cure(expected, got)
    return text


def _cure(expected: Sequence[str], got: str) -> str:
    if got == "null":
        return "; give it one, or remove the key"
    if "str" in expected and got in ("int", "float", "bool"):
        return "; put it in quotes"
    if got == "str" and not {"object", "array"}.intersection(expected):
        return "; write it plainly, without quotes"
    return ""


def _split(message: str) -> tuple[str, Place]:
    """msgspec's `text - at `$.a[0].b`` in its parts."""
    text, separator, path = message.rpartition(" - at `$")
    if not separator:
        return message, ()
    steps: list[str | int] = []
    for name, index in re.findall(r"\.([^.\[\]`]+)|\[(\d+)\]", path):
        steps.append(name or int(index))
    return text, tuple(steps)


def _type_at(kind: Any, path: Place) -> Any:
    """The type of the setting that `path` leads to from `kind`; None where it leads nowhere."""
    if not path:
        return kind
    fields = _fields(kind)
    if path[0] in fields:
        return _type_at(fields[str(path[0])], path[1:])
    items = [get_args(arm)[0] for arm in _arms(kind) if get_origin(arm) is list]
    return _type_at(items[0], path[1:]) if items else None


def _arms(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _fields(kind: Any) -> dict[str, Any]:
    return {
        field.encode_name: field.type
        for arm in _arms(kind)
        if isinstance(arm, type) and issubclass(arm, msgspec.Struct)
        for field in msgspec.structs.fields(arm)
    }
