"""A request that waited as announced is admitted once, within bounds."""

from __future__ import annotations

import pytest

from gateway.store import circuit_breaker as module
from gateway.store.circuit_breaker import KEPT_S, MARGIN_S, MAX_EACH, Announcements


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("time.monotonic", clock)
    return clock


def test_each_announcement_admits_one_request_when_its_time_is_over(clock: Clock) -> None:
    announced = Announcements()
    announced.add("one", "a", 5 + MARGIN_S)
    announced.add("one", "a", 2 + MARGIN_S)
    announced.use("one", "a")
    assert not announced.over("one", "a")
    clock.now += 2
    assert announced.over("one", "a")
    assert not announced.over("two", "a")
    assert not announced.over("one", "b")
    announced.use("one", "a")
    assert not announced.over("one", "a")
    clock.now += 3
    announced.use("one", "a")
    assert not announced.over("one", "a")
    assert announced._times == {}


def test_an_announcement_is_forgotten_some_time_after_it(clock: Clock) -> None:
    announced = Announcements()
    announced.add("one", "a", 1 + MARGIN_S)
    clock.now += 1 + KEPT_S
    assert announced.over("one", "a")
    clock.now += 0.1
    assert not announced.over("one", "a")
    announced.use("one", "a")


def test_what_is_remembered_is_bounded(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ENTRIES", 3)
    announced = Announcements()
    for number in range(10):
        for _ in range(MAX_EACH + 9):
            announced.add(str(number), "a", 1)
    assert list(announced._times) == [("7", "a"), ("8", "a"), ("9", "a")]
    assert {len(times) for times in announced._times.values()} == {MAX_EACH}
