"""Request ids: UUIDs of version 7, which tell when a request arrived and sort by it."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache

from uuid_utils import uuid7


def new_id() -> str:
    """Return a new id, of now."""
    return str(uuid7())


def arrival_ms(id: str) -> int:  # noqa: A002 - the field's name
    """Return when a request arrived, from its id: milliseconds since 1970. Raises `ValueError` for any other text."""
    if len(id) != 36 or id[14] != "7":
        raise ValueError("not a request id")
    return int(id[:8] + id[9:13], 16)


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
    try:
        return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%S}"
    except (OverflowError, OSError) as error:
        raise ValueError("not a time") from error
