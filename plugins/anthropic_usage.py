"""The usage of one of Anthropic's messages, in the shape of OpenAI's.

- Tokens that were read from the cache or written to it count as part of the prompt, as OpenAI counts them.
- Each report has totals, and leaves out what has not changed. The output in `message_start` is what there was by then: it is no
  total of what follows.
- A number that is no count (negative, a text, beyond 2^40) makes its side of the usage unknown, and the gateway takes no side of it
  as certain. A fraction counts as the next whole number.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any, Final

import msgspec

READ: Final = "cache_read_input_tokens"
WRITTEN: Final = "cache_creation_input_tokens"
COUNTS: Final = ("input_tokens", READ, WRITTEN, "output_tokens")
MAX_COUNT: Final = 1 << 40
UNKNOWN: Final = -1
MAX_REPORT: Final = 4096
"""Bytes of a report that is kept as it came. Of a larger one the counts alone are."""


class MessageUsage:
    """The usage that is known of a message by now."""

    def __init__(self) -> None:
        self._told: dict[str, Any] = {}

    def begun(self, told: object) -> dict[str, Any]:
        """Return the usage of a message that has begun, as arguments of a delta."""
        return self.told(told, begun=True)

    def told(self, told: object, *, begun: bool = False) -> dict[str, Any]:
        """Take a further report, and return all that is known, as arguments of a delta."""
        if not isinstance(told, dict):
            return {}
        self._told |= {name: value for name, value in told.items() if value is not None}
        reported = _encoded(self._told)
        if not 0 < len(reported) <= MAX_REPORT:
            self._told = {name: _number(self._told[name]) for name in COUNTS if name in self._told}
            reported = _encoded(self._told)
        if begun:
            self._told.pop("output_tokens", None)
        usage = in_common_shape(self._told)
        return {"usage": usage, "reported": reported} if usage else {}


def in_common_shape(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return a usage as OpenAI writes it, with 0 for a side that is not told, and -1 for one whose numbers are no counts."""
    parts = {name: _count(told.get(name, 0)) for name in COUNTS}
    given, read, written, completion = parts.values()
    prompt = given + read + written if "input_tokens" in told else 0
    if UNKNOWN in (given, read, written):
        prompt = UNKNOWN
    if not (prompt or completion):
        return {}
    usage: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    if prompt > 0:
        usage["prompt_tokens_details"] = {"cached_tokens": read, "cache_write_tokens": written}
    details = told.get("output_tokens_details")
    if isinstance(details, dict) and (thinking := _count(details.get("thinking_tokens"))) > 0:
        usage["completion_tokens_details"] = {"reasoning_tokens": thinking}
    return usage


def _count(value: object) -> int:
    if type(value) is float and 0 <= value <= MAX_COUNT:
        return ceil(value)
    return value if type(value) is int and 0 <= value <= MAX_COUNT else UNKNOWN


def _number(value: object) -> object:
    return value if isinstance(value, int | float) else None


def _encoded(told: Mapping[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(told)
    except (UnicodeEncodeError, RecursionError):  # half of a character
        return b""
