"""A scheduler of the event loop: work that can wait is done while the loop has nothing else to do. Sans-I/O.

1. Three kinds of work wait here: streams whose upstream sends much at once, checks of large bodies, and the requests of an address
   that begins many. Each call takes less than a millisecond where possible.
2. A turn of the event loop that took no time had nothing to do: then some of the waiting work is done.
3. Where the loop always has something to do, a fifth of its time is left for the waiting work. The keys take turns:
   one address or account with much work does not delay the others.

`AddressTurns` decides when a worker does what callers begin, so that one address that begins much does not delay the others. To
open a connection, to begin a request and to parse a piece of a body are such things. An address does one at a time: what else it
has sent waits for a turn. Another address does not wait behind it, unless all of them together begin too much.

All times are of the thread's own clock, which stands while it sleeps: other processes on the machine change nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final

TURN_S: Final = 0.0002
"""How long waiting work is done in one turn of the event loop, where the turns are short. At least one call is made."""
QUIET_S: Final = 0.000025
"""A turn of the event loop that takes less had nothing to do. On a slow processor: one that takes less than twice the shortest."""
BUSY_S: Final = 0.0001
"""A turn of the event loop that takes longer had something to do on any processor."""
SHARE: Final = 4
"""Other work goes first for this many times as long as the waiting work took."""
BURST_S: Final = 0.001
"""Seconds of work that may be done at once without waiting. More of it gets its share of the time."""

ADDRESS_BURST_S: Final = 0.005
"""Time that all addresses together may use at once without waiting. Beyond, half of the time."""
SHARED_S: Final = 10.0
"""How long after another address began something an address waits for its turns. One that is alone, as a proxy in front of all
callers is, would wait for nobody."""
ADDRESSES: Final = 1024
"""Addresses remembered at most. The work that an address caused is over within milliseconds."""


class Turns:
    """The work that waits for a turn of the event loop, by key."""

    def __init__(self) -> None:
        self.waiting: OrderedDict[str, deque[Callable[[], None]]] = OrderedDict()
        """The work of each key in order. The first key has the turn."""
        self._watching = False
        self._looked_at = 0.0
        """When the turn of the event loop began that is watched."""
        self._serve_by = 0.0
        """When some waiting work is done, even if other work is left."""
        self._expected_s = 0.0
        self._paid_at = 0.0
        """When other work has had its share of the time for the work that did not wait."""
        self._shortest_s = BUSY_S
        """The shortest turn of the event loop that was watched."""

    def wait(self, serve: Callable[[], None], key: str = "") -> None:
        """Call `serve` in a later turn of the event loop, or later in the turn that serves now."""
        self.waiting.setdefault(key, deque()).append(serve)
        if not self._watching:
            self._watching = True
            self._serve_by = time.thread_time() + SHARE * TURN_S
            self._watch()

    def is_spent(self, now: float) -> bool:
        """Return whether so much work was done without waiting that more work has to wait."""
        return self._paid_at - now > SHARE * BURST_S

    def count(self, began: float) -> None:
        """Count the time since `began` as work that did not wait."""
        self._paid_at = max(self._paid_at, began) + SHARE * (time.thread_time() - began)

    def expect(self, more_s: float) -> None:
        """Count time that the present work will cost later."""
        self._expected_s += more_s

    def _watch(self) -> None:
        self._looked_at = time.thread_time()
        asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        now = time.thread_time()
        turn_s = now - self._looked_at
        self._shortest_s = min(self._shortest_s, turn_s)
        try:
            if turn_s < QUIET_S or turn_s < min(2 * self._shortest_s, BUSY_S) or now >= self._serve_by:
                self._serve(now, max(TURN_S, turn_s / SHARE))
        finally:
            self._watching = bool(self.waiting)
            if self._watching:
                self._watch()

    def _serve(self, began: float, most_s: float) -> None:
        self._expected_s = spent_s = 0.0
        try:
            while self.waiting and spent_s < most_s:
                key, work = self.waiting.popitem(last=False)
                serve = work.popleft()
                if work:
                    self.waiting[key] = work
                serve()
                spent_s = time.thread_time() - began + self._expected_s
        finally:
            self._serve_by = time.thread_time() + SHARE * spent_s


class AddressTurns(Turns):
    """The turns of the addresses of one worker."""

    def __init__(self) -> None:
        super().__init__()
        self._latest = ""
        """The address that began something last."""
        self._shared_until = 0.0
        self.alone = False
        """Whether only one address begins anything, so that what it takes is not counted."""
        self._busy_until: dict[str, float] = {}
        """When as much time is over as an address took, with what will follow from what it began."""

    def admit(self, address: str) -> bool:
        """Return whether this address may do something now, without waiting for a turn. It may have a word before it."""
        if address != self._latest and (who := address.rpartition(" ")[2]) != self._latest:
            if self._latest:
                self._shared_until = time.monotonic() + SHARED_S
            self._latest = who
        self.alone = time.monotonic() > self._shared_until and not self.waiting
        if self.alone:
            return True
        now = time.thread_time()
        idle = self._busy_until.get(address, 0.0) <= now and address not in self.waiting
        return idle and self._paid_at - now < ADDRESS_BURST_S

    def spend(self, address: str, began: float, more_s: float = 0.0) -> None:
        """Count the time since `began`, spent for an address, and `more_s` that will follow from it."""
        if self.alone:
            return
        now = time.thread_time()
        if address not in self._busy_until and len(self._busy_until) >= ADDRESSES:
            self._busy_until.clear()
        self._busy_until[address] = now + now - began + more_s
        self._paid_at = max(self._paid_at, began) + 2 * (now - began)
        self.expect(more_s)
