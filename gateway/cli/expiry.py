"""Expiry of tokens: reads `--expires`, a time from now or a date, and prints such times."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from datetime import UTC, datetime, tzinfo
from typing import Annotated, Final, NamedTuple

import typer

from gateway.admin.actions.times import UNITS_S

NEVER: Final = "none"
LATEST_S: Final = round(datetime(9000, 1, 1, tzinfo=UTC).timestamp())
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2})?)?")


class Expiry(NamedTuple):
    """One `--expires`: seconds from now, or a date in the configured time zone; neither for never."""

    text: str
    after_s: int = 0
    date: datetime | None = None

    def at(self, zone: tzinfo) -> int | None:
        """Return the time in seconds since 1970; None for never. Raises `typer.BadParameter` for one that is past."""
        if self.text == NEVER:
            return None
        now = time.time()
        moment = int(now) + self.after_s if self.date is None else round(self.date.replace(tzinfo=zone).timestamp())
        if moment <= now:
            raise typer.BadParameter(f"`{self.text}` is past: it is {shown(round(now), zone)} now")
        if moment > LATEST_S:
            raise typer.BadParameter(f"`{self.text}` is too late: give a time before the year 9000")
        return moment


def duration(text: str) -> int:
    """Convert a time such as `30d` to seconds. Raises `typer.BadParameter`."""
    parts = re.fullmatch(r"([1-9][0-9]{0,8})([smhd])", text)
    if parts is None:
        raise typer.BadParameter("write a time as in 30d, 12h, 90m or 45s")
    return int(parts[1]) * UNITS_S[parts[2]]


def expiry(text: str) -> Expiry:
    """Convert the value of `--expires`. Raises `typer.BadParameter`."""
    if text == NEVER:
        return Expiry(text)
    if _DATE.fullmatch(text):
        with suppress(ValueError):
            return Expiry(text, date=datetime.fromisoformat(text))
    with suppress(typer.BadParameter):
        return Expiry(text, duration(text))
    raise typer.BadParameter(
        f"`{text}` is not a time; write 30d, 12h or 90m, a date as in 2027-01-31 or 2027-01-31T18:00, or {NEVER}"
    )


def shown(seconds: int | None, zone: tzinfo) -> str:
    """Return a time in words: to the minute, with the name of its zone unless it is UTC."""
    if seconds is None:
        return "never"
    moment = datetime.fromtimestamp(seconds, zone)
    return moment.strftime("%Y-%m-%d %H:%M" if zone is UTC else "%Y-%m-%d %H:%M %Z")


ExpiresOption = Annotated[
    Expiry | None,
    typer.Option(
        parser=expiry,
        metavar="TIME",
        help="When the token expires: 30d, 12h, 90m, or 2027-01-31, 2027-01-31T18:00 in the configuration's time zone. "
        "A date alone is its first moment.",
    ),
]
