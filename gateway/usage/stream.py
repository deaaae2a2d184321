"""The stream of the usage log: its keys in the store, the name of an installation, and the spool beside it.

An installation is one data folder, on whatever host it is.

**The spool** has records on this machine's disk while the stream cannot take them: small files that the sink writes to the home
and deletes.

1. **A file appears whole or not at all.** The sink may therefore read the files of a running process, and a crash leaves
   no incomplete line.
2. **A file is deleted when the home has its records.**
3. **Writes are batched**: the lines that arrive while one file is being written go into the next.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Final
from uuid import uuid4

from uuid_utils import uuid7

from gateway.base import durable
from gateway.base.errors import Misconfigured, cannot_use
from gateway.store.client.client import Client

STREAM: Final = "gw:{usage}:stream"
"""The stream of arrivals and ends of all gateways. It has one consumer group, of which each gateway's sink is a consumer."""
GROUP: Final = "sinks"
HEARD: Final = "gw:{usage}:heard"
"""A sorted set: when each gateway's sink was last heard of, in milliseconds of the store's clock."""
GATEWAYS: Final = "gw:{usage}:gateways"
"""A hash: what each gateway says about itself, see `gateways.About`."""
HOME: Final = "gw:{usage}:home"
"""The home that all gateways of the store log to."""
DROPPED: Final = "gw:{usage}:dropped"
"""The month that was dropped last, for a day: none is dropped meanwhile."""
STREAMS: Final = 16
"""Streams of a cluster, in which each lies on one node. A request's id chooses."""

_NAME: Final = re.compile(r"[0-9a-f]{32}")
_SHORT: Final = slice(8)

ENDED: Final = b'"outcome":"'
"""What the line of an end has, and that of an arrival has not."""
_ID: Final = slice(len('{"id":"'), len('{"id":"') + 36)

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


def streams_of(client: Client) -> tuple[str, ...]:
    """Return the streams of a store."""
    return tuple(f"gw:{{usage-{number}}}:stream" for number in range(STREAMS)) if client.sharded else (STREAM,)


def id_of(line: bytes) -> bytes:
    """Return the id in the line of a record: it is the first field of each line that the gateway writes."""
    return line[_ID]


class Spool:
    """The spool of a folder: any number of processes append, one reads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
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

    def count(self) -> int:
        """Return how many files wait."""
        return len(self.files())

    async def _write(self) -> None:
        async with self._turn:
            lines, self._next, self._writing = self._next, [], None
            await asyncio.to_thread(write_lines, self.folder, lines)


def write_lines(folder: Path, lines: list[bytes]) -> None:
    """Write lines into a new file, which is on the disk when this returns. Raises `OSError` where it is not."""
    durable.make_folder(folder)
    durable.write(folder / f"{uuid7()}{SUFFIX}", b"".join(line + b"\n" for line in lines))
