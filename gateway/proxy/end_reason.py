"""Why the relay of an answer ended, and what a caller is told of it after the first byte."""

from __future__ import annotations

from enum import Enum
from typing import Final

from gateway.exchange import Outcome


class EndReason(Enum):
    """Why a stream ended."""

    OTHER = "the answer is no stream of events, or there is none"
    REFUSED = "the first event is an error"
    LATE = "no event came in time"
    UPSTREAM = "the upstream ended its answer"
    BROKEN = "the upstream's connection broke"
    IDLE = "the upstream fell silent"
    TOTAL = "the answer took too long"
    SIZE = "the answer grew too large"
    CALLER = "the caller left"
    STALLED = "the caller stopped reading"
    STOPPING = "the gateway is stopping"
    PLUGIN = "a plugin failed while it looked"


AFTER_FIRST_BYTE: Final[dict[EndReason, tuple[Outcome, str, str]]] = {
    EndReason.UPSTREAM: (
        Outcome.UPSTREAM_TRUNCATED,
        "upstream_truncated",
        "The upstream ended the answer before it was whole.",
    ),
    EndReason.BROKEN: (
        Outcome.UPSTREAM_TRUNCATED,
        "upstream_truncated",
        "The upstream's connection broke before the answer was whole.",
    ),
    EndReason.IDLE: (
        Outcome.UPSTREAM_STALLED,
        "upstream_timeout",
        "The upstream fell silent in the middle of the answer.",
    ),
    EndReason.TOTAL: (Outcome.STOPPED, "upstream_timeout", "The answer took longer than this gateway allows."),
    EndReason.SIZE: (Outcome.STOPPED, "upstream_error", "The answer is larger than this gateway allows."),
    EndReason.STOPPING: (Outcome.STOPPED, "service_unavailable", "The gateway is stopping; send the request again."),
    EndReason.PLUGIN: (Outcome.INTERNAL_ERROR, "internal_error", ""),
}
