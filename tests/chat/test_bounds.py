"""The bounds of a body are the same wherever a window of it ends."""

from __future__ import annotations

import random
from itertools import chain

import msgspec
import pytest

from gateway.base.errors import Refused
from gateway.chat import prompt
from gateway.chat.prompt import check_bounds, check_encoding

TEXTS = ['"', "\\", "[{", "}]", '\\"', "ä€😀", "x", "\\\\", ""]


def nested(depth: int, random: random.Random) -> object:
    """Return a value of a known depth, with strings full of brackets and escapes."""
    text = "".join(random.choices(TEXTS, k=9))
    if not depth:
        return text
    rest = [text, nested(depth - 1, random), [[]] if depth > 2 else text]
    random.shuffle(rest)
    return rest if random.random() < 0.5 else {text + str(number): each for number, each in enumerate(rest)}


@pytest.mark.parametrize("window", [1, 2, 3, 7, 64])
def test_the_depth_is_that_of_the_whole(monkeypatch: pytest.MonkeyPatch, window: int) -> None:
    monkeypatch.setattr(prompt, "WINDOW", window)
    chance = random.Random(window)
    for _ in range(40):
        depth = chance.randint(1, 8)
        raw = msgspec.json.encode(nested(depth, chance))
        list(check_bounds(raw, depth))
        with pytest.raises(Refused, match="nested deeper"):
            list(check_bounds(raw, depth - 1))


def test_too_many_brackets_and_strings_are_refused_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt, "WINDOW", 64)
    monkeypatch.setattr(prompt, "MAX_BRACKETS", 10)
    monkeypatch.setattr(prompt, "MAX_STRINGS", 10)
    list(check_bounds(b"[%b]" % b",".join([b"[]"] * 9), 2))
    with pytest.raises(Refused, match="10 arrays and objects"):
        list(check_bounds(b"[%b]" % b",".join([b"[]"] * 1000), 2))
    list(check_bounds(b"[%b]" % b",".join([b'"\\""'] * 10), 2))
    with pytest.raises(Refused, match="10 strings"):
        list(check_bounds(b"[%b]" % b",".join([b'"\\""'] * 11), 2))


@pytest.mark.parametrize("window", [5, 6, 7, 8])
def test_the_encoding_is_that_of_the_whole(monkeypatch: pytest.MonkeyPatch, window: int) -> None:
    monkeypatch.setattr(prompt, "WINDOW", window)
    good = "aä€😀".encode() * 5
    list(check_encoding(good))
    for at, bad in chain(((at, b"\xff") for at in range(len(good))), ((at, b"\x80") for at in range(len(good)))):
        raw = good[:at] + bad + good[at:]
        try:
            raw.decode()
        except UnicodeDecodeError as error:
            with pytest.raises(UnicodeDecodeError) as found:
                list(check_encoding(raw))
            assert found.value.start == error.start or abs(found.value.start - error.start) < 4
        else:
            list(check_encoding(raw))


def test_a_large_body_is_checked_with_pauses() -> None:
    raw = b"[%b]" % b",".join([b"1"] * 200_000)
    assert len(list(check_bounds(raw, 1))) > 2
    assert len(list(check_encoding(raw))) > 2
