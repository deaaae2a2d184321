"""The stream of the usage log: its keys in the store, the name of an installation, late records, and the spool beside it.

All keys are in one hash slot, so that one script may use all of them. An installation is one data folder, on whatever host it is.
A gateway that misses a part of the stream also misses requests whose records were written long after their arrival: notes about
these tell how far a search must reach.

**The spool** has records on this machine's disk while the stream cannot take them: small files that the sink replays, hands over
and deletes.

1. **A file appears whole or not at all.** The sink may therefore replay the files of a running process, and a crash leaves
   no incomplete line.
2. **A file is deleted when the stream has its records**: until then the other gateways do not know of them.
3. **Writes are batched**: the lines that arrive while one file is being written go into the next.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from uuid import uuid4

from uuid_utils import uuid7

from gateway.base import durable
from gateway.base.errors import Misconfigured, cannot_use
from gateway.base.ids import arrival_ms
from gateway.store.client.client import Client, Script

STREAM: Final = "gw:{usage}:stream"
"""The stream of arrivals and ends of all gateways. It has a consumer group for each gateway, named after its installation."""
HEARD: Final = "gw:{usage}:heard"
"""A sorted set: when each gateway's sink was last heard of, in milliseconds of the store's clock."""
GATEWAYS: Final = "gw:{usage}:gateways"
"""A hash: what each gateway says about itself, see `gateways.About`."""
TRIMMED: Final = "gw:{usage}:trimmed"
"""The id of the last entry that was removed from the stream."""
LATE: Final = "gw:{usage}:late"
"""A sorted set: the arrival of the oldest of some requests that were written late, by the time at which they were written."""

WANTED: Final = "gw:{usage}:wanted"
"""A hash: what each gateway is asked for by one that has a gap, see `filling`."""
FILLED: Final = "gw:{usage}:filled"
"""What the names of the answers begin with; the asker follows. They expire."""
COPIER: Final = "gw:{usage}:copier"
"""The gateway that copies to ClickHouse; expires."""
COPIED: Final = "gw:{usage}:copied"
"""The id of an entry of the stream: it, and all before, is in ClickHouse."""

_NAME: Final = re.compile(r"[0-9a-f]{32}")
_SHORT: Final = slice(8)

MAX_NOTES: Final = 10_000
OPEN: Final = b'"outcome":null'
"""What the line of an arrival has, and that of an end has not."""
_ID: Final = slice(len('{"id":"'), len('{"id":"') + 36)

_NOTE: Final = Script(
    "note_late",
    """
local time = redis.call("TIME")
local now = string.format("%.0f", time[1] * 1000 + math.floor(time[2] / 1000))
redis.call("ZADD", KEYS[1], now, ARGV[1] .. ":" .. now)
redis.call("ZREMRANGEBYRANK", KEYS[1], 0, -1 - ARGV[2])
""",
)

SUFFIX: Final = ".jsonl"


def installation_of(folder: Path) -> str:
    """Return the name of this folder's installation, from a file made on first use. Raises `Misconfigured`."""
    path = folder / "installation"
    try:
        if not path.exists():
            durable.make_folder(folder)
            durable.create(path, uuid4().hex.encode())
        name = durable.read(path).decode(errors="replace").strip()
    except OSError as error:
        raise cannot_use(f"data: cannot use {path}", error) from None
    if not _NAME.fullmatch(name):
        raise Misconfigured(
            f"{path} is damaged: write the 32 digits there that `gateway gateways list --json` on another machine has for this "
            "host, or delete the file; then this folder is another gateway, and the one that it was is to be forgotten"
        )
    return name


def short(installation: str) -> str:
    """Return the part of an installation's name that records have."""
    return installation[_SHORT]


async def note_late(client: Client, lines: Sequence[bytes]) -> None:
    """Note the oldest of these records, which are about to be written. Raises `StoreAway`."""
    arrivals = [at for line in lines if (at := arrival_of(line)) is not None]
    if arrivals:
        await client.run(_NOTE, [LATE], [min(arrivals), MAX_NOTES])


def id_of(line: bytes) -> bytes:
    """Return the id in the line of a record: it is the first field of each line that the gateway writes."""
    return line[_ID]


def arrival_of(line: bytes) -> int | None:
    """Return when the request of a line arrived; None for a line that is no record."""
    try:
        return arrival_ms(id_of(line).decode("latin-1"))
    except ValueError:
        return None


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
