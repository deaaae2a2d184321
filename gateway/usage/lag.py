"""How far the files of this gateway are behind the store's log, and whether its sink still runs: the times of two empty files.

1. **`reader.time` was changed when the sink last had all in its files that the stream had by then.** So a list knows without
   asking the store what it may lack, whatever the reason: the sink hangs or has ended, the store is away, the disk is full.
2. **`sink.lock` is changed at each turn of the sink**, also of one that fails. The parent process watches it.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Final

READ: Final = "reader.time"
LOCK: Final = "sink.lock"
LATE_MS: Final = 15_000
"""From how long ago on an answer has a note. A sink that runs is a second behind, and a few where it has much to read."""


def has_read(folder: Path, at_s: float) -> None:
    """Note that all is in the files that the stream had at a time. Blocks; raises `OSError`."""
    path = folder / READ
    path.touch(mode=0o600)
    os.utime(path, (at_s, at_s))


def ended(folder: Path) -> None:
    """Note that nothing more comes: no gateway is left that could write to the stream. Blocks; raises `OSError`."""
    (folder / READ).unlink(missing_ok=True)


def late_since(folder: Path) -> int | None:
    """Return since when (ms) requests may be missing in the files; None where they are up to date. Blocks."""
    at = _changed(folder / READ)
    return None if at is None or time.time() * 1000 - at < LATE_MS else round(at)


def turn(folder: Path) -> None:
    """Note that the sink takes a turn."""
    with contextlib.suppress(OSError):
        os.utime(folder / LOCK)


def last_turn(folder: Path) -> float | None:
    """Return when the sink last took a turn; None where it never did."""
    return _changed(folder / LOCK)


def _changed(path: Path) -> float | None:
    try:
        return path.stat().st_mtime_ns / 1e6
    except OSError:
        return None
