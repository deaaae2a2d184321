"""A changed body is the old one with some fields set and others dropped; all other values stay as the caller wrote them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.chat.edit import edited
from gateway.chat.request import BodyRules, check

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
    with pytest.raises(TypeError):
        edited(body(), {"seed": object()}, [])
    with pytest.raises(TypeError, match=r"a list of names: \['user'\]"):
        edited(body(), {}, "user")


def test_a_body_whose_values_were_freed_cannot_be_changed() -> None:
    freed = body()
    freed.drop_values()
    with pytest.raises(ValueError, match="values were freed"):
        edited(freed, {"seed": 1}, [])
