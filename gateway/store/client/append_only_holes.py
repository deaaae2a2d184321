"""Holes that a full disk leaves in an append-only file, removed with every command that is there.

Valkey and Redis 7 or later open the file that follows a rewrite without O_APPEND. Where the disk is full and a write is cut short,
they cut the file back to its last complete command, and go on at the offset that they had reached: between two commands there
are zero bytes. The next start ends there with "Bad file format", although every command is there.

They do not count these zero bytes. Where the disk is full once more, they cut the same file back by as many bytes too far, and
acknowledged commands are lost. So the store's keeper has a file with a hole rewritten at once (`gateway.runtime.store_keeper`).
Of a file that was cut all the same, what was lost is an end of the commands before a hole: the rest of the transaction that it
began is dropped, as the server does at the end of a file, and what follows is kept.
"""

from __future__ import annotations

import mmap
import re
from pathlib import Path
from typing import Final

from uuid_utils import uuid7

from gateway import durable
from gateway.log import Logger

_COUNT: Final = re.compile(rb"\*(\d{1,7})\r\n")
_LENGTH: Final = re.compile(rb"\$(\d{1,10})\r\n")
_BEGIN: Final = re.compile(rb"[*$]\d{0,10}\r?")
_HOLE: Final = re.compile(rb"\0+(?=[*#]|\Z)")
_CUT: Final = re.compile(rb"\0+(?=\*\d{1,7}\r\n\$\d)")
_MULTI: Final = re.compile(rb"\*1\r\n\$5\r\nMULTI\r\n", re.I)
_EXEC: Final = re.compile(rb"\*1\r\n\$4\r\nEXEC\r\n", re.I)
_COMMENT: Final = re.compile(rb"#[^\n]*\n")

log = Logger("gateway.store.client.append_only_holes")


def remove(folder: Path) -> bool:
    """Remove the holes in the files of a server that does not run. Return whether there were any.

    A file as it was is kept beside it, as `NAME.damaged-...`. Raises `OSError`.
    """
    removed = False
    for path in sorted(folder.glob("*.incr.aof")):
        if not path.stat().st_size:
            continue
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            parts, dropped = _between_holes(data)
            if len(parts) == 1:
                continue
            repaired = b"".join(data[start:end] for start, end in parts)
            zeros = len(data) - len(repaired) - dropped
        kept = path.with_name(f"{path.name}.damaged-{uuid7()}")
        kept.hardlink_to(path)
        durable.write(path, repaired, mode=0o600)
        log.warning("holes_removed", file=str(path), zero_bytes=zeros, kept=kept.name)
        if dropped:
            log.error("commands_lost", file=str(path), dropped_bytes=dropped, do="run `gateway verify`")
        removed = True
    return removed


def _between_holes(data: mmap.mmap) -> tuple[list[tuple[int, int]], int]:
    """Return the parts between holes, each from its first to after its last byte, and how many bytes before holes are dropped.

    What cannot be parsed is part of the last.
    """
    parts = []
    start = at = dropped = 0
    transaction: int | None = None
    while at < len(data):
        end = _end_of_command(data, at)
        if end is not None:
            if _MULTI.match(data, at):
                transaction = at
            elif _EXEC.match(data, at):
                transaction = None
            at = end
        elif hole := _HOLE.match(data, at) or _next_hole(data, at):
            whole_until = at if transaction is None else transaction
            parts.append((start, whole_until))
            dropped += hole.start() - whole_until
            start = at = hole.end()
            transaction = None
        else:
            break
    return [*parts, (start, len(data))], dropped


def _next_hole(data: mmap.mmap, at: int) -> re.Match[bytes] | None:
    """Return the hole at which the command that begins at `at` is cut; None where there is none."""
    hole = _CUT.search(data, at)
    if hole is None:
        return None
    count = _COUNT.match(data, at, hole.start())
    if count is None:
        return hole if _BEGIN.fullmatch(data, at, hole.start()) else None
    at = count.end()
    for _ in range(int(count[1])):
        length = _LENGTH.match(data, at, hole.start())
        if length is None:
            return hole if at >= hole.start() or _BEGIN.fullmatch(data, at, hole.start()) else None
        at = length.end() + int(length[1]) + 2
    return hole if at > hole.start() else None


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
        if data[at - 2 : at] != b"\r\n":
            return None
    return at
