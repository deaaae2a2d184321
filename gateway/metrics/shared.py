"""Numbers that one process writes and others read, in memory shared by a parent process and the children that it forks.

One process at a time writes a set of numbers, without a lock: each number is eight aligned bytes. They outlive the process,
so that its successor continues to count from them.
"""

from __future__ import annotations

import mmap
import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

import msgspec
import structlog

Key = tuple[str, ...]
Numbers: TypeAlias = "memoryview[float]"

SIZE: Final = 1024 * 1024
"""Bytes for all keys and numbers of one process; pages that are not written use no memory."""

_NUMBER: Final = struct.Struct("d")
_HEAD: Final = struct.Struct("<II")
"""Before each key: its length in bytes, and how many numbers it has."""
_USED: Final = struct.Struct("<Q")
"""At the start: the bytes used after it."""

log = structlog.get_logger("gateway.metrics.shared")


class SharedNumbers:
    """Numbers by key. Create it before the fork of the processes that share it."""

    def __init__(self, size: int = SIZE) -> None:
        self._memory = mmap.mmap(-1, size)
        self._view = memoryview(self._memory)
        self._numbers: dict[Key, Numbers] = {}
        self._full = False

    def at(self, key: Key, width: int = 1) -> Numbers:
        """Return the key's numbers, which begin as 0.0; keep them where you count often.

        Where no room is left, they are numbers that are not shared.
        """
        result = self._numbers.get(key)
        if result is None:
            self._numbers.update((known, numbers) for known, numbers in self._walk() if known not in self._numbers)
            result = self._numbers.get(key) or self._numbers.setdefault(key, self._append(key, width))
        return result

    def __iter__(self) -> Iterator[tuple[Key, list[float]]]:
        """Yield all keys with their present numbers."""
        for key, numbers in self._walk():
            yield key, list(numbers)

    def _walk(self) -> Iterator[tuple[Key, Numbers]]:
        start, (used,) = _USED.size, _USED.unpack_from(self._memory)
        while start < _USED.size + used:
            length, width = _HEAD.unpack_from(self._memory, start)
            name = start + _HEAD.size
            numbers = name + _padded(length)
            start = numbers + _NUMBER.size * width
            key = msgspec.json.decode(self._view[name : name + length], type=Key)
            yield key, self._view[numbers:start].cast("d")

    def _append(self, key: Key, width: int) -> Numbers:
        encoded = msgspec.json.encode(key)
        (used,) = _USED.unpack_from(self._memory)
        start = _USED.size + used
        name = start + _HEAD.size
        numbers = name + _padded(len(encoded))
        end = numbers + _NUMBER.size * width
        if end > len(self._memory):
            if not self._full:
                log.error("metrics_full", reason="there is no room for more series: new ones are not exported")
            self._full = True
            return memoryview(bytearray(_NUMBER.size * width)).cast("d")
        _HEAD.pack_into(self._memory, start, len(encoded), width)
        self._memory[name : name + len(encoded)] = encoded
        _USED.pack_into(self._memory, 0, end - _USED.size)  # last: a concurrent reader sees complete entries only
        return self._view[numbers:end].cast("d")


class Histogram:
    """Observations counted in ranges. Its numbers: a count for each bound, one for all above, and the sum."""

    def __init__(self, numbers: Numbers, bounds: Sequence[float]) -> None:
        self._numbers = numbers
        self._bounds = bounds
        self._sum = len(bounds) + 1

    @staticmethod
    def width(bounds: Sequence[float]) -> int:
        """Return how many numbers a histogram with these bounds has."""
        return len(bounds) + 2

    def observe(self, value: float, times: int = 1) -> None:
        """Count one observation, or several of the same value."""
        numbers = self._numbers
        numbers[bisect_left(self._bounds, value)] += times
        numbers[self._sum] += value * times


def _padded(length: int) -> int:
    return -(-length // _NUMBER.size) * _NUMBER.size
