"""Credentials are used in turn; one that is refused rests, loudly and without being shown."""

from __future__ import annotations

import pytest

from gateway.proxy.credentials import SUSPENDED_S, Credentials


class Hand:
    """The hand of a clock."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Hand:
    hand = Hand()
    monkeypatch.setattr("time.monotonic", hand)
    return hand


def test_each_has_its_turn() -> None:
    credentials = Credentials(["a", "b", "c"])
    assert [credentials.next() for _ in range(7)] == list("abcabca")


def test_a_channel_without_any_has_an_empty_one() -> None:
    assert Credentials([]).next() == ""


def test_a_refused_one_rests_and_comes_back(clock: Hand) -> None:
    credentials = Credentials(["a", "b", "c"])
    assert credentials.refused("b", "openai")
    assert [credentials.next() for _ in range(4)] == list("acac")
    clock.now += SUSPENDED_S
    assert sorted(credentials.next() for _ in range(3)) == ["a", "b", "c"]


def test_where_all_were_refused_the_one_that_rested_longest_is_used(clock: Hand) -> None:
    credentials = Credentials(["a", "b"])
    assert credentials.refused("b", "openai")
    clock.now += 1
    assert not credentials.refused("a", "openai")
    assert [credentials.next(), credentials.next()] == ["b", "b"]


def test_the_only_one_is_never_set_aside() -> None:
    credentials = Credentials(["a"])
    assert not credentials.refused("a", "openai")
    assert credentials.next() == "a"


def test_the_log_names_its_place_and_never_itself(capsys: pytest.CaptureFixture[str]) -> None:
    Credentials(["canary-0", "canary-1"]).refused("canary-1", "openai")
    printed = "".join(capsys.readouterr())
    assert "credential_refused" in printed
    assert "index=1" in printed
    assert "openai" in printed
    assert "canary" not in printed
