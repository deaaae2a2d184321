"""What one scenario has shown of a plugin."""

from __future__ import annotations

import msgspec

from gateway.contract.endings import Ending
from gateway.contract.snapshot import Snapshot
from gateway.errors import GatewayError, Refused


class ScenarioResult(msgspec.Struct):
    """What was seen in one scenario: a snapshot before, in the middle and after, and what went wrong."""

    ending: Ending
    before: Snapshot
    during: Snapshot = {}
    after: Snapshot = {}
    problems: list[str] = []
    refused: Refused | None = None
    """What `on_request` refused the request with, which it may."""
    failure: GatewayError | None = None
    """The error of the store for which the request was refused."""
    missing: list[str] = []
    """Facts that the plugin provides by its declaration and did not set."""
    waits: int = 0
    """How often `on_request` waited."""

    def taken(self) -> set[str]:
        """Return the names of what `on_request` changed and `on_end` changed back."""
        names = self.before.keys() | self.during.keys()
        return {name for name in names if self.before.get(name, 0) != self.during.get(name, 0)} - self.left(names)

    def left(self, names: set[str]) -> set[str]:
        """Return which of `names` differ from what they were before."""
        return {name for name in names if self.before.get(name, 0) != self.after.get(name, 0)}
