"""Fields that a channel sets and drops: the caller's other values stay byte for byte, and the bound of the prompt grows."""

from __future__ import annotations

import json
from typing import Any

from gateway.chat.request import BodyRules, FixedFields, check
from gateway.config.channel import Channel
from gateway.config.model import Model, Serving
from gateway.config.schema import Config, Group
from gateway.domain.catalogue import Catalogue

RAW = b'{"model":"m","messages":[{"role":"user","content":"\\u0041 1.0e2"}],"stream":true,"seed" : 7,"User":"u","top_p":1.0e-1}'


def sent(fields: FixedFields | None) -> bytes:
    (part,) = check(RAW, BodyRules()).upstream("up", "max_tokens", 9, ask_usage=True, fields=fields)
    return bytes(part)


def test_fields_are_set_and_dropped_and_the_others_stay_byte_for_byte() -> None:
    data = sent(FixedFields({"user": "ours", "provider": {"only": ["a"]}}, ["seed", "absent"]))
    assert b'"messages":[{"role":"user","content":"\\u0041 1.0e2"}]' in data
    assert b'"top_p":1.0e-1' in data
    body: dict[str, Any] = json.loads(data)
    assert {**body, "messages": []} == {
        **{"model": "up", "messages": [], "stream": True, "top_p": 0.1, "max_tokens": 9, "user": "ours"},
        **{"provider": {"only": ["a"]}, "stream_options": {"include_usage": True}},
    }
    assert sent(FixedFields({}, [])) == sent(None)


def test_what_differs_only_in_its_case_is_dropped_and_replaced_too() -> None:
    assert b"User" not in sent(FixedFields({}, ["user"]))
    data = sent(FixedFields({"USER": 1}, ["SEED"]))
    assert b'"USER":1' in data
    assert not [name for name in (b"User", b"seed") if name in data]


def test_what_is_set_is_part_of_the_bound_of_the_prompt() -> None:
    text = {"instructions": "<" * 1000, "tools": [{"type": "function", "function": {"name": "f"}}]}
    assert FixedFields({}, ["seed"]).tokens_bound() == 0
    bound = FixedFields(text, []).tokens_bound()
    assert bound >= 6 * 1000 + 640  # as JSON that protects HTML, and with the instructions for tools
    channels = {"plain": Channel("http://h/v1"), "adds": Channel("http://h/v1", set_=text)}
    model = Model(free=True, channels=["plain", Serving("adds")])
    other = Model(free=True, channels=["plain"])
    catalogue = Catalogue(Config(channels=channels, models={"m": model, "o": other}, groups={"default": Group()}))
    body = check(RAW, BodyRules())
    assert catalogue.prompt_tokens_bound(body) == body.prompt_tokens_bound() + bound
    assert catalogue.part_tokens["o"].added == 0
