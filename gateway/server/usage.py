"""What a caller learns of its own use: sums by day, model and token, in micros of its charges."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.errors import Refused
from gateway.server.lookups import Lookups
from gateway.server.notes import notes_of, readable
from gateway.server.query import DAY, GROUPS, parameters
from gateway.services import Services
from gateway.usage.damage import UnusableFile
from gateway.usage.gaps import span_ms
from gateway.usage.pages import OWN_SUMS, own_sums

PARAMETERS: Final = {"by": GROUPS, "from": DAY, "to": DAY}
DEFAULT_DAYS: Final = 30
MOST_DAYS: Final = 366
MOST_LINES: Final = 10_000


async def usage_of(account: str, query: str, services: Services, lookups: Lookups) -> bytes:
    """Return the sums of an account, as JSON. Raises `Refused`."""
    given = parameters(query, PARAMETERS)
    today = datetime.fromtimestamp(services.clock.time(), UTC).date()
    last: date = given.get("to", today)
    first: date = given.get("from") or last - min(timedelta(days=DEFAULT_DAYS - 1), last - date.min)
    if not 0 <= (last - first).days < MOST_DAYS:
        text = f"The parameter from must be a day up to `to`, {last}, and less than {MOST_DAYS} days before it."
        raise Refused(400, "invalid_request", text, param="from")
    by = given.get("by", ["day"])
    return await lookups.in_thread(account, partial(_sums, services.store.usage.folder, account, by, first, last))


def _sums(folder: Path, account: str, by: Sequence[str], first: date, last: date) -> bytes:
    unusable: list[UnusableFile] = []
    with readable():
        lines = own_sums(folder, account, by, f"{first}", f"{last}", unusable)
    if len(lines) > MOST_LINES:
        text = f"That is more than {MOST_LINES} lines. Ask for fewer days, or group by less."
        raise Refused(400, "invalid_request", text, param="by")
    return msgspec.json.encode(
        {
            "object": "list",
            "from": first,
            "to": last,
            "data": lines,
            "total": _total(lines),
            "notes": notes_of(folder, unusable, *span_ms(f"{first}", f"{last}")),
        }
    )


def _total(lines: Sequence[dict[str, Any]]) -> dict[str, int]:
    return {name: sum(line[name] for line in lines) for name in OWN_SUMS}
