"""What a store acknowledged lately, to tell it again to one that took over and may have forgotten it."""

from __future__ import annotations

import sys
import time
import zlib
from collections import deque
from collections.abc import Iterator
from itertools import chain
from typing import Final

import msgspec

RECENT_S: Final = 60
"""How long a line is remembered at least, where it is not too much: twice as long as Sentinel, as it comes, waits before it
calls a primary down.
"""

PIECE: Final = 32 * 1024
"""Bytes that are compressed at a time: some 0.1 ms, and lines of one kind become a fifth to a twentieth of their size."""

PIECE_S: Final = 10
"""The most that lines of one piece are apart: they are forgotten together."""


class Segment(msgspec.Struct, frozen=True, gc=False):
    """Lines that are forgotten together. `last`: the second of the last one."""

    last: int
    lines: bytes


class ReplayBuffer:
    """Lines that were acknowledged lately, at most `most` bytes of what they are compressed to.

    Pieces, not lines, are what is kept: an object for each line would take many times the memory.
    """

    def __init__(self, most: int = sys.maxsize) -> None:
        self._most = most
        self._bytes = 0
        self._pieces: deque[Segment] = deque()
        self._open = bytearray()
        self._began = 0

    def add(self, line: bytes) -> None:
        """Remember one more, which holds no line feed, and forget what is too old or too much."""
        now = int(time.monotonic())
        if not self._open:
            self._began = now
        elif len(self._open) + len(line) >= PIECE or now - self._began >= PIECE_S:
            self._close(now)
        self._open += line + b"\n"

    def _close(self, now: int) -> None:
        piece = Segment(min(now, self._began + PIECE_S), zlib.compress(self._open, 1))
        self._open.clear()
        self._began = now
        self._pieces.append(piece)
        self._bytes += len(piece.lines)
        self._forget(now)

    def _forget(self, now: int) -> None:
        pieces = self._pieces
        while pieces and (pieces[0].last < now - RECENT_S or self._bytes > self._most):
            self._bytes -= len(pieces.popleft().lines)

    def __iter__(self) -> Iterator[bytes]:
        now = int(time.monotonic())
        self._forget(now)
        if self._began + PIECE_S < now - RECENT_S:
            self._open.clear()
        ended = (zlib.decompress(piece.lines) for piece in self._pieces)
        return chain.from_iterable(lines.split(b"\n")[:-1] for lines in (*ended, bytes(self._open)))
