"""Settlements that could not be delivered, kept on the disk until they are.

1. **What was appended is on the disk** when `append` returns: written as one line and synced.
2. **A file belongs to the process that holds its lock.** When that process ends, however it ends, the next
   replay of any process takes the file over.
3. **A line is forgotten only once the store has resolved it.** Replaying one twice is safe: each request is
   charged once.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import threading
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
from uuid_utils import uuid7

from gateway import crash
from gateway.errors import StoreAway

if TYPE_CHECKING:
    from gateway.store.wallet import Wallet

_AT_ONCE = 100


class Settlement(msgspec.Struct, frozen=True):
    """How one request is to be resolved: charged `cost` micros, or released at no charge."""

    account: str
    rid: str
    cost: int = 0
    kind: Literal["settle", "release"] = "settle"


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Settlement).decode


class Journal:
    """The journal of one directory, which the processes of one machine may share."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._file: FileIO | None = None
        self._writing = threading.Lock()

    def append(self, settlement: Settlement) -> None:
        """Keep it. Blocks until the disk has it. Raises `OSError` where the disk cannot take it."""
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

    async def replay(self, wallet: Wallet) -> int:
        """Deliver what is kept here by this process and by those that ended; returns how many were resolved.

        Raises `StoreAway` where the store went away meanwhile: then what is left waits for the next replay.
        """
        self.close()
        resolved = 0
        for path in sorted(self.directory.glob("*.jsonl")):
            with contextlib.suppress(FileNotFoundError, BlockingIOError), path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                resolved += await _deliver(path, file.read(), wallet)
        return resolved

    def waiting(self) -> list[Settlement]:
        """What is kept here and not yet known to be resolved, by whichever process."""
        kept = list[Settlement]()
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


async def _deliver(path: Path, text: bytes, wallet: Wallet) -> int:
    waiting = _settlements(text)
    total, left, errors = len(waiting), list[Settlement](), list[BaseException]()
    while waiting and not any(isinstance(error, StoreAway) for error in errors):
        batch, waiting = waiting[:_AT_ONCE], waiting[_AT_ONCE:]
        results = await asyncio.gather(*map(wallet.deliver, batch), return_exceptions=True)
        for settlement, result in zip(batch, results, strict=True):
            if isinstance(result, BaseException):
                left.append(settlement)
                errors.append(result)
    crash.point("journal.delivered")
    if errors:
        _rewrite(path, left + waiting)
        raise errors[0]
    path.unlink()  # noqa: ASYNC240 - a few files after an outage
    return total


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
