"""Bodies of texts alone: the check of one pass says what the general one says."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from gateway.base.errors import Refused
from gateway.chat import request
from gateway.chat.request import BodyRules, check, check_texts

RULES = BodyRules(allow_non_streaming=True, max_output_tokens=5000)
MODELS = ['"m"'], ('""', "1", r'"a\nb"', f'"{"m" * 257}"')
ROLES = ["user", "assistant", "system", "developer"], ("tool", r"us\u0065r", "")
TEXTS = (
    ('"hi"', r'"a\nb"', r'"\\\\\"n"', r'"\\\n"', r'"\/"', '"é"', '""'),
    ('"content"', r'"\u00e9"', "null", "[]", "1"),
)
IN_MESSAGE = ['"name": "a"', r'"content": "a\n"', '"role": "user"', r'"cont\u0065nt": "a"', '"audio": {"id": "a"}']
STREAM = ["true"], ("false", "1")
NAMES = ["max_tokens", "max_completion_tokens", "temperature", "top_p", "seed"], ("n", "tools", "Max_Tokens", "extra")
VALUES = ["1", "5000", "null"], ("0", "-1", "5001", "1.0", "1.5", "true", "1e999", '"1"', "[]", "{}")
OPTIONS = (
    ["null", "{}", '{"include_usage": true}', '{"include_usage": false}'],
    ('{"include_usage": 1}', '{"a": 1}', "1"),
)
MORE = [r'"stop": "a\n"', '"stop": ["a", "b"]', r'"user": "a\\"', '"stop": [[]]', '"model": "n"', '"stream": false']


def pick(draw: random.Random, values: tuple[Sequence[str], Sequence[str]]) -> str:
    return draw.choice(values[draw.random() < 0.06])


def message(draw: random.Random) -> str:
    fields = [f'"role": "{pick(draw, ROLES)}"', f'"content": {pick(draw, TEXTS)}']
    if draw.random() < 0.05:
        fields.append(draw.choice(IN_MESSAGE))
    draw.shuffle(fields)
    return "{" + ", ".join(fields) + "}"


def body(draw: random.Random) -> bytes:
    messages = ", ".join(message(draw) for _ in range(draw.choice([0, 1, 1, 2, 2, 3])))
    fields = [f'"model": {pick(draw, MODELS)}', f'"messages": [{messages}]', f'"stream": {pick(draw, STREAM)}']
    fields += [f'"{pick(draw, NAMES)}": {pick(draw, VALUES)}' for _ in range(draw.choice([0, 0, 1, 2]))]
    if draw.random() < 0.3:
        fields.append(f'"stream_options": {pick(draw, OPTIONS)}')
    if draw.random() < 0.1:
        fields.append(draw.choice([*MORE, fields[1]]))
    draw.shuffle(fields)
    text = ("{" + ", ".join(fields) + "}").encode()
    if draw.random() < 0.1:
        at = draw.randrange(len(text))
        text = text[:at] + draw.choice([b"", b"\xff", b'"', b"\\", b" ", b"[", b"\0"]) + text[at + 1 :]
    return text


def outcome(raw: bytes, rules: BodyRules) -> tuple[Any, ...]:
    try:
        found = check(raw, rules)
    except Refused as refused:
        return refused.status, refused.code, refused.param, str(refused)
    return (*msgspec.structs.astuple(found), list(found.top))


def test_the_check_of_one_pass_agrees_with_the_general_one(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(33)
    bodies = [body(draw) for _ in range(8000)]
    taken = sum(check_texts(raw, RULES) is not None for raw in bodies)
    assert taken > 2000, "the check of one pass takes hardly any"
    by_one_pass = [outcome(raw, RULES) for raw in bodies]
    monkeypatch.setattr(request, "check_texts", lambda raw, rules: None)
    for raw, found in zip(bodies, by_one_pass, strict=True):
        assert found == outcome(raw, RULES), raw


def test_bounds_are_those_of_the_rules() -> None:
    raw = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": true, "max_tokens": 5}'
    assert check_texts(raw, RULES) is not None
    assert check_texts(raw, BodyRules(max_depth=2)) is None
    assert check_texts(raw, BodyRules(max_output_tokens=4)) is None
    assert check_texts(raw.replace(b"hi", b"hi" * 32 * 1024), RULES) is None
