"""Numbers that one process writes and others read: memory shared by a parent and all that it forks.

One process writes a set of cells at a time, without a lock: each number is eight aligned bytes. They outlive their
writer, so that the successor of a process that died counts on.
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
"""Bytes for all keys and numbers of one process; what is not written costs no memory."""

_HEAD: Final = struct.Struct("<II")
_USED: Final = struct.Struct("<Q")

log = structlog.get_logger("gateway.metrics.shared")


class SharedNumbers:
    """Numbers by key. To be made before the fork of those who share them."""

    def __init__(self, size: int = SIZE) -> None:
        self._memory = mmap.mmap(-1, size)
        self._view = memoryview(self._memory)
        self._places: dict[Key, Numbers] = {}
        self._full = False

    def at(self, key: Key, width: int = 1) -> Numbers:
        """The key's numbers, at first 0.0; to be kept by whoever counts often. Where no room is left they are told to nobody."""
        found = self._places.get(key)
        if found is None:
            self._places.update((known, numbers) for known, numbers in self._walk() if known not in self._places)
            found = self._places.get(key) or self._places.setdefault(key, self._append(key, width))
        return found

    def __iter__(self) -> Iterator[tuple[Key, list[float]]]:
        """All keys with their numbers, as they are now."""
        for key, numbers in self._walk():
            yield key, list(numbers)

    def _walk(self) -> Iterator[tuple[Key, Numbers]]:
        place, (used,) = _USED.size, _USED.unpack_from(self._memory)
        while place < _USED.size + used:
            length, width = _HEAD.unpack_from(self._memory, place)
            name, numbers = place + _HEAD.size, place + _HEAD.size + _padded(length)
            place = numbers + 8 * width
            yield msgspec.json.decode(self._view[name : name + length], type=Key), self._view[numbers:place].cast("d")

    def _append(self, key: Key, width: int) -> Numbers:
        name = msgspec.json.encode(key)
        (used,) = _USED.unpack_from(self._memory)
        place = _USED.size + used
        numbers = place + _HEAD.size + _padded(len(name))
        end = numbers + 8 * width
        if end > len(self._memory):
            if not self._full:
                log.error("metrics_full", reason="more series than there is room for: what is new is not told")
            self._full = True
            return memoryview(bytearray(8 * width)).cast("d")
        _HEAD.pack_into(self._memory, place, len(name), width)
        self._memory[place + _HEAD.size : place + _HEAD.size + len(name)] = name
        _USED.pack_into(self._memory, 0, end - _USED.size)  # last: who reads meanwhile sees whole entries
        return self._view[numbers:end].cast("d")


class Histogram:
    """Observations counted in ranges. Its numbers: one count for each bound, one for what is above, and the sum."""

    def __init__(self, numbers: Numbers, bounds: Sequence[float]) -> None:
        self._numbers = numbers
        self._bounds = bounds
        self._sum = len(bounds) + 1

    def observe(self, value: float, times: int = 1) -> None:
        """Count one, or several of the same value."""
        numbers = self._numbers
        numbers[bisect_left(self._bounds, value)] += times
        numbers[self._sum] += value * times


def _padded(length: int) -> int:
    return -(-length // 8) * 8
