"""Files of the usage log that cannot be read or written: the error that names one, and setting a damaged one aside.

A damaged month's file is renamed, with nothing deleted, and a fresh one is begun, so that the records of now are kept.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
from uuid_utils import uuid7

from gateway import durable
from gateway.errors import GatewayError, StoreAway

MARK: Final = ".damaged-"
SUFFIXES: Final = ("", "-wal", "-shm")
"""What follows the name of a database in the names of its files."""

_DAMAGE: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_CUT: Final = sqlite3.SQLITE_IOERR_SHORT_READ


SUSPECT: Final = ".suspect"
"""What follows the name of a database in the name of an empty file with which a reader reports damage to the writer."""


class FilesUnusable(StoreAway):
    """The files of the usage log cannot be read, and nothing else has what was asked for."""

    event = "usage_files_unusable"


class UnusableFile(GatewayError):
    """A file of the usage log cannot be used; the message names it. `damaged`: its content is at fault."""

    def __init__(self, message: str, *, damaged: bool = False) -> None:
        super().__init__(message)
        self.damaged = damaged


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """Turn what SQLite and the decoding of a row raise into `UnusableFile`."""
    try:
        yield
    except sqlite3.Error as error:
        in_the_way = path.is_dir() or (path.is_symlink() and not path.exists())
        code = getattr(error, "sqlite_errorcode", 0)
        damaged = in_the_way or code & 0xFF in _DAMAGE or code == _CUT
        raise UnusableFile(f"{path} cannot be used: {error}", damaged=damaged) from None
    except (msgspec.MsgspecError, TypeError) as error:
        raise UnusableFile(f"{path} cannot be used: a row is unreadable: {error}") from None


def report(path: Path) -> None:
    """Report a database that a reader found damaged to its writer, which has its pages in memory and may not notice."""
    with contextlib.suppress(OSError):
        path.with_name(path.name + SUSPECT).touch()


def set_aside(path: Path) -> Path:
    """Rename a damaged database, and what belongs to it; return its path from now on. Raises `OSError`."""
    aside = path.with_name(f"{path.name}{MARK}{uuid7()}")
    rename(path, aside)
    return aside


def rename(path: Path, other: Path) -> None:
    """Rename a database, and what belongs to it. Raises `OSError`."""
    for suffix in SUFFIXES:
        file = path.with_name(path.name + suffix)
        if file.is_symlink() or file.exists():
            file.rename(other.with_name(other.name + suffix))
    durable.flush_folder(path.parent)


def files_aside(folder: Path, month: str = "*") -> list[Path]:
    """Return the databases that were set aside, of one month or of all, the oldest month first."""
    return sorted(path for path in folder.glob(f"usage-{month}.sqlite{MARK}*") if not path.name.endswith(SUFFIXES[1:]))


def lack(aside: Path) -> UnusableFile:
    """Return the error for the requests that are in a file which was set aside."""
    return UnusableFile(
        f"{aside} was damaged and set aside: its requests are missing here until another gateway that has them fills the gap. "
        f"Where there is none: what can be read of it is printed by `sqlite3 {aside.name} .recover`; then delete it"
    )
