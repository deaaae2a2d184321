"""Months whose file was damaged and set aside: each is a gap, until another gateway of the store has filled it.

A file whose requests are all here again is renamed once more, so that nothing is said to be missing: it may be deleted.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from gateway.log import Logger
from gateway.request_id import arrival_ms
from gateway.usage.damage import MARK, files_aside, rename
from gateway.usage.gaps import LONGEST_MS, Gap

REPLACED: Final = ".replaced-"
"""What stands in place of `MARK` in the name of a file whose requests are all here again."""

log = Logger("gateway.usage.aside")


def gap_of(month: str, lost_ms: int) -> Gap:
    """Return when the entries were written that were in the file of a month, which was lost."""
    first = datetime.strptime(month, "%Y-%m").replace(tzinfo=UTC)
    after = (first + timedelta(days=31)).replace(day=1)
    first_ms, after_ms = (round(moment.timestamp() * 1000) for moment in (first, after))
    return Gap(first_ms, max(first_ms, min(lost_ms, after_ms + LONGEST_MS)))


def gaps_of(folder: Path) -> list[Gap]:
    """Return the gaps that the files of a folder are, or were, which were set aside. Blocks."""
    return list(map(_gap_of, files_aside(folder)))


def mark_replaced(folder: Path, gaps: Iterable[Gap]) -> None:
    """Rename the files in whose time there is no gap any more. Blocks; raises `OSError`."""
    left = list(gaps)
    for aside in files_aside(folder):
        own = _gap_of(aside)
        if not any(gap.first_ms <= own.last_ms and own.first_ms <= gap.last_ms for gap in left):
            replaced = aside.with_name(aside.name.replace(MARK, REPLACED))
            rename(aside, replaced)
            log.warning(
                "usage_file_replaced", file=str(replaced), note="its requests are here again: it may be deleted"
            )


def _gap_of(aside: Path) -> Gap:
    name, _, renamed = aside.name.partition(MARK)
    return gap_of(name.removeprefix("usage-").removesuffix(".sqlite"), arrival_ms(renamed))
