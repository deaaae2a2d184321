"""A setting of the wrong type is an error in plain description."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal

import msgspec
import pytest

from gateway.base.errors import Misconfigured
from gateway.config.decode import convert, describe_type
from gateway.config.document import Document


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    deep: Annotated[float, msgspec.Meta(gt=0, le=60)] = 1
    way: Literal["in", "out"] = "in"


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    must: int
    text: str = ""
    flag: bool = False
    price: Decimal | None = None
    items: list[str | Inner] = []
    inner: Inner | None = None
    names: dict[str, int] = {}

    def __post_init__(self) -> None:
        if self.must == 13:
            raise ValueError("must is unlucky at `$.text`")


WRONG: list[tuple[Any, str]] = [
    ({}, "here: `must` is missing; add it"),
    ([], "here: must be a mapping, not a list"),
    ("x", "here: must be a mapping, not text"),
    (None, "here: must be a mapping, not null; give it one, or remove the key"),
    ({"must": "1"}, "here.must: must be a whole number, not text; write it plainly, without quotes"),
    ({"must": 1.5}, "here.must: must be a whole number, not a fraction"),
    ({"must": True}, "here.must: must be a whole number, not true or false"),
    ({"must": 13}, "here: must is unlucky at `$.text`"),
    ({"must": 1, "text": 5}, "here.text: must be text, not a whole number; put it in quotes"),
    ({"must": 1, "text": 1.5}, "here.text: must be text, not a fraction; put it in quotes"),
    ({"must": 1, "text": False}, "here.text: must be text, not true or false; put it in quotes"),
    ({"must": 1, "flag": "true"}, "here.flag: must be true or false, not text; write it plainly, without quotes"),
    ({"must": 1, "flag": 1}, "here.flag: must be true or false, not a whole number"),
    ({"must": 1, "price": "cheap"}, "here.price: must be a number, such as 0.15"),
    ({"must": 1, "price": []}, "here.price: must be a number or null, not a list"),
    ({"must": 1, "items": "a"}, "here.items: must be a list, not text"),
    ({"must": 1, "items": ["a", 1]}, "here.items[1]: must be text or a mapping, not a whole number; put it in quotes"),
    ({"must": 1, "items": [{"deep": 0}]}, "here.items[0].deep: must be a number > 0"),
    ({"must": 1, "items": [{"deep": 61}]}, "here.items[0].deep: must be a number <= 60"),
    ({"must": 1, "items": [{"way": "hidden-value"}]}, "here.items[0].way: must be in or out"),
    ({"must": 1, "items": [{"x": 1}]}, "here.items[0].x: unknown setting; known here: deep, way"),
    ({"must": 1, "inner": {"way": "up"}}, "here.inner.way: must be in or out"),
    ({"must": 1, "inner": {"x": 1}}, "here.inner.x: unknown setting; known here: deep, way"),
    (
        {"must": 1, "names": {"a": "b"}},
        "here.names: must be a whole number, not text; write it plainly, without quotes",
    ),
    ({"must": 1, "x": 1}, "here.x: unknown setting; known here: flag, inner, items, must, names, price, text"),
    ({"must": 1, "`x`\n": 1}, "here.`x`\\n: unknown setting; known here: flag, inner, items, must, names, price, text"),
]


@pytest.mark.parametrize(("value", "error"), WRONG, ids=[repr(value) for value, _ in WRONG])
def test_a_wrong_value_is_an_error_with_its_place_and_a_remedy(value: object, error: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        convert(Document(Path("f")), ("here",), value, Outer)
    assert str(refused.value) == f"f:1: {error}"
    assert refused.value.__cause__ is None, "the error of the library is not shown"


def test_a_valid_value_is_converted() -> None:
    given = {"must": 1, "price": 0.15, "items": ["a", {"deep": 2}], "inner": {"way": "out"}, "names": {"a": 1}}
    expected = Outer(must=1, price=Decimal("0.15"), items=["a", Inner(deep=2)], inner=Inner(way="out"), names={"a": 1})
    assert convert(Document(Path("f")), (), given, Outer) == expected


@pytest.mark.parametrize(
    ("type_", "description"),
    [
        (int, "a whole number"),
        (float, "a number"),
        (bool, "true or false"),
        (str, "text"),
        (Decimal | None, "a number or null"),
        (Annotated[int, msgspec.Meta(ge=1)], "a whole number"),
        (Literal["refuse", "ignore"], "refuse or ignore"),
        (list[str], "a list of text"),
        (tuple[int, ...], "a list of a whole number"),
        (list, "a list"),
        (dict[str, Any], "a mapping"),
        (Inner | None, "a mapping or null"),
        (Any, "Any"),
        (PurePath, "PurePath"),
        (Path, "a path"),
    ],
)
def test_a_type_is_described_in_words(type_: object, description: str) -> None:
    assert describe_type(type_) == description


class Placed(msgspec.Struct):
    at: Path = Path("default")
    more: dict[str, Path] = {}


def test_a_path_starts_at_the_folder_of_the_file(tmp_path: Path) -> None:
    document = Document(tmp_path / "gateway.yaml")
    found = convert(document, (), {"at": "./a/../b", "more": {"x": "/c"}}, Placed)
    assert (found.at, found.more) == (tmp_path / "b", {"x": Path("/c")})
    assert convert(document, (), {"at": "~"}, Placed).at == Path.home()
    for wrong in (7, "", None, ["a"]):
        with pytest.raises(Misconfigured, match="at: must be a path, as text"):
            convert(document, (), {"at": wrong}, Placed)
