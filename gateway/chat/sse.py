"""The framing of server-sent events: where events end, and the name and data of one. Sans-I/O."""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Iterator
from typing import Final

EVENT_BOUNDARY: Final = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r(?=[^\n]))")
LINE_FEED: Final = 0x0A
CARRIAGE_RETURN: Final = 0x0D
QUOTE: Final = 0x22

_LINE_FEED_BOUNDARY: Final = re.compile(rb"\n\n")
"""The event boundary in data without carriage returns: a search for a literal is many times faster."""


IGNORED_EVENTS: Final = re.compile(rb"(?:(?::[^\r\n]{0,200})?(?:\n\n|\r\n\r\n)){1,1024}")
"""Events of one short comment, or of blank lines alone. The limits bound the time of a match."""


def boundary_pattern(data: bytes | bytearray, start: int = 0) -> re.Pattern[bytes]:
    """Return the pattern that finds the ends of events from `start` on."""
    return _LINE_FEED_BOUNDARY if data.find(b"\r", start) < 0 else EVENT_BOUNDARY


def whole_events(data: bytes) -> Iterator[bytes]:
    """Yield each event up to the last event boundary."""
    start = 0
    for boundary in boundary_pattern(data).finditer(data):
        yield data[start : boundary.end()]
        start = boundary.end()


def parse_event(event: bytes) -> tuple[bytes, bytes]:
    """Return the name and the data of an event, its data lines joined. A stream may begin with a byte order mark.

    Old servers of llama.cpp send an error as a field `error`. It is returned as the data of an event with that name.
    """
    if event.startswith(b"data:") and CARRIAGE_RETURN not in event and event.find(b"\n") == len(event.rstrip(b"\n")):
        return b"", event[5:].strip()  # nearly always
    name, data = b"", []
    for line in event.removeprefix(BOM_UTF8).splitlines():
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value.strip()
        elif field == b"error":
            name = field
            data.append(value)
    return name, b"\n".join(data).strip()
