"""How many connections there may be, which are closed to make room, and the budget of incomplete heads."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest

from gateway.config.schema import Port
from gateway.server.connections import (
    CONNECTION_BYTES,
    LARGE_HEAD,
    Connections,
    Slot,
    default_max_connections,
)


class Opened:
    """Connections that are opened in order, with a list of those that were closed."""

    def __init__(self, **settings: Any) -> None:
        self.connections = Connections(Port(**settings))
        self.closed: list[str] = []

    def open(self, name: str, peer: str = "192.0.2.1") -> Slot | None:
        slot = self.connections.take(peer)
        if slot is not None:
            slot.close = lambda: self.close(name)
        return slot

    def close(self, name: str) -> bool:
        self.closed.append(name)
        return True

    def serve(self, name: str, *, known: bool = True) -> Slot:
        """Open a connection and serve a request on it."""
        slot = self.open(name)
        assert slot is not None
        self.connections.begin(slot)
        slot.known = known
        self.connections.wait(slot)
        return slot


def test_the_oldest_that_wait_are_closed_first_and_unknown_ones_before_known_ones() -> None:
    opened = Opened(max_connections=4, max_connections_per_address=4)
    opened.serve("known")
    opened.open("first")
    opened.open("second")
    opened.serve("unknown", known=False)
    for name in "abcd":
        assert opened.open(name) is not None
    assert opened.closed == ["first", "second", "unknown", "a"]
    assert opened.connections.open == 4


def test_a_connection_that_is_closed_twice_counts_once() -> None:
    opened = Opened(max_connections=2)
    slot = opened.open("a")
    assert slot is not None
    for _ in range(2):
        opened.connections.leave(slot)
    opened.connections.wait(slot)
    assert opened.connections.open == 0


def test_large_incomplete_heads_are_closed_first() -> None:
    opened = Opened(head_budget=4 * LARGE_HEAD)
    names = ("small", "large", "larger", "last")
    slots = {name: opened.open(name) for name in names}
    sizes = {"small": 100, "large": LARGE_HEAD + 1, "larger": 2 * LARGE_HEAD, "last": LARGE_HEAD}
    for name, slot in slots.items():
        assert slot is not None
        opened.connections.add_head(slot, sizes[name])
    assert opened.closed == ["large"]
    assert opened.connections.head_bytes == 100 + 3 * LARGE_HEAD
    for name in ("small", "larger", "last"):
        slot = slots[name]
        assert slot is not None
        opened.connections.complete_head(slot)
    assert opened.connections.head_bytes == 0


def test_a_head_behind_an_exchange_is_not_counted() -> None:
    opened = Opened(head_budget=1)
    slot = opened.open("a")
    assert slot is not None
    opened.connections.begin(slot)
    opened.connections.add_head(slot, 1000)
    assert (opened.connections.head_bytes, opened.closed) == (0, [])


@pytest.mark.parametrize(
    ("descriptors", "memory", "most"),
    [
        (1024, "max\n", 512),
        (10**6, str(8 * 1000 * CONNECTION_BYTES), 1000),
        (resource.RLIM_INFINITY, str(8 * 1000 * CONNECTION_BYTES), 1000),
        (1024, "", 512),
        (10**6, "1", 1),
    ],
)
def test_the_default_follows_descriptors_and_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, descriptors: int, memory: str, most: int
) -> None:
    limit = tmp_path / "memory.max"
    if memory:
        limit.write_text(memory)
    monkeypatch.setattr("gateway.server.connections.MEMORY_LIMIT", limit)
    monkeypatch.setattr("resource.getrlimit", lambda _: (descriptors, descriptors))
    assert default_max_connections() == most


def test_known_connections_that_wait_keep_half_of_the_places_at_most() -> None:
    opened = Opened(max_connections=4, max_connections_per_address=4)
    for name in ("one", "two", "three", "four"):
        opened.serve(name)
    for name in "abc":
        assert opened.open(name) is not None
    assert opened.closed == ["one", "two", "a"]
