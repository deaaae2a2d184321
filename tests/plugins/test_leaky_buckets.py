"""Limits by minute: how much fits, what leaks out, and a bounded memory."""

from __future__ import annotations

from gateway.testing import FixedClock
from plugins.pacing import MAX_KEYS, LeakyBuckets


def test_a_bucket_holds_a_minute_and_leaks() -> None:
    clock = FixedClock()
    buckets = LeakyBuckets(3, clock)
    assert [buckets.add("a") for _ in range(5)] == [0, 0, 0, 20, 20]
    assert buckets.add("b") == 0
    clock.move(20)
    assert [buckets.add("a") for _ in range(2)] == [0, 20]


def test_the_number_of_keys_in_memory_is_bounded() -> None:
    buckets = LeakyBuckets(1, FixedClock())
    buckets.add("first")
    for number in range(MAX_KEYS):
        buckets.add(str(number))
    assert (buckets.add("first"), buckets.add("first") > 0) == (0, True)
