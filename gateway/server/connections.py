"""The connections of one worker: how many there may be, and which are closed to make room.

1. A connection waits while no exchange is in progress on it: nothing has arrived yet, a head is incomplete, or it is idle
   between two requests. Only connections that wait are closed to make room, never one with an exchange.
2. Connections that have not carried a request of a known account are closed before the others, the oldest first, unless the
   others that wait are more than half of all: a caller cannot keep out all who are new. One address may have only so many of
   those that are not known.
3. The incomplete heads of all connections together stay within `head_budget`. Beyond it, connections with a large incomplete
   head are closed first, the oldest first: the heads of callers that behave are small, and complete within a round trip.
"""

from __future__ import annotations

import os
import resource
from collections import Counter, OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from gateway.base.addresses import network_of
from gateway.config.schema import Port

RESERVED_DESCRIPTORS: Final = 64
"""Descriptors that no caller's connection takes, and connections above the limit that are answered with 503 at a time."""
CONNECTION_BYTES: Final = 16 * 1024
"""Memory that a connection takes which waits, with its parser and its task."""
LARGE_HEAD: Final = 4 * 1024
MEMORY_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")


def _not_open() -> bool:
    return False


class Slot(msgspec.Struct, eq=False):
    """The place of one connection, from `accept` until it is closed.

    `peer`: the caller's address; `address`: the address or network that it counts for. `known`: a request of a known account
    was served on it. `close` closes the connection if it waits, and returns whether it did. `crowded`: there is no room for
    this connection. It is told so, and closed.
    """

    peer: str
    address: str
    crowded: bool
    known: bool = False
    left: bool = False
    waits: bool = False
    head_bytes: int = 0
    close: Callable[[], bool] = _not_open


class Connections:
    """The connections of one worker."""

    def __init__(self, port: Port) -> None:
        self.most = port.max_connections or default_max_connections()
        self.most_unknown = port.max_connections_per_address or max(1, self.most // 2)
        self._head_budget = port.head_budget
        self.open = 0
        self.head_bytes = 0
        """Bytes of all incomplete heads."""
        self._unknown: OrderedDict[Slot, None] = OrderedDict()
        self._known: OrderedDict[Slot, None] = OrderedDict()
        self._unknown_from: Counter[str] = Counter()
        self._large_heads: OrderedDict[Slot, None] = OrderedDict()
        self._small_heads: OrderedDict[Slot, None] = OrderedDict()

    def take(self, peer: str) -> Slot | None:
        """Return the slot of a new connection; None where it is to be closed at once."""
        address = network_of(peer)
        if self._unknown_from[address] >= self.most_unknown:
            return None
        crowded = self.open >= self.most and not self._close_oldest()
        if crowded and self.open >= self.most + RESERVED_DESCRIPTORS:
            return None
        self.open += 1
        slot = Slot(peer, address, crowded)
        self.wait(slot)
        return slot

    def wait(self, slot: Slot) -> None:
        """Note that no exchange is in progress on a connection."""
        if slot.left or slot.waits:
            return
        slot.waits = True
        if slot.known:
            self._known[slot] = None
        else:
            self._unknown[slot] = None
            self._unknown_from[slot.address] += 1

    def begin(self, slot: Slot) -> None:
        """Note that an exchange begins on a connection."""
        if not slot.waits:
            return
        slot.waits = False
        if slot.head_bytes:
            self.complete_head(slot)
        if slot.known:
            del self._known[slot]
        else:
            del self._unknown[slot]
            self._unknown_from[slot.address] -= 1
            if not self._unknown_from[slot.address]:
                del self._unknown_from[slot.address]

    def leave(self, slot: Slot) -> None:
        """Note that a connection is closed. May be called again."""
        if not slot.left:
            self.begin(slot)
            slot.left = True
            slot.close = _not_open  # breaks a reference cycle
            self.open -= 1

    def add_head(self, slot: Slot, size: int) -> None:
        """Count `size` more bytes of the incomplete head of a connection that waits."""
        if not slot.waits:
            return
        slot.head_bytes += size
        self.head_bytes += size
        if slot.head_bytes > LARGE_HEAD:
            self._small_heads.pop(slot, None)
            self._large_heads[slot] = None
        else:
            self._small_heads[slot] = None
        while self.head_bytes > self._head_budget and self._close_first(self._large_heads, self._small_heads):
            pass

    def complete_head(self, slot: Slot) -> None:
        """Count the head of a connection no longer: it is complete."""
        if slot.head_bytes:
            self.head_bytes -= slot.head_bytes
            slot.head_bytes = 0
            self._small_heads.pop(slot, None)
            self._large_heads.pop(slot, None)

    def _close_oldest(self) -> bool:
        if len(self._known) > self.most // 2:
            return self._close_first(self._known, self._unknown)
        return self._close_first(self._unknown, self._known)

    def _close_first(self, *orders: OrderedDict[Slot, None]) -> bool:
        """Close the first connection that can be closed. Return whether there was one."""
        for order in orders:
            for slot in order:
                if slot.close():
                    self.leave(slot)
                    return True
        return False


def default_max_connections() -> int:
    """Return how many connections a worker takes where the file does not say.

    Half of the descriptors, since a stream has another connection to its upstream, and an eighth of the memory.
    """
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # no such file, or `max`
        memory = min(memory, int(MEMORY_LIMIT.read_text()))
    by_memory = memory // 8 // CONNECTION_BYTES
    return max(1, by_memory if descriptors == resource.RLIM_INFINITY else min(by_memory, descriptors // 2))


def max_descriptor() -> int:
    """Return the descriptor from which on a connection is refused, so that open streams can finish."""
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 31 if descriptors == resource.RLIM_INFINITY else descriptors - RESERVED_DESCRIPTORS
