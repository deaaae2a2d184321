"""Settlements that could not be delivered to the store, kept on the disk until they are.

1. **What was appended is on the disk** when `append` returns: written as one line and flushed.
2. **A file belongs to the process that holds its lock.** When that process ends, for any reason, the next replay of any
   process takes the file over.
3. **A line is removed only once the store has resolved it.** Replaying one twice is safe: each request is charged once.
4. **What the disk does not accept stays in memory** until the store or the disk accepts it; only a kill loses it.
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

from gateway import crash_points, durable
from gateway.errors import StoreAway
from gateway.store.money.results import Settled, Settlement

Deliver = Callable[[Settlement], Awaitable[Settled]]

_BATCH = 100
"""Settlements that are delivered at once."""

log = structlog.get_logger("gateway.store.money.journal")


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Settlement).decode


class Journal:
    """The journal of one directory, which the processes of one machine may share."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._file: FileIO | None = None
        self._unwritten: list[Settlement] = []
        self._lock = threading.Lock()

    def keep(self, settlement: Settlement) -> None:
        """Append a settlement, or keep it in memory where the disk cannot take it. Blocks until then."""
        try:
            self.append(settlement)
        except OSError as error:
            log.error("journal_not_written", request_id=settlement.request_id, reason=error.strerror)
            self._unwritten.append(settlement)

    def append(self, settlement: Settlement) -> None:
        """Append a settlement. Blocks until it is on the disk. Raises `OSError` where the disk cannot take it."""
        with self._lock:
            if self._file is None:
                self._file = self._create_file()
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

    def _create_file(self) -> FileIO:
        durable.make_folder(self.directory)
        path = self.directory / f"{uuid7()}.jsonl"
        temporary = durable.temporary_path(path)
        file = FileIO(temporary, "xb")
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            durable.rename(temporary, path)  # only once it is locked: a replay takes over a file that is not
        except OSError:
            file.close()
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
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
                _replace(path, left) if left else path.unlink()
                resolved += len(written) - len(left)
                error = refused or error
        if error is not None:
            raise error
        return resolved

    def waiting(self) -> list[Settlement]:
        """Return the settlements kept here, by any process, that are not yet known to be resolved."""
        waiting = list(self._unwritten)
        for path in self.directory.glob("*.jsonl"):
            with contextlib.suppress(FileNotFoundError):  # resolved meanwhile
                waiting += _settlements(path.read_bytes())
        return waiting

    def close(self) -> None:
        """Release the current file to the next replay; the next append begins another."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None


def _settlements(text: bytes) -> list[Settlement]:
    # What follows the last line end was never acknowledged: the process ended while writing it.
    return [_decode(line) for line in text.split(b"\n")[:-1]]


async def _deliver(waiting: list[Settlement], deliver: Deliver) -> tuple[list[Settlement], BaseException | None]:
    """Return the settlements that are left, and an error. One that the store refuses does not stop the others."""
    left, error = list[Settlement](), None
    while waiting and not isinstance(error, StoreAway):
        batch, waiting = waiting[:_BATCH], waiting[_BATCH:]
        results = await asyncio.gather(*map(deliver, batch), return_exceptions=True)
        for settlement, result in zip(batch, results, strict=True):
            if isinstance(result, BaseException):
                left.append(settlement)
                error = error if isinstance(error, StoreAway) else result
    return left + waiting, error


def _replace(path: Path, settlements: list[Settlement]) -> None:
    durable.write(path, b"".join(_encode(settlement) + b"\n" for settlement in settlements))
