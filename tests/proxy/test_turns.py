"""Turns of the event loop: what waits is done in order, and addresses take turns."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from itertools import pairwise

import pytest

from gateway.proxy import scheduler as module
from gateway.proxy.scheduler import (
    ADDRESS_BURST_S,
    ADDRESSES,
    BURST_S,
    SHARE,
    SHARED_S,
    TURN_S,
    AddressTurns,
    Turns,
)
from tests.patience import wait_until


# What waits for a turn is done in order, while the event loop has nothing else to do, and gets its share if it always has.
def work(seconds: float) -> None:
    """Use the processor for some time."""
    ends = time.thread_time() + seconds
    while time.thread_time() < ends:
        pass


async def test_each_turn_of_the_loop_serves_some_in_order() -> None:
    turns, served, between = Turns(), list[int](), list[int]()

    def serve(number: int) -> None:
        served.append(number)
        work(TURN_S)

    def look() -> None:
        between.append(len(served))
        if len(served) < 5:
            asyncio.get_running_loop().call_soon(look)

    for number in range(5):
        turns.wait(lambda number=number: serve(number))  # type: ignore[misc]
    look()
    await wait_until(lambda: between[-1] == 5)
    assert served == [0, 1, 2, 3, 4]
    assert set(between) == {0, 1, 2, 3, 4, 5}, "other work comes between two that are as long as a turn"


async def test_other_work_goes_first_and_leaves_a_share() -> None:
    turns, served, other = Turns(), list[float](), [0.0]

    def busy() -> None:
        work(TURN_S)
        other[0] += TURN_S
        if len(served) < 20:
            asyncio.get_running_loop().call_soon(busy)

    def serve() -> None:
        served.append(other[0])
        work(2 * TURN_S)

    busy()
    for _ in range(20):
        turns.wait(serve)
    await wait_until(lambda: len(served) == 20)
    for before, after in pairwise(served):
        assert after - before >= SHARE * TURN_S, "half of what is promised, since the parts are not exact"
    assert served[-1] - served[0] <= 19 * 2 * 2 * SHARE * TURN_S


async def test_an_idle_loop_serves_at_once_on_a_slow_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = time.thread_time
    began = fast()
    monkeypatch.setattr("gateway.proxy.scheduler.time.thread_time", lambda: began + (fast() - began) * 6)
    turns, served = Turns(), list[float]()

    def serve() -> None:
        served.append(time.thread_time())
        work(2 * TURN_S)

    for _ in range(20):
        turns.wait(serve)
    await wait_until(lambda: len(served) == 20)
    pauses = sorted(after - before - 2 * TURN_S for before, after in pairwise(served))
    assert pauses[len(pauses) // 2] < SHARE * TURN_S, "half of the pause of a loop that has something to do"


async def test_what_was_begun_counts_with_what_will_follow() -> None:
    turns, served, between = Turns(), list[int](), list[int]()

    def serve() -> None:
        served.append(1)
        turns.expect(50 * TURN_S)  # more than any turn allows, also one in which the machine stood still

    def look() -> None:
        between.append(len(served))
        if len(served) < 3:
            asyncio.get_running_loop().call_soon(look)

    for _ in range(3):
        turns.wait(serve)
    look()
    await wait_until(lambda: between[-1] == 3)
    assert set(between) == {0, 1, 2, 3}


async def test_keys_take_turns_and_what_waits_again_is_served_after_the_others() -> None:
    turns, served = Turns(), list[str]()

    def again() -> None:
        served.append("first")
        if len(served) < 5:
            turns.wait(again, "first")

    turns.wait(again, "first")
    turns.wait(again, "first")
    turns.wait(lambda: served.append("second"), "second")
    assert "first" in turns.waiting
    await wait_until(lambda: not turns.waiting)
    assert served[:3] == ["first", "second", "first"]
    turns.wait(lambda: served.append("later"))
    await wait_until(lambda: served[-1] == "later")


class Counting(Turns):
    """Counts how often it looks whether something may be done."""

    looks = 0

    def _look(self) -> None:
        self.looks += 1
        super()._look()


async def test_one_that_waits_again_is_looked_for_once_in_a_turn() -> None:
    """Were it looked for more often, each look would add one to every turn of the event loop."""
    turns, served, turned = Counting(), 0, 0

    def again() -> None:
        nonlocal served
        served += 1
        if served < 50:
            turns.wait(again)

    turns.wait(again)
    while served < 50:
        await asyncio.sleep(0)
        turned += 1
    assert turns.looks <= turned + 1


def test_what_does_not_wait_may_take_a_burst_and_then_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    turns, now = Turns(), [100.0]
    monkeypatch.setattr("gateway.proxy.scheduler.time.thread_time", lambda: now[0])

    def work_at_once(seconds: float) -> None:
        began = now[0]
        assert not turns.is_spent(began)
        now[0] += seconds
        turns.count(began)

    work_at_once(BURST_S / 2)
    work_at_once(BURST_S)
    assert turns.is_spent(now[0])
    now[0] += SHARE * BURST_S
    work_at_once(0)


async def test_one_that_raises_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    turns, served = Turns(), list[str]()

    def fail() -> None:
        raise ValueError("no")

    turns.wait(fail)
    turns.wait(lambda: served.append("second"))
    await wait_until(lambda: served == ["second"])


# Addresses take turns, and no address is remembered without an item.
async def test_addresses_take_turns_and_each_keeps_its_order() -> None:
    turns, served = Turns(), list[str]()
    for name in ("one0", "one1", "one2", "two0"):
        turns.wait(partial(served.append, name), name[:3])
    await wait_until(lambda: not turns.waiting)
    assert served == ["one0", "two0", "one1", "one2"]


# An address begins one thing at a time; another address does not wait behind it, unless all together begin too much.
class Time:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def thread_time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    monkeypatch.setattr(module, "time", clock)
    return clock


def shared() -> AddressTurns:
    """Return the turns of a worker at which two addresses have just begun something."""
    turns = AddressTurns()
    turns.admit("an address")
    turns.admit("another")
    return turns


def address_turns_work(turns: AddressTurns, clock: Time, address: str, seconds: float, more_s: float = 0.0) -> None:
    began = clock.now
    clock.now += seconds
    turns.spend(address, began, more_s)


def test_an_address_does_one_thing_at_a_time_and_others_do_not_wait_for_it(clock: Time) -> None:
    turns = shared()
    assert turns.admit("one")
    address_turns_work(turns, clock, "one", 0.001, 0.0005)
    assert not turns.admit("one")
    assert turns.admit("two")
    clock.now += 0.0012
    assert not turns.admit("one"), "what it began is not over"
    clock.now += 0.0004
    assert turns.admit("one")


def test_all_addresses_together_use_half_of_the_time_after_a_burst(clock: Time) -> None:
    turns, admitted = shared(), 0
    while turns.admit(f"address {admitted}"):
        address_turns_work(turns, clock, f"address {admitted}", 0.001)
        admitted += 1
    assert admitted * 0.001 == pytest.approx(ADDRESS_BURST_S, abs=0.0011)
    busy = 0
    for number in range(10_000):
        if turns.admit(f"later {number}"):
            address_turns_work(turns, clock, f"later {number}", 0.0005)
            busy += 1
        else:
            clock.now += 0.0005
    assert 4900 < busy < 5100


async def test_an_address_that_waits_does_not_overtake_itself(clock: Time) -> None:
    turns, done = shared(), list[str]()
    for number in range(3):
        turns.wait(lambda number=number: done.append(f"one{number}"), "one")  # type: ignore[misc]
    assert not turns.admit("one")
    assert turns.admit("two")
    await wait_until(lambda: len(done) == 3)
    assert turns.admit("one")


def test_an_address_that_is_alone_does_not_wait(clock: Time) -> None:
    turns = AddressTurns()
    for _ in range(100):
        assert turns.admit("one")
        assert turns.admit("open one"), "its connections are its own"
        address_turns_work(turns, clock, "one", 0.001)
    assert turns.admit("two")
    address_turns_work(turns, clock, "one", 0.001)
    assert not turns.admit("one")
    clock.now += SHARED_S + 1
    assert turns.admit("one")
    address_turns_work(turns, clock, "one", 0.001)
    assert turns.admit("one")


def test_few_addresses_are_remembered(clock: Time) -> None:
    turns = AddressTurns()
    for number in range(3 * ADDRESSES):
        address_turns_work(turns, clock, f"address {number}", 0.0)
    assert len(turns._busy_until) <= ADDRESSES
