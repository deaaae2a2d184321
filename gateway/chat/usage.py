"""Token usage of a response. Sans-I/O."""

from __future__ import annotations

from typing import Literal

import msgspec


class Usage(msgspec.Struct, frozen=True):
    """The tokens of one attempt or of a whole exchange. `source`: reported by the upstream, or estimated from bytes."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    source: Literal["upstream", "estimated", "none"] = "none"

    def __add__(self, other: Usage) -> Usage:
        if "none" in (self.source, other.source):
            return self if other.source == "none" else other
        source: Literal["upstream", "estimated"] = (
            "upstream" if self.source == other.source == "upstream" else "estimated"
        )
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            source,
        )


class _ReportedUsage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Response(msgspec.Struct):
    usage: _ReportedUsage | None = None


def usage_of(text: bytes) -> Usage | None:
    """Return the usage that a JSON response reports, else an estimate from its size; None if it is not a JSON object."""
    try:
        reported = msgspec.json.decode(text, type=_Response).usage
    except (msgspec.DecodeError, RecursionError):
        return None
    if reported is None:
        return Usage(0, -(-len(text) // 4), "estimated")
    return Usage(max(0, reported.prompt_tokens), max(0, reported.completion_tokens), "upstream")
