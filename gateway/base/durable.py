"""Files that are written whole and survive a power failure, and the reading of small files and of their versions.

1. **A file appears whole or not at all**: it is written under a temporary name in the same folder, flushed to the disk, and
   only then given its name. A process that is killed leaves at most the temporary file, whose name ends in `.part`, and
   which `remove_leftovers` removes.
2. **What was written is on the disk when the call returns**, and so is its name: the folder is flushed as well.

All of it blocks, and raises `OSError` where the disk does not accept it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

SUFFIX: Final = ".part"
LEFTOVER: Final = re.compile(r"\.[0-9a-f]{16}\.part")
YOUNGEST_S: Final = 60.0
"""The age in seconds from which on a temporary file that is not locked belongs to no process."""


def read(path: Path, max_bytes: int = 1 << 20) -> bytes:
    """Return the bytes of a regular file. Of anything else, such as a named pipe, reading could wait for ever."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    return data


def version(path: Path) -> tuple[int, ...] | None:
    """Return what differs between versions of a file, also where a symbolic link was replaced; None without a file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size


def write(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Write a file, in place of a present one with this name. `mode`: permissions of the new file, less the process's umask."""
    with _temporary(path, data, mode) as temporary:
        rename(temporary, path)


def create(path: Path, data: bytes, *, mode: int = 0o666) -> bool:
    """Write a file unless one has this name. Return whether it was written: of several processes, one writes it."""
    with _temporary(path, data, mode) as temporary:
        try:
            path.hardlink_to(temporary)
        except FileExistsError:
            return False
    flush_folder(path.parent)
    return True


def rename(temporary: Path, path: Path) -> None:
    """Rename a file that is on the disk, within its folder, in place of a present one with the new name."""
    temporary.replace(path)
    flush_folder(path.parent)


def temporary_path(path: Path) -> Path:
    """Return a new name beside `path`, for a file that `rename` will give its own."""
    return path.with_name(f"{path.name}.{secrets.token_hex(8)}{SUFFIX}")


def make_folder(folder: Path, mode: int = 0o700) -> None:
    """Make a folder and its parents unless it exists. `mode` is that of the folder; its parents have the usual one."""
    if not folder.is_dir():
        make_folder(folder.parent, 0o777)
        folder.mkdir(mode, exist_ok=True)
        flush_folder(folder.parent)


def flush(file: IO[Any]) -> None:
    """Have what was written to an open file on the disk."""
    file.flush()
    os.fsync(file.fileno())


def flush_folder(folder: Path) -> None:
    """Have the names in a folder on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_leftovers(folder: Path) -> list[Path]:
    """Remove the temporary files that killed processes left in a folder; return them.

    A file that a process is writing is locked, or has just been made.
    """
    removed = []
    for path in folder.glob(f"*{SUFFIX}"):
        with contextlib.suppress(BlockingIOError, FileNotFoundError):
            if LEFTOVER.search(path.name) and path.is_file() and time.time() - path.stat().st_mtime > YOUNGEST_S:
                with path.open("rb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
                    removed.append(path)
    return removed


@contextlib.contextmanager
def _temporary(path: Path, data: bytes, mode: int) -> Iterator[Path]:
    """Yield a file beside `path` that has `data` on the disk; it is locked until the end, and removed then."""
    temporary = temporary_path(path)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(data)
            flush(file)
            yield temporary
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
