"""Plain events: those that have a text of the model and nothing else that the gateway reads. Sans-I/O.

A plain event is a single `data:` line with a JSON object that has one `"choices":[`, followed by an object, and no match of
`FIELDS`, and an empty line.
Many events of one read are mostly plain, and are taken together. They are searched by a compiled function (`_plain.pyx`), which
takes a tenth of the instructions of the regular expression, where there is one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from gateway import compiled
from gateway.chat.chunks import CHOICES, FIELDS, FIRST_CHOICE
from gateway.chat.sse import CARRIAGE_RETURN, LINE_FEED

SOURCE: Final = Path(__file__).with_name("_plain.pyx")

Search = Callable[[bytes], tuple[int, int]]

_plain, _ = compiled.load("gateway.chat._plain", SOURCE)


def plain_events(data: bytes) -> tuple[int, int]:
    """Return where the plain events end that the data begins with, and how many there are. Their line ends are alike."""
    return search_line_feeds(data) if data.find(b"\r") < 0 else search(data, b"\r\n\r\n")


def search(data: bytes, boundary: bytes = b"\n\n") -> tuple[int, int]:
    """Return the same for one kind of line ends."""
    field = FIELDS.search(data)
    *whole, _ = data[: field.start() if field else len(data)].split(boundary)
    end = events = 0
    for event in whole:
        plain = event.startswith(b"data: {") and event.count(CHOICES) == 1 and FIRST_CHOICE in event
        if not plain or LINE_FEED in event or CARRIAGE_RETURN in event:
            break
        end += len(event) + len(boundary)
        events += 1
    return end, events


search_line_feeds: Final[Search] = _plain.plain_events if _plain else search
