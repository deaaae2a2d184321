"""Request ids: UUIDs of version 7, which tell when a request arrived and sort by it; and the clock that they are made by.

The wall clock of the machine may be wrong, and `uuid7` never goes back with it. The store refuses ids of another time than its
own, so ids follow its clock where that differs by more than a minute.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from uuid_utils import uuid7

from gateway.base.log import log

EXTERNAL: Final = "ext:"
"""What stands before an external id where an account's id is expected."""

REQUEST_ID: Final = "[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}"
"""The pattern of an id."""

LAST_MS: Final = 253_402_300_799_999
"""The end of the year 9999: no later time is written."""

NEAR_MS: Final = 60_000
"""Ids differ from the store's clock by no more."""


def new_id() -> str:
    """Return a new id, of now."""
    return str(_new())


def now_ms() -> int:
    """Return the time in milliseconds since 1970: by the machine's clock, or by the store's where that differs."""
    return int(time.time() * 1000) + _ahead_ms


class Clock:
    """The time: of the machine, or of the store where the two differ. Tests replace it."""

    def time(self) -> float:
        """Return UTC as seconds since 1970."""
        return now_ms() / 1000

    def monotonic(self) -> float:
        """Return seconds that never jump, for durations."""
        return time.monotonic()


def ahead_ms() -> int:
    """Return by how much the store's clock is ahead of the machine's; 0 where they differ by less than `NEAR_MS`."""
    return _ahead_ms


def follow(store_ms: int) -> None:
    """Make ids by a clock that shows `store_ms` now, unless they are near it and the machine's clock is no nearer."""
    global _new, _ahead_ms
    ahead_ms = store_ms - int(time.time() * 1000)
    ahead_ms = ahead_ms if abs(ahead_ms) > NEAR_MS else 0
    if abs(ahead_ms - _ahead_ms) > NEAR_MS or abs(arrival_ms(new_id()) - store_ms) > NEAR_MS:
        _new, _ahead_ms = _new_by_store, ahead_ms
        log.error("clocks_differ", store_ahead_s=ahead_ms // 1000)


def _new_by_store() -> str:
    return first_id(now_ms()) + str(uuid7())[14:]


_new: Callable[[], object] = uuid7
_ahead_ms = 0


def arrival_ms(id: str) -> int:  # noqa: A002 - the field's name
    """Return when a request arrived, from its id: milliseconds since 1970. Raises `ValueError` for any other text."""
    if len(id) != 36 or id[14] != "7":
        raise ValueError("not a request id")
    return int(id[:8] + id[9:13], 16)


def check_time(id: str) -> None:  # noqa: A002
    """Raise `ValueError` for the id of a time that cannot be written, and for what is no id."""
    if not 0 <= arrival_ms(id) <= LAST_MS:
        raise ValueError("not a time")


def is_request_id(text: object) -> bool:
    """Return whether this is the id of a request, as the gateway writes it."""
    if not isinstance(text, str) or not re.fullmatch(REQUEST_ID, text):
        return False
    return arrival_ms(text) <= LAST_MS


def first_id(ms: int) -> str:
    """Return the lower bound of the ids of all requests that arrived at `ms` or later."""
    digits = f"{max(ms, 0):012x}"
    return f"{digits[:8]}-{digits[8:]}-"


def month(id: str) -> str:  # noqa: A002
    """Return the month (`2026-11`, UTC) in whose file a request is stored. Raises `ValueError`."""
    return utc(arrival_ms(id))[:7]


def ms_of(time: Sequence[bytes | int]) -> int:
    """Return the reply of the store to TIME in milliseconds since 1970."""
    seconds, micros = map(int, time)
    return seconds * 1000 + micros // 1000


def utc(ms: int) -> str:
    """Return ISO 8601 with milliseconds, as in `2026-11-21T06:21:30.123Z`."""
    minute, ms = divmod(ms, 60_000)
    return _minute(minute) + _SECONDS[ms // 1000] + _MILLISECONDS[ms % 1000]


@lru_cache(maxsize=64)
def _minute(at: int) -> str:
    """Format a minute. It is cached, because many requests share one and `strftime` is slow."""
    if not 0 <= 60_000 * at <= LAST_MS:
        raise ValueError("not a time")
    year, month, day, hour, minute, *_ = time.gmtime(60 * at)
    return f"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:"


_SECONDS: Final = tuple(f"{second:02}." for second in range(60))
_MILLISECONDS: Final = tuple(f"{ms:03}Z" for ms in range(1000))


def drawn(key: str, name: str) -> float:
    """Return the same number from 0 to 1 for the same key and name, uniformly distributed (rendezvous hashing).

    Whichever of several names has the largest number has it whatever other names there are, in each process and on each machine.
    """
    return int.from_bytes(blake2b(f"{key} {name}".encode(), digest_size=7).digest()) / (1 << 56)
