"""The move of the usage log: from the files of this gateway to the database that several gateways share.

1. **Nothing is removed**: the files stay as they are.
2. **It may be ended and begun again at any moment**: a file in the folder holds how far it is, and a record that is written twice
   is one request. Ends are copied in the order in which they became known, so that a later one than the last is not missed.
3. **It has succeeded where the database has as many requests and ends of each month as the files.**
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from gateway.base import durable
from gateway.base.errors import GatewayError
from gateway.usage import queries
from gateway.usage.database import UsageFiles, record_of
from gateway.usage.home import Home
from gateway.usage.postgres import Postgres

FILE: Final = "move.json"
BATCH: Final = 5000


def move(files: UsageFiles, database: Postgres, progress: Callable[[int], None]) -> dict[str, tuple[int, int]]:
    """Copy all months; return how many requests each has, and how many of them have ended. Blocks.

    `progress` is called with the requests that were copied so far. Raises `GatewayError` and `OSError`: then do it again.
    """
    done, folder = 0, files.folder
    places = _places(folder)
    for month in files.months():
        while page := _ends(files, month, places.get(month, 0)):
            database.write([record_of(row) for _, *row in page])
            places[month] = page[-1][0]
            durable.write(folder / FILE, msgspec.json.encode(places))
            done += len(page)
            progress(done)
        with files.opened(month) as part:
            rows = queries.select_rows(part, "WHERE outcome IS NULL", ()) if part else iter(())
            database.write(list(map(record_of, rows)))
    found = {month: _counts(files, month) for month in files.months()}
    for month, counts in found.items():
        if any(there < here for here, there in zip(counts, _counts(database, month), strict=True)):
            (folder / FILE).unlink(missing_ok=True)
            raise GatewayError(
                f"the database has fewer requests of {month} than the files: run this again, it begins anew"
            )
    return found


def _places(folder: Path) -> dict[str, int]:
    """Return up to which place each month is copied; where that is not known, all is copied again."""
    try:
        return msgspec.json.decode(durable.read(folder / FILE), type=dict[str, int])
    except (OSError, msgspec.MsgspecError):
        return {}


def _ends(files: UsageFiles, month: str, place: int) -> list[tuple[int, ...]]:
    with files.opened(month) as part:
        terms = "JOIN ends USING (number) WHERE place > ? ORDER BY place LIMIT ?"
        return list(queries.select_rows(part, terms, (place, BATCH), "place, ")) if part else []  # type: ignore[arg-type]


def _counts(home: Home, month: str) -> tuple[int, int]:
    with home.opened(month) as part:
        if part is None:
            return 0, 0
        requests, ended = part.execute(f"SELECT count(*), count(outcome) FROM {part.requests}").fetchone()  # noqa: S608
        return int(requests), int(ended)
