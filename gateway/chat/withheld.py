"""Events that were counted when they arrived, and are not delivered after all, because a plugin ended the stream. Sans-I/O.

What is counted of a stream is an estimate over all of its events, so nothing can be subtracted from it. Instead, the raw bytes are
kept since a state that is known, and those that were delivered are counted again. What is charged is so a function of the events
that were delivered, however they were cut on their way here.
"""

from __future__ import annotations

from copy import copy
from typing import Any, Final

from gateway.chat.events import EventStream
from gateway.chat.sse import parse_event, whole_events

END: Final = b"."
"""Follows the data, since an event may end with a carriage return."""
KEPT: Final = 32 * 1024
"""Raw bytes after which a new state is kept."""
MOST_KEPT: Final = 1 << 20
"""Raw bytes after which it is kept although an event was read in it that is not relayed."""

_STATE: Final = tuple(name for name in EventStream.__slots__ if name not in ("_pending", "output", "template", "usage"))


def whole_up_to(data: bytes, most: int) -> bytes:
    """Return the whole events that the data begins with, of `most` bytes together, without `[DONE]`: the answer is not whole."""
    end = 0
    for event in whole_events(data + END):
        if end + len(event) > most or parse_event(event)[1] == b"[DONE]":
            break
        end += len(event)
    return data[:end]


class WatchedEvents(EventStream):
    """An event stream whose last events may be withdrawn. After what was relayed, call `deliver` or `withdraw`."""

    __slots__ = ("_all_relayed", "_at_mark", "_delivered", "_raw", "_undelivered")

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._all_relayed = True
        """The last event that was read is relayed."""
        self._undelivered = 0
        self._keep_state()

    def feed(self, data: bytes) -> bytes:
        """Take data from the upstream and return the data to relay now."""
        self._raw += data
        self._all_relayed = True
        relayed = super().feed(data)
        self._undelivered += len(relayed)
        return relayed

    def close(self) -> bytes:
        """Return what the clean end of the upstream's data completes."""
        before = self._undelivered
        relayed = super().close()
        self._undelivered = before + len(relayed)
        return relayed

    def deliver(self, held: int) -> None:
        """Note that all that was relayed is delivered, but `held` bytes of an event that is too long to wait for."""
        self._delivered += self._undelivered
        self._undelivered = 0
        kept = len(self._raw)
        if (kept > KEPT and self._all_relayed) or kept > MOST_KEPT or self._in_overlong:
            self._keep_state(held)

    def withdraw(self, kept: int) -> None:
        """Count nothing that was relayed since the last delivery but its first `kept` events. Nothing can be fed afterwards."""
        state, pending, held, output, usage = self._at_mark
        for name, value in zip(_STATE, state, strict=True):
            setattr(self, name, value)
        self.output, self.usage = output, usage
        self._pending.clear()
        relayed = 0
        for event in whole_events(pending + self._raw + END):
            if relayed >= self._delivered and kept <= 0:
                break
            if self._in_overlong:
                took = len(self._end_overlong(event))
                self.output.add_unread(held)
            else:
                took = len(self._take_event(event))
            relayed += took
            kept -= took > 0 and relayed > self._delivered

    def _take_event(self, event: bytes) -> bytes:
        relayed = super()._take_event(event)
        self._all_relayed = bool(relayed)
        return relayed

    def _keep_state(self, held: int = 0) -> None:
        state = [getattr(self, name) for name in _STATE]
        self._at_mark = state, bytes(self._pending), held, self.output.copy(), copy(self.usage)
        self._raw = bytearray()
        self._delivered = 0
