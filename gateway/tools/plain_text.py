"""Texts from anywhere, as they may be shown to a person."""

from __future__ import annotations

import re
from typing import Final

_CREDENTIAL: Final = re.compile(r"(?i)\bsk-[a-z0-9_-]{8,}")
"""What tokens and the keys of most providers begin with."""
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Characters that a terminal may obey, but line feeds and tabs; and those that change the direction of a text."""


def without_credentials(text: str) -> str:
    """Return a text without what looks like a token, or like the key of a provider."""
    return _CREDENTIAL.sub("sk-[hidden]", text)


def shown(text: str) -> str:
    """Return a text for a terminal: without what that would obey, and without credentials, which may have been pasted."""
    return _CONTROL.sub(lambda match: repr(match[0])[1:-1], without_credentials(text))
