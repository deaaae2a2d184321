"""Holes that a full disk leaves in an append-only file, removed without losing a command.

Valkey and Redis 7 or later open the file that follows a rewrite without O_APPEND. Where the disk is full and a write is cut short,
they cut the file back to its last complete command, and go on at the offset that they had reached: between two commands there
are zero bytes. The next start ends there with "Bad file format", although every command is there.
"""

from __future__ import annotations

import mmap
import re
from pathlib import Path
from typing import Final

import structlog
from uuid_utils import uuid7

from gateway import durable

_COUNT: Final = re.compile(rb"\*(\d{1,7})\r\n")
_LENGTH: Final = re.compile(rb"\$(\d{1,10})\r\n")
_HOLE: Final = re.compile(rb"\0+(?=[*#]|\Z)")
_COMMENT: Final = re.compile(rb"#[^\n]*\n")

log = structlog.get_logger("gateway.store.client.append_only_holes")


def remove(folder: Path) -> bool:
    """Remove the holes in the files of a server that does not run. Return whether there were any.

    A file as it was is kept beside it, as `NAME.damaged-...`. Raises `OSError`.
    """
    removed = False
    for path in sorted(folder.glob("*.incr.aof")):
        if not path.stat().st_size:
            continue
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            parts = _between_holes(data)
            if len(parts) == 1:
                continue
            repaired = b"".join(data[start:end] for start, end in parts)
            lost = len(data) - len(repaired)
        kept = path.with_name(f"{path.name}.damaged-{uuid7()}")
        kept.hardlink_to(path)
        durable.write(path, repaired, mode=0o600)
        log.warning("holes_removed", file=str(path), zero_bytes=lost, kept=kept.name)
        removed = True
    return removed


def _between_holes(data: mmap.mmap) -> list[tuple[int, int]]:
    """Return the parts between holes, each from its first to after its last byte. What cannot be parsed is part of the last."""
    parts = []
    start = at = 0
    while at < len(data):
        if hole := _HOLE.match(data, at):
            parts.append((start, at))
            start = at = hole.end()
        elif (end := _end_of_command(data, at)) is None:
            break
        else:
            at = end
    return [*parts, (start, len(data))]


def _end_of_command(data: mmap.mmap, at: int) -> int | None:
    """Return where the command or comment at `at` ends; None where there is none, or not all of it."""
    if comment := _COMMENT.match(data, at):
        return comment.end()
    count = _COUNT.match(data, at)
    if count is None:
        return None
    at = count.end()
    for _ in range(int(count[1])):
        length = _LENGTH.match(data, at)
        if length is None:
            return None
        at = length.end() + int(length[1]) + 2
    return at if at <= len(data) else None
