"""What an operation returns that is no JSON: CSV that is sent line by line, and records that are sent as they end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable
from pathlib import Path
from typing import ClassVar, Final

from gateway.errors import StoreAway
from gateway.usage.record import Record, decode

PATIENCE_S: Final = 60.0
RETRY_S: Final = 1.0


class Streamed:
    """An answer that is sent piece by piece, in one of the formats below."""

    content_type: ClassVar[str]


class CsvFile(Streamed):
    """A file of CSV for a spreadsheet, with the names of its columns in the first line."""

    content_type = "text/csv"

    def __init__(self, name: str, pieces: AsyncIterator[str]) -> None:
        """`name`: what the file is called where it is saved. `pieces`: some lines at a time, read when they are needed."""
        self.name = name
        self.pieces = pieces


class Feed(Streamed):
    """Server-sent events: the record of each request when it ends. The id of an event is the `Last-Event-ID` to go on after it."""

    content_type = "text/event-stream"

    def __init__(self, folder: Path, selects: Callable[[Record], bool]) -> None:
        self.folder = folder
        self.selects = selects


class FeedElsewhere(Feed):
    """The feed of a gateway elsewhere."""

    def __init__(self, connect: Callable[[str], AsyncIterator[bytes]]) -> None:
        """`connect` returns the lines of a new connection, which begins after the event that it gets, or with what comes."""
        self._connect = connect

    async def records(self) -> AsyncIterator[Record]:
        """Yield records, without an end. A connection that breaks is made anew, from the same place on.

        Raises `StoreAway` where that fails for `PATIENCE_S`, and the error that the gateway had.
        """
        place, deadline = "", 0.0
        while True:
            try:
                async for event, record in events_of(self._connect(place)):
                    place, deadline = event, 0.0
                    yield record
            except StoreAway:
                if not place or (deadline and time.monotonic() > deadline):
                    raise
            deadline = deadline or time.monotonic() + PATIENCE_S
            await asyncio.sleep(RETRY_S)


async def events_of(lines: AsyncIterable[bytes]) -> AsyncIterator[tuple[str, Record]]:
    """Yield the records of a feed that is received, each with the `Last-Event-ID` to go on after it."""
    place = ""
    async for line in lines:
        name, _, value = line.decode().strip().partition(": ")
        if name == "id":
            place = value
        elif name == "data":
            yield place, decode(value)
