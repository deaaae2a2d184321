"""Addresses take turns, and no address is remembered without an item."""

from __future__ import annotations

from gateway.proxy.scheduler import FairQueue


def test_addresses_take_turns_and_each_keeps_its_order() -> None:
    queue = FairQueue[str]()
    for number in range(3):
        queue.put("one", f"one{number}")
    queue.put("two", "two0")
    assert queue.take() == "one0"
    queue.put("three", "three0")
    assert [queue.take() for _ in range(4)] == ["two0", "one1", "three0", "one2"]
    assert not queue
    assert not queue._of_key
