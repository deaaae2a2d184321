"""Half of the time at most goes into parsing, and those that wait take turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from gateway.server import turns as module
from gateway.server.turns import BURST_S, Turns
from tests.patience import wait_until


class Time:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    monkeypatch.setattr(module, "time", clock)
    return clock


def work(turns: Turns, clock: Time, seconds: float) -> None:
    began = clock.now
    clock.now += seconds
    turns.spend(began)


def test_a_burst_is_admitted_and_then_half_of_the_time(clock: Time) -> None:
    turns, admitted = Turns(), 0
    while turns.admit():
        work(turns, clock, 0.001)
        admitted += 1
    assert admitted * 0.001 == pytest.approx(BURST_S, abs=0.0011)
    clock.now += BURST_S
    assert turns.admit()
    busy = 0
    for _ in range(10_000):
        if turns.admit():
            work(turns, clock, 0.0005)
            busy += 1
        else:
            clock.now += 0.0005
    assert 4900 < busy < 5100


def test_work_that_costs_little_is_always_admitted(clock: Time) -> None:
    turns = Turns()
    for _ in range(10_000):
        assert turns.admit()
        work(turns, clock, 0.0001)
        clock.now += 0.0001


async def test_those_that_wait_take_turns_and_each_turn_of_the_loop_is_bounded(clock: Time) -> None:
    turns, done = Turns(), list[str]()
    work(turns, clock, 2 * BURST_S)
    assert not turns.admit()

    def piece(name: str) -> Callable[[], None]:
        def take_turn() -> None:
            done.append(name)
            work(turns, clock, BURST_S / 2)

        return take_turn

    for number in range(4):
        turns.wait("one", piece(f"one{number}"))
    turns.wait("two", piece("two0"))
    clock.now += 2 * BURST_S
    assert not turns.admit(), "others wait already"
    await wait_until(lambda: len(done) == 2)
    for _ in range(20):
        await asyncio.sleep(0.002)
    assert done == ["one0", "two0"], "more than the burst ran without a pause"
    clock.now += BURST_S
    await wait_until(lambda: len(done) == 4)
    clock.now += BURST_S
    await wait_until(lambda: len(done) == 5)
    assert done == ["one0", "two0", "one1", "one2", "one3"]
    clock.now += BURST_S
    assert turns.admit()
