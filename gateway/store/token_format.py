"""The text of a token: `sk-<account>-<short id>-<secret>`, created and checked with the pepper. Sans-I/O.

1. The secret is 130 random bits. The store holds `digest(text)`, never the text.
2. The last six characters are a checksum that needs the pepper, so a mistyped or invented token is recognised without a
   call of the store. Checksum and digest cover the whole text.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from typing import Final

SHAPE: Final = re.compile(r"sk-([a-z0-9]{3,32})-([a-z0-9]{8})-[0-9A-Za-z]{28}")

_BASE62: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_BASE36: Final = _BASE62[:36]
_DIGIT_VALUES: Final = tuple(62**digit for digit in range(6))


class TokenCodec:
    """Creates and checks the texts of tokens."""

    def __init__(self, pepper: bytes) -> None:
        self._digest_key = hmac.new(pepper, b"kept ", "sha256")
        self._checksum_key = hmac.new(pepper, b"checksum ", "sha256")

    def make(self, account: str, short_id: str = "") -> tuple[str, str]:
        """Return a short id, a random one unless it is given, and the text of a new token of it."""
        short_id = short_id or _random(8, _BASE36)
        body = f"sk-{account}-{short_id}-{_random(22, _BASE62)}"
        return short_id, body + self._checksum(body)

    def read(self, text: str) -> tuple[str, str] | None:
        """Return the account and the short id in a text, or None if its format or checksum is wrong."""
        shape = SHAPE.fullmatch(text)
        if shape is None or not hmac.compare_digest(text[-6:], self._checksum(text[:-6])):
            return None
        return shape[1], shape[2]

    def digest(self, text: str) -> bytes:
        """Return the digest of a text, which the store holds."""
        return _mac(self._digest_key, text)

    def _checksum(self, body: str) -> str:
        number = int.from_bytes(_mac(self._checksum_key, body)[:8])
        return "".join([_BASE62[number // value % 62] for value in _DIGIT_VALUES])


def short_id_of(key: str) -> str:
    """Return the short id of the token that is made for a key: always the same."""
    number = int.from_bytes(hashlib.sha256(key.encode()).digest()[:16])
    return "".join(_BASE36[number // 36**digit % 36] for digit in range(8))


def _mac(begun: hmac.HMAC, text: str) -> bytes:
    """Return the HMAC of `text`. Copying `begun` is several times faster than starting with the key each time."""
    mac = begun.copy()
    mac.update(text.encode())
    return mac.digest()


def _random(length: int, alphabet: str) -> str:
    return "".join(secrets.choice(alphabet) for _ in range(length))
