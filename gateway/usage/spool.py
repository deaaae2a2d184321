"""Records on this machine's disk while the stream cannot take them: small files that the sink replays and
deletes.

1. **A file appears whole or not at all**: it is written under another name, forced to the disk and renamed.
   So the sink may take the files of a living process, and a crash leaves no half line to be told from a whole
   one.
2. **Who waits for the disk waits together**: what comes while one file is being written goes into the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Final

from uuid_utils import uuid7

SUFFIX: Final = ".jsonl"


class Spool:
    """The spool of a folder: any number of processes append, one reads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._next: list[bytes] = []
        self._writing: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()

    async def append(self, line: bytes) -> None:
        """Keep one JSON line; it is on the disk when this returns. Raises `OSError` where the disk does not
        take it.
        """
        self._next.append(line)
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())
        await asyncio.shield(self._writing)

    def files(self) -> list[Path]:
        """What waits to be replayed, the oldest first."""
        return sorted(self.folder.glob(f"*{SUFFIX}"))

    async def _write(self) -> None:
        async with self._turn:
            lines, self._next, self._writing = self._next, [], None
            await asyncio.to_thread(keep, self.folder, lines)


def keep(folder: Path, lines: list[bytes]) -> None:
    """Write a file of lines that is on the disk when this returns. Raises `OSError`; then there is none."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    final = folder / f"{uuid7()}{SUFFIX}"
    passing = final.with_suffix(".part")
    try:
        with passing.open("xb") as file:
            file.writelines(line + b"\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
        passing.rename(final)
        directory = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError:
        with contextlib.suppress(OSError):
            passing.unlink()
        raise
