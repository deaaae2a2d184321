"""Settlements that could not be delivered, kept on the disk until they are.

1. **What was appended is on the disk** when `append` returns: written as one line and synced.
2. **A file belongs to the process that holds its lock.** When that process ends, however it ends, the next
   replay of any process takes the file over.
3. **A line is forgotten only once the store has resolved it.** Replaying one twice is safe: each request is
   charged once.
4. **What the disk does not take stays in memory** until the store or the disk takes it; only a kill forgets it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import threading
from collections.abc import Awaitable, Callable
from io import FileIO
from pathlib import Path

import msgspec
import structlog
from uuid_utils import uuid7

from gateway import crash_points
from gateway.errors import StoreAway
from gateway.store.money.results import Settled, Settlement

Deliver = Callable[[Settlement], Awaitable[Settled]]

_AT_ONCE = 100

log = structlog.get_logger("gateway.journal")


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Settlement).decode


class Journal:
    """The journal of one directory, which the processes of one machine may share."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._file: FileIO | None = None
        self._unwritten: list[Settlement] = []
        self._writing = threading.Lock()

    def keep(self, settlement: Settlement) -> None:
        """Append it, or keep it in memory where the disk cannot take it. Blocks until then."""
        try:
            self.append(settlement)
        except OSError as error:
            log.error("journal_not_written", request_id=settlement.request_id, reason=error.strerror)
            self._unwritten.append(settlement)

    def append(self, settlement: Settlement) -> None:
        """Write it down. Blocks until the disk has it. Raises `OSError` where the disk cannot take it."""
        with self._writing:
            if self._file is None:
                self._file = self._begin()
            size = self._file.tell()
            line = _encode(settlement) + b"\n"
            try:
                if self._file.write(line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(self._file.fileno())
            except OSError:
                self._file.truncate(size)
                self._file.seek(size)
                raise

    def _begin(self) -> FileIO:
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self.directory / f"{uuid7()}.jsonl"
        unnamed = path.with_suffix(".new")
        file = FileIO(unnamed, "xb")
        fcntl.flock(file, fcntl.LOCK_EX)
        _name(unnamed, path)  # only now: a replay that found it unlocked would take it over
        return file

    async def replay(self, deliver: Deliver) -> int:
        """Call `deliver` with each settlement kept here by this process and by those that ended; return how many it resolved.

        Raises `StoreAway` where the store went away meanwhile, and `StoreError` for what it refuses: what is left waits
        for the next replay.
        """
        self.close()
        unwritten = list(self._unwritten)
        left, error = await _deliver(unwritten, deliver)
        self._unwritten[: len(unwritten)] = left
        resolved = len(unwritten) - len(left)
        for path in sorted(self.directory.glob("*.jsonl")):
            if isinstance(error, StoreAway):
                break
            with contextlib.suppress(FileNotFoundError, BlockingIOError), path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                written = _settlements(file.read())
                left, refused = await _deliver(written, deliver)
                crash_points.point("journal.delivered")
                _rewrite(path, left) if left else path.unlink()
                resolved += len(written) - len(left)
                error = refused or error
        if error is not None:
            raise error
        return resolved

    def waiting(self) -> list[Settlement]:
        """What is kept here and not yet known to be resolved, by whichever process."""
        kept = list(self._unwritten)
        for path in self.directory.glob("*.jsonl"):
            with contextlib.suppress(FileNotFoundError):  # resolved meanwhile
                kept += _settlements(path.read_bytes())
        return kept

    def close(self) -> None:
        """Give the current file up to whoever replays next; the next append begins another."""
        with self._writing:
            if self._file is not None:
                self._file.close()
                self._file = None


def _settlements(text: bytes) -> list[Settlement]:
    # What follows the last line end was never acknowledged: its writer died while writing it.
    return [_decode(line) for line in text.split(b"\n")[:-1]]


async def _deliver(waiting: list[Settlement], deliver: Deliver) -> tuple[list[Settlement], BaseException | None]:
    """What is left, and why. What the store refuses does not hold up the rest."""
    left, error = list[Settlement](), None
    while waiting and not isinstance(error, StoreAway):
        batch, waiting = waiting[:_AT_ONCE], waiting[_AT_ONCE:]
        results = await asyncio.gather(*map(deliver, batch), return_exceptions=True)
        for settlement, result in zip(batch, results, strict=True):
            if isinstance(result, BaseException):
                left.append(settlement)
                error = error if isinstance(error, StoreAway) else result
    return left + waiting, error


def _rewrite(path: Path, settlements: list[Settlement]) -> None:
    fresh = path.with_suffix(".new")
    with fresh.open("wb") as file:
        file.writelines(_encode(settlement) + b"\n" for settlement in settlements)
        file.flush()
        os.fsync(file.fileno())
    _name(fresh, path)


def _name(unnamed: Path, path: Path) -> None:
    """Rename, and have the disk know the name."""
    unnamed.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
