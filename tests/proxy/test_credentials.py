"""Credentials are used in turn; a refused one is suspended, which is logged without showing it."""

from __future__ import annotations

import pytest

from gateway.proxy.credentials import SUSPENDED_S, Credentials


class FakeClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock()
    monkeypatch.setattr("time.monotonic", clock)
    return clock


def test_credentials_are_used_in_turn() -> None:
    credentials = Credentials(["a", "b", "c"])
    assert [credentials.next() for _ in range(7)] == list("abcabca")


def test_a_channel_without_credentials_has_an_empty_one() -> None:
    assert Credentials([]).next() == ""


def test_a_refused_credential_is_suspended_and_used_again_later(clock: FakeClock) -> None:
    credentials = Credentials(["a", "b", "c"])
    assert credentials.refused("b", "openai")
    assert [credentials.next() for _ in range(4)] == list("acac")
    clock.now += SUSPENDED_S
    assert sorted(credentials.next() for _ in range(3)) == ["a", "b", "c"]


def test_when_all_are_refused_the_one_suspended_longest_is_used(clock: FakeClock) -> None:
    credentials = Credentials(["a", "b"])
    assert credentials.refused("b", "openai")
    clock.now += 1
    assert not credentials.refused("a", "openai")
    assert [credentials.next(), credentials.next()] == ["b", "b"]


def test_the_only_credential_is_never_suspended() -> None:
    credentials = Credentials(["a"])
    assert not credentials.refused("a", "openai")
    assert credentials.next() == "a"


def test_the_log_shows_the_index_of_a_refused_credential_and_never_its_text(capsys: pytest.CaptureFixture[str]) -> None:
    Credentials(["canary-0", "canary-1"]).refused("canary-1", "openai")
    printed = "".join(capsys.readouterr())
    assert "credential_refused" in printed
    assert "index=1" in printed
    assert "openai" in printed
    assert "canary" not in printed
