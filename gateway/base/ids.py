"""Request ids: UUIDs of version 7, which tell when a request arrived and sort by it."""

from __future__ import annotations

import time
from functools import lru_cache
from typing import Final

from uuid_utils import uuid7

LAST_MS: Final = 253_402_300_799_999
"""The end of the year 9999: no later time is written."""


def new_id() -> str:
    """Return a new id, of now."""
    return str(uuid7())


def arrival_ms(id: str) -> int:  # noqa: A002 - the field's name
    """Return when a request arrived, from its id: milliseconds since 1970. Raises `ValueError` for any other text."""
    if len(id) != 36 or id[14] != "7":
        raise ValueError("not a request id")
    return int(id[:8] + id[9:13], 16)


def check_time(id: str) -> None:  # noqa: A002
    """Raise `ValueError` for the id of a time that cannot be written, and for what is no id."""
    if not 0 <= arrival_ms(id) <= LAST_MS:
        raise ValueError("not a time")


def first_id(ms: int) -> str:
    """Return the lower bound of the ids of all requests that arrived at `ms` or later."""
    digits = f"{max(ms, 0):012x}"
    return f"{digits[:8]}-{digits[8:]}-"


def month(id: str) -> str:  # noqa: A002
    """Return the month (`2026-11`, UTC) in whose file a request is stored. Raises `ValueError`."""
    return utc(arrival_ms(id))[:7]


def utc(ms: int) -> str:
    """Return ISO 8601 with milliseconds, as in `2026-11-21T06:21:30.123Z`."""
    return f"{_second(ms // 1000)}.{ms % 1000:03d}Z"


@lru_cache(maxsize=64)
def _second(at: int) -> str:
    """Format a second. It is cached, because many requests share one and `strftime` is slow."""
    if not 0 <= 1000 * at <= LAST_MS:
        raise ValueError("not a time")
    year, month, day, hour, minute, second, *_ = time.gmtime(at)
    return f"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}"
