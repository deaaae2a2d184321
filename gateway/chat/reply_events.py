"""The events of an answer that a plugin gives: `[DONE]` ends them. Sans-I/O.

An upstream may report its usage after `[DONE]`, and what it sends is read as it comes. What a plugin yields may be of any length.
"""

from __future__ import annotations

from gateway.chat.withheld import WatchedEvents


class ReplyEvents(WatchedEvents):
    """An event stream of which nothing is relayed, read or counted after `[DONE]`."""

    __slots__ = ()

    def feed(self, data: bytes) -> bytes:
        """Take data and return the data to relay now."""
        if self.done:
            self.backlog = False
            return b""
        return super().feed(data)

    def close(self) -> bytes:
        """Return what the end of the data completes."""
        return b"" if self.done else super().close()

    def _take_event(self, event: bytes) -> bytes:
        return b"" if self.done else super()._take_event(event)

    def _take_overlong(self) -> bytes:
        return b"" if self.done else super()._take_overlong()
