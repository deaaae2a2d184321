"""Times as people write and read them: an age, a minute, a day, a month, or a time of RFC 3339, in UTC where it has no zone."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Annotated, Final

import msgspec

from gateway.base.errors import Refused
from gateway.base.ids import LAST_MS, utc

UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
FORMS: Final = (
    "write 30m, 12h, 7d, a day as in 2026-11-21, a month as in 2026-11, a minute as in 2026-11-21T10:30, or "
    "with a zone, as in 2026-11-21T10:30:00+01:00"
)
_AGE: Final = re.compile(r"([0-9]{1,9})([smhd])")
_MONTH: Final = re.compile(r"[0-9]{4}-[0-9]{2}")
_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_MOMENT: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{3})?)?(Z|[+-][0-9]{2}:[0-9]{2})?"
)

Since = Annotated[
    str,
    msgspec.Meta(
        max_length=40,
        description="Only what arrived since then: an age such as `30m`, `12h`, `7d`, a month, a day, or a time such as "
        "`2026-11-21T10:30:00Z`; UTC where no zone is given.",
    ),
]
Until = Annotated[
    str,
    msgspec.Meta(
        max_length=40,
        description="Only what arrived before then, in the forms of `since`; a day or a month is included.",
    ),
]


def period(text: str, zone: tzinfo = UTC) -> tuple[int, int]:
    """Return when an age, a minute, a day or a month begins and ends, in ms since 1970; an age and a minute are one moment.

    `zone`: that of a text without one. Raises `ValueError` for any other text.
    """
    if match := _AGE.fullmatch(text):
        moment = max(0, round((time.time() - int(match[1]) * UNITS_S[match[2]]) * 1000))
        return moment, moment
    with suppress(ValueError, OverflowError):
        if _MONTH.fullmatch(text):
            first = datetime.fromisoformat(f"{text}-01")
            return _ms(first, zone), _ms((first + timedelta(days=31)).replace(day=1), zone)
        if _DAY.fullmatch(text):
            first = datetime.fromisoformat(text)
            return _ms(first, zone), _ms(first + timedelta(days=1), zone)
        if _MOMENT.fullmatch(text):
            moment = _ms(datetime.fromisoformat(text), zone)
            return moment, moment
    raise ValueError(f"`{text}` is not a time; {FORMS}")


def between(since: str | None, until: str | None) -> tuple[int | None, int | None]:
    """Return two times in ms since 1970, the second one exclusive; None where none is given. Raises `Refused` (400)."""
    found: list[int | None] = []
    for number, (name, text) in enumerate((("since", since), ("until", until))):
        try:
            found.append(None if text is None else period(text)[number])
        except ValueError:
            raise Refused(400, "invalid_request", f"`{name}` is not a time; {FORMS}.", param=name) from None
    first, last = found
    if first is not None and last is not None and first >= last:
        raise Refused(400, "invalid_request", "`since` must be before `until`.", param="since")
    return first, last


def moment(ms: int | None) -> str | None:
    """Return a time as `since` and `until` have it, to the millisecond."""
    return None if ms is None else utc(ms)


def local(at: str | float | datetime, zone: tzinfo) -> str:
    """Return a time as people read it, RFC 3339, as in `2026-11-21 10:30:00+01:00`. A number is seconds since 1970."""
    known = datetime.fromtimestamp(at, UTC) if isinstance(at, int | float) else at
    moment = datetime.fromisoformat(known) if isinstance(known, str) else known
    return moment.astimezone(zone).isoformat(" ", "seconds").replace("+00:00", "Z")


def _ms(moment: datetime, zone: tzinfo) -> int:
    aware = moment if moment.tzinfo else moment.replace(tzinfo=zone)
    return min(max(0, round(aware.timestamp() * 1000)), LAST_MS)
