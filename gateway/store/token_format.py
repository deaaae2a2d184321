"""The text of a token: `sk-<account>-<short id>-<secret>`, made and judged with the pepper. Sans-I/O.

1. The secret is 130 random bits. What is kept of a token is `digest(text)`, never the text.
2. The last six characters are a checksum that only the pepper's owner can make: what is mistyped or made up
   is told from a token without asking the store. Checksum and digest cover the whole text.
"""

from __future__ import annotations

import hmac
import re
import secrets
from typing import Final

SHAPE: Final = re.compile(r"sk-([a-z0-9]{3,32})-([a-z0-9]{8})-[0-9A-Za-z]{28}")

_BASE62: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_BASE36: Final = _BASE62[:36]
_PLACES: Final = tuple(62**place for place in range(6))


class TokenCodec:
    """Makes and judges the texts of tokens."""

    def __init__(self, pepper: bytes) -> None:
        self._kept = hmac.new(pepper, b"kept ", "sha256")
        self._checked = hmac.new(pepper, b"checksum ", "sha256")

    def make(self, account: str) -> tuple[str, str]:
        """A new short id, unique in its account, and the text of its token."""
        short_id = _random(8, _BASE36)
        unchecked = f"sk-{account}-{short_id}-{_random(22, _BASE62)}"
        return short_id, unchecked + self._checksum(unchecked)

    def read(self, text: str) -> tuple[str, str] | None:
        """The account and the short id that a text names, or None where it never was a token."""
        shape = SHAPE.fullmatch(text)
        if shape is None or not hmac.compare_digest(text[-6:], self._checksum(text[:-6])):
            return None
        return shape[1], shape[2]

    def digest(self, text: str) -> bytes:
        """What is kept of a token."""
        return _mac(self._kept, text)

    def _checksum(self, unchecked: str) -> str:
        number = int.from_bytes(_mac(self._checked, unchecked)[:8])
        return "".join([_BASE62[number // place % 62] for place in _PLACES])


def _mac(begun: hmac.HMAC, text: str) -> bytes:
    """The rest of a message authenticated; to begin with the key each time costs several times as much."""
    mac = begun.copy()
    mac.update(text.encode())
    return mac.digest()


def _random(length: int, alphabet: str) -> str:
    return "".join(secrets.choice(alphabet) for _ in range(length))
