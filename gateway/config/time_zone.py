"""The time zone in which days, weeks and months begin."""

from __future__ import annotations

from datetime import UTC, tzinfo
from zoneinfo import ZoneInfo


def time_zone(name: str) -> tzinfo:
    """Return the time zone of this name. `UTC` is always there. Raises `ValueError` for one that this machine does not have."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueError(
            "this machine has no such time zone; write UTC, or a name such as Europe/Berlin, and where that is not found either, "
            "install the package tzdata of the operating system, or of PyPI"
        ) from None
