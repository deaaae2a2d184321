"""Notes about requests whose records are written to the stream long after their arrival.

A gateway that misses a part of the stream misses these requests too, and a search for one of them must reach further.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gateway.request_id import arrival_ms
from gateway.store.client.client import Client, Script
from gateway.usage.keys import LATE

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
