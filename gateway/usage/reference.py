"""References: what a caller may name its requests, so that it finds them also where it never got the answer with their id.

1. **Only a hash is kept**, for a caller may send anything as a reference.
2. **The account is its key**: what two accounts name alike has different hashes, so nothing is found or compared across accounts.
3. A reference may be that of many requests, such as those of one conversation.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

from multidict import MultiMapping, istr

from gateway.errors import Refused

HEADER: Final = istr("X-Client-Request-Id")
MAX_LENGTH: Final = 512
DIGEST_BYTES: Final = 16
ACCEPTED: Final = f"1 to {MAX_LENGTH} printable ASCII characters"


def is_reference(text: str) -> bool:
    """Return whether a text can be a reference."""
    return 0 < len(text) <= MAX_LENGTH and text.isascii() and text.isprintable()


def reference_in(headers: Mapping[str, str]) -> str:
    """Return the reference in the header `X-Client-Request-Id`; empty where there is none.

    Raises `Refused` for one that cannot be kept, so that a caller does not rely on it.
    """
    text = headers.get(HEADER)
    if text is None:
        return ""
    several = isinstance(headers, MultiMapping) and len(headers.getall(HEADER)) > 1
    if several or not is_reference(text):
        raise Refused(400, "invalid_request", f"Send one header {HEADER} with {ACCEPTED}, or leave it out.")
    return text


def hashed_reference(account: str, reference: str) -> str:
    """Return what a record has of a reference."""
    key = blake2b(account.encode(), digest_size=blake2b.MAX_KEY_SIZE).digest()
    return blake2b(reference.encode(), key=key, digest_size=DIGEST_BYTES).hexdigest()
