"""Records on this machine's disk while the stream cannot take them: small files that the sink replays, hands over and deletes.

1. **A file appears whole or not at all.** The sink may therefore replay the files of a running process, and a crash leaves
   no incomplete line.
2. **A file is deleted when the stream has its records**: until then the other gateways do not know of them.
3. **Writes are batched**: the lines that arrive while one file is being written go into the next.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from uuid_utils import uuid7

from gateway import durable

SUFFIX: Final = ".jsonl"


class Spool:
    """The spool of a folder: any number of processes append, one reads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.outgoing = folder / "outgoing"
        """Holds the files whose records are in this gateway's own database, and not yet in the stream."""
        self._next: list[bytes] = []
        self._writing: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()

    async def append(self, line: bytes) -> None:
        """Write one JSON line, and return when it is on the disk. Raises `OSError` where the disk does not accept it."""
        self._next.append(line)
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())
        await asyncio.shield(self._writing)

    def files(self) -> list[Path]:
        """Return the files that wait to be replayed, the oldest first."""
        return sorted(self.folder.glob(f"*{SUFFIX}"))

    def replayed(self, file: Path) -> None:
        """Keep a file, whose records are in the database, until the stream has them."""
        durable.make_folder(self.outgoing)
        file.rename(self.outgoing / file.name)

    def files_to_hand_over(self) -> list[Path]:
        """Return the files whose records are not in the stream, the oldest first."""
        return sorted(self.outgoing.glob(f"*{SUFFIX}"))

    def count(self) -> int:
        """Return how many files have records that the stream does not have."""
        return len(self.files()) + len(self.files_to_hand_over())

    async def _write(self) -> None:
        async with self._turn:
            lines, self._next, self._writing = self._next, [], None
            await asyncio.to_thread(write_lines, self.folder, lines)


def write_lines(folder: Path, lines: list[bytes]) -> None:
    """Write lines into a new file, which is on the disk when this returns. Raises `OSError` where it is not."""
    durable.make_folder(folder)
    durable.write(folder / f"{uuid7()}{SUFFIX}", b"".join(line + b"\n" for line in lines))
