"""Why a relay ended, and what that means for a caller that has had the first byte."""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

from gateway.errors import Refused
from gateway.exchange import Outcome


class EndReason(Enum):
    """Why a relay ended."""

    OTHER = "the answer is no event stream, or there is none"
    REFUSED = "the first event is an error"
    LATE = "no event arrived in time"
    COMPLETE = "the answer is complete"
    UPSTREAM = "the upstream ended its answer"
    BROKEN = "the upstream's connection broke"
    IDLE = "the upstream sent nothing for too long"
    TOTAL = "the answer took too long"
    SIZE = "the answer grew too large"
    CALLER = "the caller left"
    CALLER_STALLED = "the caller stopped reading"
    STOPPING = "the gateway is stopping, or it stopped this exchange"
    PLUGIN = "a plugin failed"


class Incomplete(msgspec.Struct, frozen=True):
    """An answer that ended without being complete: its outcome, and the error event that the caller gets."""

    outcome: Outcome
    type: str
    code: str
    message: str

    def error(self) -> Refused:
        """Return the error for the event."""
        return Refused(500, self.code, self.message, type=self.type)


INCOMPLETE: Final = {
    EndReason.UPSTREAM: Incomplete(
        Outcome.UPSTREAM_TRUNCATED,
        "upstream_error",
        "upstream_truncated",
        "The upstream ended the answer before it was whole.",
    ),
    EndReason.BROKEN: Incomplete(
        Outcome.UPSTREAM_TRUNCATED,
        "upstream_error",
        "upstream_truncated",
        "The upstream's connection broke before the answer was whole.",
    ),
    EndReason.IDLE: Incomplete(
        Outcome.UPSTREAM_STALLED,
        "upstream_error",
        "upstream_timeout",
        "The upstream fell silent in the middle of the answer.",
    ),
    EndReason.TOTAL: Incomplete(
        Outcome.STOPPED, "upstream_error", "upstream_timeout", "The answer took longer than this gateway allows."
    ),
    EndReason.SIZE: Incomplete(
        Outcome.STOPPED, "upstream_error", "upstream_error", "The answer is larger than this gateway allows."
    ),
    EndReason.STOPPING: Incomplete(
        Outcome.STOPPED,
        "service_error",
        "service_unavailable",
        "The gateway is stopping; send the request again.",
    ),
    EndReason.PLUGIN: Incomplete(Outcome.INTERNAL_ERROR, "service_error", "internal_error", ""),
}
"""The outcome and the error event for each reason that leaves a started answer incomplete. `attempt` handles the others."""

STREAM_HEADERS: Final = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
"""The headers of a stream that begins."""
