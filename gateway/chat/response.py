"""A complete response in JSON, the answer to `stream: false`. Sans-I/O."""

from __future__ import annotations

from math import ceil
from typing import Any

import msgspec

from gateway.chat import chunks, error_objects
from gateway.chat.tokens import tokens_of
from gateway.chat.usage import ReportedUsage


class Response(msgspec.Struct, frozen=True):
    """What a response says. `error`: it is an error, although its status may be 200."""

    text: bytes
    error: bool = False

    @classmethod
    def read(cls, text: bytes) -> Response | None:
        """Return the response; None where it is neither an object with `choices` nor an error."""
        value: Any = error_objects.decode(text)
        if error_objects.is_error(value):
            return cls(text, error=True)
        return cls(text) if isinstance(value, dict) and isinstance(value.get("choices"), list) else None

    @property
    def usage(self) -> ReportedUsage:
        """What the response reports."""
        reported = ReportedUsage()
        if counts := chunks.read(b"", self.text).counts:
            reported.add(counts, final=True)
        return reported

    def estimate_output(self) -> int:
        """Return the estimated tokens of its text."""
        return ceil(tokens_of(self.text))
