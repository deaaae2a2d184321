"""What a list may lack, in words for callers: the one place where an answer says that it is not whole."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from gateway.errors import StoreAway
from gateway.usage.damage import UnusableFile

_MONTH: Final = re.compile(r"usage-(\d{4}-\d{2})")


def notes_of(unusable: Sequence[UnusableFile]) -> list[str]:
    """Return a sentence for each month of which a file cannot be read, without naming the file."""
    found = (_MONTH.search(str(error)) for error in unusable)
    months = sorted({match[1] if match else "" for match in found})
    return [
        f"Requests of {month or 'some months'} cannot be read at the moment and may be missing." for month in months
    ]


@contextmanager
def readable() -> Iterator[None]:
    """Turn the error of a log of which nothing can be read into `StoreAway`."""
    try:
        yield
    except UnusableFile as error:
        raise StoreAway(str(error)) from None
