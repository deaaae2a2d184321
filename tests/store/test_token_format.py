"""The text of a token contains its ids, and only the pepper's owner can create one."""

from __future__ import annotations

import re
from string import ascii_letters, digits

from hypothesis import given
from hypothesis import strategies as st

from gateway.store.token_format import TokenCodec

CODEC = TokenCodec(b"a pepper of some length")
ALPHABET = digits + ascii_letters + "-"


def test_a_created_text_is_read() -> None:
    short_id, text = CODEC.make("alice")
    assert re.fullmatch(r"sk-alice-[a-z0-9]{8}-[A-Za-z0-9]{28}", text)
    assert CODEC.read(text) == ("alice", short_id)


def test_no_two_texts_are_equal() -> None:
    texts = [CODEC.make("alice")[1] for _ in range(1000)]
    assert len(set(texts)) == len({text[:-28] for text in texts}) == len({text[-28:] for text in texts}) == 1000


def test_one_wrong_character_anywhere_is_detected() -> None:
    _, text = CODEC.make("alice")
    for place in range(len(text)):
        for character in ALPHABET:
            if character != text[place]:
                assert CODEC.read(text[:place] + character + text[place + 1 :]) is None


def test_a_shorter_or_longer_text_is_detected() -> None:
    _, text = CODEC.make("alice")
    assert all(CODEC.read(text[:length]) is None for length in range(len(text)))
    assert all(CODEC.read(grown) is None for grown in (text + "a", " " + text, text + "\n", text * 2))


@given(st.text())
def test_any_other_text_is_none(text: str) -> None:
    assert CODEC.read(text) is None
    assert CODEC.read(f"sk-alice-{text}") is None


def test_another_pepper_reads_nothing_and_digests_otherwise() -> None:
    other = TokenCodec(b"another pepper of some length")
    _, text = CODEC.make("alice")
    assert other.read(text) is None
    assert other.digest(text) != CODEC.digest(text)
    assert CODEC.digest(text) == TokenCodec(b"a pepper of some length").digest(text)
