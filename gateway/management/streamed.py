"""What an operation returns that is no JSON: CSV that is sent line by line, and records that are sent as they end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import ClassVar

from gateway.usage.record import Record


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
