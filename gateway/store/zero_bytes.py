"""Zero bytes between the commands of an append-only file, which a full disk leaves there: the server does not load such a file.

Valkey and Redis 7 and later take back the part of a command that they could write when the disk was full, but go on behind it, in a
file that they have begun with a rewrite (`aof.c`: it is not opened for appending). All commands are there.
"""

from __future__ import annotations

import mmap
import os
import re
from pathlib import Path
from typing import Final

from gateway.base import durable

KEPT: Final = ".with-zero-bytes"
LONGEST_NUMBER: Final = 32
_NOT_ZERO: Final = re.compile(rb"[^\0]")


class _Cut(Exception):
    """The data ends within a command, as after a kill: the server drops that one."""


class _Wrong(Exception):
    """Something else than a command."""


def remove(file: Path) -> int:
    """Remove zero bytes between commands, and return how many; 0 where there are none, or the file is damaged otherwise, too.

    The file as it was is kept beside its folder. Raises `OSError`, and leaves the file as it is.
    """
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        holes = _holes(data)
        if not holes:
            return 0
        new, at = durable.temporary_path(file), 0
        with new.open("wb") as target:
            new.chmod(0o600)
            for start, end in holes:
                target.write(data[at:start])
                at = end
            target.write(data[at:])
            durable.flush(target)
    kept = file.parent.parent / (file.name + KEPT)
    kept.unlink(missing_ok=True)
    os.link(file, kept)
    durable.rename(new, file)
    return sum(end - start for start, end in holes)


def _holes(data: mmap.mmap) -> list[tuple[int, int]]:
    """Return where zero bytes begin and end."""
    found, at = list[tuple[int, int]](), 0
    try:
        while at < len(data):
            if data[at]:
                at = _end(data, at)
            else:
                following = _NOT_ZERO.search(data, at)
                found.append((at, following.start() if following else len(data)))
                at = found[-1][1]
    except _Cut:
        pass
    except _Wrong:
        return []
    return found


def _end(data: mmap.mmap, at: int) -> int:
    """Return where the command or the annotation ends that begins here."""
    if data[at : at + 1] == b"#":
        line = data.find(b"\n", at)
        if line < 0:
            raise _Cut
        return line + 1
    count, at = _number(data, at, b"*")
    for _ in range(count):
        size, at = _number(data, at, b"$")
        at += size + len(b"\r\n")
        if at > len(data):
            raise _Cut
        if data[at - 2 : at] != b"\r\n":
            raise _Wrong
    return at


def _number(data: mmap.mmap, at: int, mark: bytes) -> tuple[int, int]:
    """Return the number in the line that begins here with `mark`, and where the next line begins."""
    line = data.find(b"\r\n", at, at + LONGEST_NUMBER)
    if line < 0:
        raise _Cut if len(data) - at < LONGEST_NUMBER else _Wrong
    if data[at : at + 1] != mark or not data[at + 1 : line].isdigit():
        raise _Wrong
    return int(data[at + 1 : line]), line + 2
