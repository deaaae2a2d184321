"""A complete response in JSON, the answer to `stream: false`. Sans-I/O."""

from __future__ import annotations

import codecs
import json
from math import ceil, isfinite
from typing import Any

import msgspec

from gateway.chat import chunks, error_objects
from gateway.chat.tokens import tokens_of
from gateway.chat.usage import ReportedUsage


class Response(msgspec.Struct, frozen=True):
    """What a response says. `error`: it is an error, although its status may be 200. `facts`: the same in strict JSON."""

    text: bytes
    facts: bytes
    error: bool = False

    @classmethod
    def read(cls, text: bytes) -> Response | None:
        """Return the response; None where it is neither an object with `choices` nor an error.

        Raises `ValueError` for what is not JSON even to the lenient decoders of clients.
        """
        text = text.removeprefix(codecs.BOM_UTF8)
        facts = _strict(text)
        value: Any = error_objects.decode(facts)
        if error_objects.is_error(value):
            return cls(text, facts, error=True)
        return cls(text, facts) if isinstance(value, dict) and isinstance(value.get("choices"), list) else None

    @property
    def usage(self) -> ReportedUsage:
        """What the response reports."""
        reported = ReportedUsage()
        if counts := chunks.read(b"", self.facts).counts:
            reported.add(counts, final=True)
        return reported

    @property
    def completion_id(self) -> str:
        """The id that the upstream gave the completion."""
        return chunks.id_text(chunks.read(b"", self.facts).id)

    def estimate_output(self) -> int:
        """Return the estimated tokens of its text."""
        return ceil(tokens_of(self.text))


def _strict(text: bytes) -> bytes:
    """Return JSON without infinite numbers, lone surrogates and invalid UTF-8. Raises `ValueError` for what is not JSON."""
    try:
        msgspec.json.decode(text)
        return text
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        value = json.loads(text.decode("utf-8", "replace"), parse_constant=lambda _: None, parse_float=_finite)
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _finite(text: str) -> float | None:
    value = float(text)
    return value if isfinite(value) else None
