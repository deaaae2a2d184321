"""Where the relay of an answer is."""

from __future__ import annotations

from enum import Enum


class RelayState(Enum):
    """Where a relay is. It goes from `COLLECTING` to `RELAYING`, and to one of the others when the caller leaves."""

    COLLECTING = "the caller has nothing yet; the first event is not complete"
    RELAYING = "the caller has the head of the response and the first event"
    ABANDONED = "the caller left before the answer was complete"
    CONCLUDING = "the caller left after the finish; only the usage is outstanding"
