"""Limiter by key: how much fits, what leaks out, and a bounded memory."""

from __future__ import annotations

from gateway.base.leaky_buckets import MAX_KEYS, LeakyBuckets
from gateway.testing import FixedClock


def test_a_bucket_holds_a_minute_and_leaks() -> None:
    clock = FixedClock()
    buckets = LeakyBuckets(3, monotonic=clock.monotonic)
    assert [buckets.add("a") for _ in range(5)] == [0, 0, 0, 20, 20]
    assert buckets.add("b") == 0
    clock.move(20)
    assert [buckets.add("a") for _ in range(2)] == [0, 20]


def test_what_may_wait_takes_the_room_that_will_be_there() -> None:
    clock = FixedClock()
    buckets = LeakyBuckets(2, 1.0, monotonic=clock.monotonic)
    assert [buckets.add("a", 1.0) for _ in range(6)] == [0, 0, 0.5, 1, 1.5, 1.5]
    clock.move(1)
    assert [buckets.add("a", 1.0) for _ in range(3)] == [0.5, 1, 1.5]


def test_the_number_of_keys_in_memory_is_bounded() -> None:
    buckets = LeakyBuckets(1, monotonic=FixedClock().monotonic)
    buckets.add("first")
    for number in range(MAX_KEYS):
        buckets.add(str(number))
    assert (buckets.add("first"), buckets.add("first") > 0) == (0, True)
