"""The files of the content log: one line of JSON for each request, a file a day for each worker. Writing blocks.

A file has whole lines alone, whatever happens. A writer has a lock on its file, and what a full disk leaves of a line is taken off
again. The half line of a worker that was killed is taken off when the next one starts.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from re import Pattern
from typing import Final

import msgspec

from plugins.content_lines import Content, line_of

SUFFIX: Final = ".jsonl"
BLOCK: Final = 65536


class Written(msgspec.Struct, frozen=True):
    """What became of some lines: how many could not be read, how many the disk did not take, and why."""

    unread: int = 0
    lost: int = 0
    error: str = ""


class ContentFiles:
    """The files of one folder. What matches one of `patterns` is written as `[redacted]`. Raises `OSError`."""

    def __init__(self, folder: Path, patterns: Sequence[Pattern[str]], retention_days: int, max_waiting: int) -> None:
        self._folder = folder
        self._patterns = patterns
        self._retention_days = retention_days
        self._max_waiting = max_waiting
        self._waiting: list[Content] = []
        self._bytes = 0

    def begin(self) -> None:
        """Make the folder, and take off the half lines that were left there. Raises `OSError`."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in self._folder.glob(f"*{SUFFIX}"):
            with suppress(OSError):  # it is removed meanwhile, or another worker writes to it
                file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _take_off_half_a_line(file)
                finally:
                    os.close(file)

    def add(self, content: Content) -> bool:
        """Let a request wait to be written; return whether there was room for it."""
        if self._bytes + content.size > self._max_waiting:
            return False
        self._bytes += content.size
        self._waiting.append(content)
        return True

    def take(self) -> list[Content]:
        """Return what waits, and make room for as much."""
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        return waiting

    def write(self, contents: Iterable[Content], now_s: float) -> Written:
        """Append a line for each, and remove the files that are too old."""
        today, unread, lines = datetime.fromtimestamp(now_s, UTC).date(), 0, []
        for content in contents:
            try:
                lines.append(msgspec.json.encode(line_of(content, self._patterns)) + b"\n")
            except (msgspec.MsgspecError, RecursionError, ValueError):  # such as a number that is too large
                unread += 1
        waiting = lines[::-1]
        try:
            self._remove(today)
            if waiting:
                self._append(self._folder / f"{today.isoformat()}-{os.getpid()}{SUFFIX}", waiting)
        except OSError as failure:
            return Written(unread, len(waiting), str(failure))
        return Written(unread)

    def _append(self, path: Path, lines: list[bytes]) -> None:
        """Append lines to a file, the last first, and take each from the list."""
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            _take_off_half_a_line(file)
            while lines:
                before, at = os.fstat(file).st_size, 0
                try:
                    while at < len(lines[-1]):
                        at += os.write(file, lines[-1][at:])
                except OSError:
                    os.ftruncate(file, before)
                    raise
                lines.pop()
        finally:
            os.close(file)

    def _remove(self, today: date) -> None:
        before = (today - timedelta(self._retention_days)).isoformat()
        for path in self._folder.glob(f"*{SUFFIX}"):
            if path.name[:10] < before:
                path.unlink(missing_ok=True)


def _take_off_half_a_line(file: int) -> None:
    """End a file with its last whole line."""
    size = end = os.fstat(file).st_size
    while end:
        begin = max(0, end - BLOCK)
        block = os.pread(file, end - begin, begin)
        if (last := block.rfind(b"\n")) >= 0:
            end = begin + last + 1
            break
        end = begin
    if end < size:
        os.ftruncate(file, end)
