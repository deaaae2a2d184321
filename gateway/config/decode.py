"""Plain data converted to frozen structs. An error names the place in the file and the values that are allowed there.

`Section` is the base of every section of the file: it rejects unknown settings and hides credentials.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from difflib import get_close_matches
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar, Union, get_args, get_origin

import msgspec

from gateway.config.document import Document, KeyPath, absolute

Wanted = TypeVar("Wanted")

TYPE_NAMES: Final[Mapping[str, str]] = {
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
    "Path": "a path",
    "NoneType": "null",
}
"""What error messages call the types of Python and of msgspec's errors."""

GIVEN_TYPE_NAMES: Final[Mapping[str, str]] = {**TYPE_NAMES, "float": "a fraction"}
"""The same for the type of the value that was given."""

Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]
SecondsOrNone = Annotated[float, msgspec.Meta(ge=0, le=86_400)]
Bytes = Annotated[int, msgspec.Meta(ge=1, le=2**40)]
Count = Annotated[int, msgspec.Meta(ge=1, le=1000)]
Rate = Annotated[int, msgspec.Meta(ge=1, le=100_000)]


def convert(document: Document, key_path: KeyPath, value: object, kind: type[Wanted]) -> Wanted:
    """Return `value`, which stands at `key_path` in the file, as a `kind`. Raises `Misconfigured`."""

    def path_of(kind: type[object], given: object) -> object:
        if not issubclass(kind, Path):
            return given  # which is refused unless it is one
        if not isinstance(given, str) or not given:
            raise ValueError("must be a path, as text")
        return kind(absolute(document.folder, given))

    try:
        return msgspec.convert(value, kind, dec_hook=path_of)
    except msgspec.ValidationError as error:
        text, inner_path = _split(str(error))
        if isinstance(error.__cause__, WrongSetting):
            inner_path += error.__cause__.key_path
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", text, re.DOTALL):
        names = sorted(_fields(_type_at(kind, inner_path)))
        meant = "".join(f"; perhaps `{name}` is meant" for name in get_close_matches(unknown[1], names, 1))
        text = f"unknown setting; known here: {', '.join(names) or 'nothing'}{meant}"
        raise document.wrong((*key_path, *inner_path, unknown[1]), text)
    raise document.wrong((*key_path, *inner_path), _explain(text, _type_at(kind, inner_path)))


def describe_type(kind: Any) -> str:
    """Return what error messages call a setting's type: `a whole number or null`, `cancel or drain`."""
    origin = get_origin(kind)
    if origin is Literal:
        return " or ".join(map(str, get_args(kind)))
    if len(_union_members(kind)) > 1:
        return " or ".join(describe_type(member) for member in _union_members(kind))
    if hasattr(kind, "__metadata__"):
        return describe_type(get_args(kind)[0])
    if origin in (list, tuple, set, frozenset) and get_args(kind):
        return f"a list of {describe_type(get_args(kind)[0])}"
    if isinstance(origin or kind, type) and issubclass(origin or kind, msgspec.Struct):
        return TYPE_NAMES["object"]
    name = getattr(origin or kind, "__name__", str(kind))
    return TYPE_NAMES.get(name, name)


def _explain(text: str, kind: Any) -> str:
    """Rewrite msgspec's error about a setting of the type `kind` in plain words, with a remedy."""
    if missing := re.fullmatch(r"Object missing required field `(.*)`", text):
        return f"`{missing[1]}` is missing; add it"
    if text.startswith("Invalid enum value"):
        return f"must be {describe_type(kind)}"
    if text == "Invalid decimal string":
        return "must be a number, such as 0.15"
    if bounded := re.fullmatch(r"Expected `(.*)` (>=|<=|>|<) (.*)", text):
        return f"must be {TYPE_NAMES.get(bounded[1], bounded[1])} {bounded[2]} {bounded[3].removesuffix('.0')}"
    if wrong := re.fullmatch(r"Expected `(.*)`, got `(.*)`", text):
        expected, given = wrong[1].split(" | "), wrong[2]
        names = " or ".join(TYPE_NAMES.get(name, name) for name in expected)
        remedy = _form(kind) or _remedy(expected, given)
        return f"must be {names}, not {GIVEN_TYPE_NAMES.get(given, given)}{remedy}"
    return text


def _form(kind: Any) -> str:
    """Return the form in which a setting is written, where its type describes one."""
    given = (meta.description for member in _union_members(kind) for meta in getattr(member, "__metadata__", ()))
    return next((f"; write {description}" for description in given if description), "")


def _remedy(expected: Sequence[str], given: str) -> str:
    if given == "null":
        return "; give it one, or remove the key"
    if "str" in expected and given in ("int", "float", "bool"):
        return "; put it in quotes"
    if given == "str" and not {"object", "array"}.intersection(expected):
        return "; write it plainly, without quotes"
    return ""


def _split(message: str) -> tuple[str, KeyPath]:
    """Split msgspec's `text - at $.a[0].b` into the text and the key path."""
    text, separator, path = message.rpartition(" - at `$")
    if not separator:
        return message, ()
    steps: list[str | int] = []
    for name, index in re.findall(r"\.([^.\[\]`]+)|\[(\d+)\]", path):
        steps.append(name or int(index))
    return text, tuple(steps)


def _type_at(kind: Any, path: KeyPath) -> Any:
    """Return the type of the setting at `path` below `kind`, or None where there is no such setting."""
    if not path:
        return kind
    fields = _fields(kind)
    if path[0] in fields:
        return _type_at(fields[str(path[0])], path[1:])
    items = [get_args(member)[0] for member in _union_members(kind) if get_origin(member) in (list, tuple)]
    return _type_at(items[0], path[1:]) if items else None


def _union_members(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _fields(kind: Any) -> dict[str, Any]:
    return {
        field.encode_name: field.type
        for member in _union_members(kind)
        if isinstance(member, type) and issubclass(member, msgspec.Struct)
        for field in msgspec.structs.fields(member)
    }


class WrongSetting(ValueError):
    """Error in a setting below the section that is checked: `key_path` leads from the section to the setting."""

    def __init__(self, key_path: tuple[str | int, ...], text: str) -> None:
        super().__init__(text)
        self.key_path = key_path


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A section of the file. Its `repr` shows `...` in place of the settings that `hidden` names."""

    hidden: ClassVar[frozenset[str]] = frozenset()

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [(name, "..." if name in self.hidden else getattr(self, name)) for name in self.__struct_fields__]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"


def is_amount(value: Decimal, maximum: int) -> bool:
    """Return whether a number is an amount of money or a price, from 0 to `maximum`: it is exact in micros."""
    return value.is_finite() and 0 <= value <= maximum and value == round(value, 6)
