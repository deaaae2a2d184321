"""Credentials as JSON may spell them: any character as `\\uXXXX`, a slash, a quote and a backslash also after a backslash.

Honest upstreams escape no printable ASCII but quotes and backslashes, so that nothing is searched in what they send.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

LONGEST: Final = len(r"\u0041")
"""What a character takes at most."""
_ESCAPED: Final = re.compile(rb"\\(?:u00[2-7]|/)")
_WITH_BACKSLASH: Final = '"\\/'


def without(data: bytes, credentials: Iterable[str], replacement: bytes) -> bytes:
    """Return `data` with the credentials replaced that are spelled with escapes."""
    for credential in credentials:
        if _ESCAPED.search(data) or '"' in credential or "\\" in credential:
            data = _pattern(credential).sub(replacement, data)
    return data


@lru_cache(maxsize=256)
def _pattern(credential: str) -> re.Pattern[bytes]:
    return re.compile(b"".join(map(_spellings, credential)))


def _spellings(letter: str) -> bytes:
    units = letter.encode("utf-16-be").hex()
    escaped = "".join(rf"\\u(?i:{units[start : start + 4]})" for start in range(0, len(units), 4))
    plain = re.escape(letter)
    more = rf"|\\{plain}" if letter in _WITH_BACKSLASH else ""
    return f"(?:{plain}|{escaped}{more})".encode()
