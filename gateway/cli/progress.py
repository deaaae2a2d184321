"""Progress of a long command: one line on standard error, if that is a terminal, which is removed at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

PAUSE_S: Final = 0.1
"""Between two changes of the line."""
_ERASE: Final = "\r\x1b[K"


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Yield what shows a text in the line, in place of the one before, with the time since the start."""
    shown_on = sys.stderr
    began = time.monotonic()
    last = -PAUSE_S

    def show(text: str) -> None:
        nonlocal last
        passed = time.monotonic() - began
        if passed - last >= PAUSE_S:
            last = passed
            shown_on.write(f"{_ERASE}{text}, {passed:.0f} s")
            shown_on.flush()

    if shown_on is None or not shown_on.isatty():
        yield lambda text: None
        return
    try:
        yield show
    finally:
        shown_on.write(_ERASE)
        shown_on.flush()
