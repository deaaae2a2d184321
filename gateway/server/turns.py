"""Decides when a worker does what callers begin, so that one address that begins much does not delay the others.

To open a connection, to begin a request and to parse a piece of a body are such things. An address does one at a time: what else
it has sent waits until the event loop has nothing else to do (`gateway.proxy.turns`). Another address does not wait behind it,
unless all of them together begin too much.
"""

from __future__ import annotations

import time
from typing import Final

from gateway.proxy.turns import Turns

BURST_S: Final = 0.005
"""Time that all addresses together may use at once without waiting. Beyond, half of the time."""
OPEN_S: Final = 0.0002
"""What it costs to open a connection, most of it after the call that begins it."""
BEGIN_S: Final = 0.0003
"""What it costs to serve a request after its head was parsed, in the order of magnitude."""
SHARED_S: Final = 10.0
"""How long after another address began something an address waits for its turns. One that is alone, as a proxy in front of all
callers is, would wait for nobody."""
ADDRESSES: Final = 1024
"""How many addresses are remembered. What they did is over within milliseconds."""


class AddressTurns(Turns):
    """The turns of the addresses of one worker."""

    __slots__ = ("_busy_until", "_free_at", "_latest", "_shared_until", "alone")

    def __init__(self) -> None:
        super().__init__()
        self._latest = ""
        """The address that began something last."""
        self._shared_until = 0.0
        self.alone = False
        """Whether only one address begins anything, so that what it takes is not counted."""
        self._free_at = 0.0
        """When as much time as was spent for all addresses is over."""
        self._busy_until: dict[str, float] = {}
        """The same for each address, with what will follow from what it began."""

    def admit(self, address: str) -> bool:
        """Return whether this address may do something now, without waiting for a turn. It may have a word before it."""
        who = address.rpartition(" ")[2]
        if who != self._latest:
            if self._latest:
                self._shared_until = time.monotonic() + SHARED_S
            self._latest = who
        self.alone = time.monotonic() > self._shared_until and not self.waiting
        if self.alone:
            return True
        now = time.thread_time()
        idle = self._busy_until.get(address, 0.0) <= now and address not in self.waiting
        return idle and self._free_at - now < BURST_S

    def spend(self, address: str, began: float, more_s: float = 0.0) -> None:
        """Count the time since `began`, spent for an address, and `more_s` that will follow from it."""
        if self.alone:
            return
        now = time.thread_time()
        if address not in self._busy_until and len(self._busy_until) >= ADDRESSES:
            self._busy_until.clear()
        self._busy_until[address] = now + now - began + more_s
        self._free_at = max(self._free_at, began) + 2 * (now - began)
        self.expect(more_s)
