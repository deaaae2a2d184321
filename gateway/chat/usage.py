"""How many tokens an answer used. Sans-I/O."""

from __future__ import annotations

from typing import Literal

import msgspec


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one attempt, or of a whole exchange. `source`: reported by the upstream, or estimated here from bytes."""

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


class _Counted(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Answer(msgspec.Struct):
    usage: _Counted | None = None


def usage_of(text: bytes) -> Usage | None:
    """What a JSON answer says it used, estimated from its size where it says nothing; None if it is no JSON object."""
    try:
        counted = msgspec.json.decode(text, type=_Answer).usage
    except (msgspec.DecodeError, RecursionError):
        return None
    if counted is None:
        return Usage(0, -(-len(text) // 4), "estimated")
    return Usage(max(0, counted.prompt_tokens), max(0, counted.completion_tokens), "upstream")
