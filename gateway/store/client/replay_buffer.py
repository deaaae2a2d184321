"""A buffer of recently acknowledged writes, to send them again to a master that took over and may lack them."""

from __future__ import annotations

import sys
import time
import zlib
from collections import deque
from collections.abc import Iterator
from itertools import chain
from typing import Final

import msgspec

RETENTION_S: Final = 60
"""How long a line is kept at least, unless the buffer is full: twice the time after which Sentinel, by default, considers a
primary down.
"""

SEGMENT_BYTES: Final = 32 * 1024
"""Bytes that are compressed at a time. It takes about 0.1 ms and reduces similar lines to 5 to 20 % of their size."""

SEGMENT_S: Final = 10
"""The maximum time between the first and the last line of a segment, since they are dropped together."""


class Segment(msgspec.Struct, frozen=True, gc=False):
    """Compressed lines that are dropped together. `last`: the time of the last one, in monotonic seconds."""

    last: int
    lines: bytes


class ReplayBuffer:
    """Recently acknowledged lines, oldest first, in at most `max_bytes` of compressed data.

    Lines are stored in segments, because an object for each line would take many times the memory.
    """

    def __init__(self, max_bytes: int = sys.maxsize) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._segments: deque[Segment] = deque()
        self._open = bytearray()
        self._began = 0

    def add(self, line: bytes) -> None:
        """Add a line, which must not contain a line feed, and drop what is too old or too much."""
        now = int(time.monotonic())
        if not self._open:
            self._began = now
        elif len(self._open) + len(line) >= SEGMENT_BYTES or now - self._began >= SEGMENT_S:
            self._close(now)
        self._open += line + b"\n"

    def _close(self, now: int) -> None:
        segment = Segment(min(now, self._began + SEGMENT_S), zlib.compress(self._open, 1))
        self._open.clear()
        self._began = now
        self._segments.append(segment)
        self._bytes += len(segment.lines)
        self._drop_old(now)

    def _drop_old(self, now: int) -> None:
        segments = self._segments
        while segments and (segments[0].last < now - RETENTION_S or self._bytes > self._max_bytes):
            self._bytes -= len(segments.popleft().lines)

    def __iter__(self) -> Iterator[bytes]:
        now = int(time.monotonic())
        self._drop_old(now)
        if self._began + SEGMENT_S < now - RETENTION_S:
            self._open.clear()
        closed = (zlib.decompress(segment.lines) for segment in self._segments)
        return chain.from_iterable(lines.split(b"\n")[:-1] for lines in (*closed, bytes(self._open)))
