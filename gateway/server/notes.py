"""What a list may lack, in words for callers: the one place where an answer says that it is not whole."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gateway.usage import gaps
from gateway.usage.damage import FilesUnusable, UnusableFile

_MONTH: Final = re.compile(r"usage-(\d{4}-\d{2})")


def notes_of(
    folder: Path, unusable: Sequence[UnusableFile], since_ms: int | None = None, until_ms: int | None = None
) -> list[str]:
    """Return a sentence for each month of which a file cannot be read, without naming the file, and for each gap in this time,
    and each other gateway that may have more."""
    found = (_MONTH.search(str(error)) for error in unusable)
    months = sorted({match[1] if match else "" for match in found})
    unread = [
        f"Requests of {month or 'some months'} cannot be read at the moment and may be missing." for month in months
    ]
    missing = gaps.notes(folder, since_ms, until_ms, with_hosts=False)
    return unread + [f"{note[0].upper()}{note[1:]}." for note in missing]


@contextmanager
def readable() -> Iterator[None]:
    """Turn the error of a log of which nothing can be read into `FilesUnusable`."""
    try:
        yield
    except UnusableFile as error:
        raise FilesUnusable(str(error)) from None
