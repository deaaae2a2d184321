"""JSON as clients read it: also with infinite numbers, half characters and invalid UTF-8. Sans-I/O."""

from __future__ import annotations

import json
from typing import Any

import msgspec


def decode(data: bytes) -> Any:
    """Return a JSON value, also one with infinite numbers or half characters. Raises `ValueError`."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return json.loads(data.decode("utf-8", "replace"))


def joined_halves(text: str) -> str:
    """Return a text without half characters: two halves that meet are one character, any other is replaced."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
