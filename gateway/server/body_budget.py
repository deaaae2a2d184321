"""The memory for the bodies of a worker's requests, and how it is shared.

1. A body takes what has arrived of it, not what its head declares: a declared body that does not come takes nothing.
2. The bodies of one account take at most as much as is still free. So any number of accounts leave room for one more: one
   account takes half of the memory, two take a third each. These are the dynamic thresholds of switches with shared memory.
3. An account may always have one body, if there is room for it at all.
"""

from __future__ import annotations

from typing import Final

from gateway.errors import Refused, unavailable

SMALL: Final = 16 * 1024
"""A body up to this size is read even where the budget is used up: a few large bodies do not shut out the other callers."""


class BodyShare:
    """What the body of one request holds of the budget, until `release`."""

    __slots__ = ("_budget", "_owner", "held")

    def __init__(self, budget: BodyBudget, owner: str) -> None:
        self._budget = budget
        self._owner = owner
        self.held = 0

    def check(self, size: int) -> None:
        """Raise `Refused` where a body of `size` bytes has no room now, or would exceed what its owner may have."""
        if size > max(SMALL, self.held):
            self._budget.check(self, self._owner, size - self.held)

    def grow(self, size: int) -> None:
        """Hold `size` bytes in all, if that is more than before. Raises `Refused` as `check` does."""
        self.check(size)
        if size > self.held:
            self._budget.take(self, self._owner, size - self.held)
            self.held = size

    def release(self) -> None:
        """Give everything back. May be called again."""
        if self.held:
            self._budget.give_back(self, self._owner, self.held)
            self.held = 0


class Owner:
    """What one account, or one address, holds. `first`: the body that its share does not limit."""

    __slots__ = ("first", "held")

    def __init__(self) -> None:
        self.held = 0
        self.first: BodyShare | None = None


class BodyBudget:
    """How many bytes the bodies of all open exchanges of a worker hold, and those of each owner."""

    __slots__ = ("_owners", "_size", "reserved")

    def __init__(self, size: int) -> None:
        self._size = size
        self.reserved = 0
        self._owners: dict[str, Owner] = {}

    def check(self, body: BodyShare, owner: str, more: int) -> None:
        """Raise `Refused` where `more` bytes for this body do not fit, or are more than its owner may have."""
        free = self._size - self.reserved - more
        if free < 0:
            raise unavailable()
        has = self._owners.get(owner)
        if has is not None and has.first not in (None, body) and has.held + more > free:
            text = "Your large requests take their share of the memory. Wait for one to be answered, then retry."
            raise Refused(429, "too_many_concurrent", text, retry_after_s=1)

    def take(self, body: BodyShare, owner: str, more: int) -> None:
        """Take `more` bytes for this body."""
        has = self._owners.setdefault(owner, Owner())
        has.held += more
        if has.first is None and body.held + more > SMALL:
            has.first = body
        self.reserved += more

    def give_back(self, body: BodyShare, owner: str, held: int) -> None:
        """Give back what this body holds. The next of its owner that grows is no longer limited by the share."""
        has = self._owners[owner]
        has.held -= held
        if has.first is body:
            has.first = None
        if not has.held:
            del self._owners[owner]
        self.reserved -= held
