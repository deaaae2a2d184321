"""Settlements that could not be delivered to the store, kept on the disk until they are.

1. **What was appended is on the disk** when `append` returns: written as one line and flushed.
2. **A file belongs to the process that holds its lock.** When that process ends, for any reason, the next replay of any
   process takes the file over.
3. **A line is removed only once the store has resolved it.** Replaying one twice is safe: each request is charged once.
4. **What the disk does not accept stays in memory** until the store or the disk accepts it; only a kill loses it.
5. **A line that cannot be read is set aside** in the folder `unreadable`, and stops no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import threading
import time
from collections.abc import Awaitable, Callable
from io import FileIO
from pathlib import Path
from typing import Final

import msgspec
from uuid_utils import uuid7

from gateway.base import crash_points, durable
from gateway.base.errors import StoreAway
from gateway.base.log import log
from gateway.store.money.scripts import Settled, Settlement

Deliver = Callable[[Settlement], Awaitable[Settled]]

_BATCH = 100
"""Settlements that are delivered at once."""

ASIDE: Final = "unreadable"
"""The folder in the journal's that has the lines which cannot be read."""
LOG_INTERVAL_S: Final = 10.0


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Settlement).decode


class Journal:
    """The journal of one directory, which the processes of one machine may share."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._file: FileIO | None = None
        self._unwritten: list[Settlement] = []
        self._logged = -LOG_INTERVAL_S
        self._reported: set[Path] = set()
        self._lock = threading.Lock()

    def keep(self, settlement: Settlement) -> None:
        """Append a settlement, or keep it in memory where the disk cannot take it. Blocks until then."""
        try:
            self.append(settlement)
        except OSError as error:
            self._unwritten.append(settlement)
            if time.monotonic() - self._logged >= LOG_INTERVAL_S:
                self._logged = time.monotonic()
                log.error("journal_not_written", reason=error.strerror, in_memory=len(self._unwritten))

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
        """Call `deliver` with each settlement kept here by this process and by processes that ended; return how many it resolved.

        Raises `StoreAway` where the store went away meanwhile, and `StoreError` for what it refuses: what is left waits
        for the next replay.
        """
        self.close()
        unwritten = list(self._unwritten)
        left, error = await _deliver(unwritten, deliver)
        self._unwritten[: len(unwritten)] = left
        resolved = len(unwritten) - len(left)
        for path in self._files():
            if isinstance(error, StoreAway):
                break
            try:
                with path.open("rb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    count, refused = await self._replay_file(path, file.read(), deliver)
            except (FileNotFoundError, BlockingIOError):  # resolved by another process, or in use by one
                continue
            except OSError as unusable:
                self._report(path, unusable)
                continue
            resolved += count
            error = refused or error
        self.write_down()
        if error is not None:
            raise error
        return resolved

    async def _replay_file(self, path: Path, text: bytes, deliver: Deliver) -> tuple[int, BaseException | None]:
        """Deliver the lines of a file, and leave unresolved ones there. Return how many were resolved, and an error."""
        written, unreadable = _parsed(text)
        left, error = await _deliver(written, deliver)
        crash_points.point("journal.delivered")
        if unreadable:
            self._set_aside(path, unreadable)
        _leave(path, left)
        return len(written) - len(left), error

    def _set_aside(self, path: Path, lines: list[bytes]) -> None:
        aside = self.directory / ASIDE / path.name  # the same lines of the same file have the same name again
        durable.make_folder(aside.parent)
        durable.write(aside, b"\n".join(lines) + b"\n")
        log.error("journal_lines_unreadable", file=str(path), lines=len(lines), set_aside=str(aside))

    def _report(self, path: Path, error: OSError) -> None:
        """Log once that a file cannot be used."""
        if path not in self._reported:
            self._reported.add(path)
            log.error("journal_file_unusable", file=str(path), reason=error.strerror)

    def write_down(self) -> None:
        """Append the settlements that are only in memory, as far as the disk accepts them. Blocks."""
        with contextlib.suppress(OSError):
            while self._unwritten:
                self.append(self._unwritten[0])
                del self._unwritten[0]

    def waiting(self) -> list[Settlement]:
        """Return the settlements kept here, by any process, that are not yet known to be resolved, as far as they can be read."""
        waiting = list(self._unwritten)
        for path in self._files():
            with contextlib.suppress(OSError):  # resolved meanwhile, or in `damage`
                waiting += _parsed(path.read_bytes())[0]
        return waiting

    def damage(self) -> list[str]:
        """Return a sentence for each file that cannot be read."""
        found = [
            f"{path} has lines of the journal that cannot be read: see which charges they were, then delete it"
            for path in sorted((self.directory / ASIDE).glob("*"))
        ]
        for path in self._files():
            try:
                lines = _parsed(path.read_bytes().rpartition(b"\n")[0])[1]  # a process may be writing the last line
            except FileNotFoundError:
                continue
            except OSError as error:
                found.append(f"{path} cannot be read: {error.strerror}")
                continue
            if lines:
                found.append(f"{path} has {len(lines)} lines that cannot be read; the gateway sets them aside")
        return found

    def _files(self) -> list[Path]:
        return sorted(self.directory.glob("*.jsonl"))

    def close(self) -> None:
        """Write the settlements that are only in memory, and leave the file to the next replay; the next append begins another."""
        self.write_down()
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None


def _parsed(text: bytes) -> tuple[list[Settlement], list[bytes]]:
    """Return the settlements in a file, and the lines that cannot be read, such as a last line that was not written whole."""
    settlements, unreadable = list[Settlement](), list[bytes]()
    for line in filter(None, text.split(b"\n")):
        try:
            settlements.append(_decode(line))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            unreadable.append(line)
    return settlements, unreadable


def _leave(path: Path, settlements: list[Settlement]) -> None:
    if settlements:
        durable.write(path, b"".join(_encode(settlement) + b"\n" for settlement in settlements))
    else:
        path.unlink()


async def _deliver(waiting: list[Settlement], deliver: Deliver) -> tuple[list[Settlement], BaseException | None]:
    """Deliver settlements; return the undelivered ones, and an error. A settlement that is refused does not stop the others."""
    left, error = list[Settlement](), None
    while waiting and not isinstance(error, StoreAway):
        batch, waiting = waiting[:_BATCH], waiting[_BATCH:]
        results = await asyncio.gather(*map(deliver, batch), return_exceptions=True)
        for settlement, result in zip(batch, results, strict=True):
            if isinstance(result, BaseException):
                left.append(settlement)
                error = error if isinstance(error, StoreAway) else result
    return left + waiting, error
