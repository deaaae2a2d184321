"""A changed body is the old one with some fields set and others dropped; all other values stay as the caller wrote them."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from gateway.chat.request import BodyRules, check, edited

RAW = b'{"model":"m", "stream":true,"messages":[{"role":"user","content":"\\u0068i"}],"top_p":1.0e0,"user":"u"}'


def body(raw: bytes = RAW) -> Any:
    return check(raw, BodyRules())


def test_fields_are_set_and_dropped_and_the_others_stay_byte_for_byte() -> None:
    made = edited(body(), {"model": "other", "seed": 7}, ["user", "never-there"])
    assert made == (
        b'{"model":"other","stream":true,"messages":[{"role":"user","content":"\\u0068i"}],"top_p":1.0e0,"seed":7}'
    )


def test_a_change_that_changes_nothing_is_none() -> None:
    assert edited(body(), {}, []) is None
    assert edited(body(), {"model": "m", "user": msgspec.Raw(b'"u"')}, ["seed"]) is None


@pytest.mark.parametrize("name", ["stream", "stream_options"])
def test_how_the_answer_is_delivered_cannot_be_changed(name: str) -> None:
    with pytest.raises(ValueError, match="the caller decides how its answer is delivered"):
        edited(body(), {name: None}, [])
    with pytest.raises(ValueError, match=f"`{name}` cannot be changed"):
        edited(body(), {}, [name])


def test_a_value_without_json_or_a_text_for_a_list_of_names_is_an_error() -> None:
    with pytest.raises(ValueError, match="`seed` is no JSON"):
        edited(body(), {"seed": object()}, [])
    with pytest.raises(TypeError, match=r"a list of names: \['user'\]"):
        edited(body(), {}, "user")


DEEP: list[object] = []
DEEP.append(DEEP)


@pytest.mark.parametrize(
    ("field", "why"),
    [
        ({"temperature": float("nan")}, "`temperature` is no JSON: Out of range float"),
        ({"x": {"y": [1, float("-inf")]}}, "`x` is no JSON"),
        ({"user": "\ud800"}, "`user` is no JSON: 'utf-8' codec"),
        ({"x": [{"\udfff": 1}]}, "`x` is no JSON"),
        ({"\ud800": 1}, r"`\\ud800` is no JSON"),
        ({7: 1}, "`` is no JSON: 'int' object"),
        ({"stop": {"a", "b"}}, "`stop` is no JSON: a set"),
        ({"x": [b"bytes"]}, "`x` is no JSON: a bytes"),
        ({"x": datetime(2026, 1, 1, tzinfo=UTC)}, "`x` is no JSON: a datetime"),
        ({"x": Decimal(1)}, "`x` is no JSON: a Decimal"),
        ({"x": DEEP}, "`x` is no JSON: Circular reference"),
        ({"x": msgspec.Raw(b'1,"stream":false')}, "`x` is no JSON: JSON is malformed: trailing characters"),
        ({"x": [msgspec.Raw(b"NaN")]}, "`x` is no JSON: JSON is malformed: invalid character"),
        ({"x": msgspec.Raw(b"[" * 200_000)}, "`x` is no JSON"),
    ],
)
def test_a_field_that_json_does_not_have_is_refused_by_its_name(field: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        edited(body(), field, [])


def test_every_value_that_json_has_is_accepted() -> None:
    value: dict[str, Any] = {
        "a": [None, True, 1, -0.5, 10**30, "\u00e9\U0001f600", (1, [])],
        "": {},
        "raw": msgspec.Raw(b" [1.0e0] "),
    }
    made = edited(body(), {"x": value}, [])
    assert made is not None
    assert msgspec.json.decode(made)["x"]["a"] == [None, True, 1, -0.5, 10**30, "\u00e9\U0001f600", [1, []]]


def test_the_fields_of_a_body_are_changed_by_nothing_else() -> None:
    read = body()
    with pytest.raises(TypeError, match="does not support item assignment"):
        read.top["max_tokens"] = msgspec.Raw(b"9")
    for method in ("clear", "pop", "popitem", "update", "setdefault"):
        assert not hasattr(read.top, method)
    with pytest.raises(AttributeError):
        read.top = {}
    assert memoryview(read.top["messages"]).readonly


def test_a_body_whose_values_were_freed_cannot_be_changed() -> None:
    freed = body()
    freed.drop_values()
    with pytest.raises(ValueError, match="values were freed"):
        edited(freed, {"seed": 1}, [])
