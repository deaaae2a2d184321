"""Numbers that one process writes and others read, in memory shared by a parent process and the children that it forks.

One process at a time writes a set of numbers, without a lock: each number is eight aligned bytes. They outlive the process,
so that its successor continues to count from them.

Where the memory is full, the series of names that the configuration no longer has make room for others. No entry ever moves.

`Family` is one metric: its kind, its labels, and how the numbers of several processes are made one.
"""

from __future__ import annotations

import mmap
import struct
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from gateway.base.log import log

Key = tuple[str, ...]
Numbers: TypeAlias = "memoryview[float]"

SIZE: Final = 1024 * 1024
"""Bytes for all keys and numbers of one process; pages that are not written use no memory."""

_NUMBER: Final = struct.Struct("d")
_HEAD: Final = struct.Struct("<HHI")
"""Before each key: its length in bytes (0: the entry is free), the bytes that it may have, and how many numbers follow."""
_ROOM: Final = 64
"""Keys get a multiple of this many bytes, so that an entry can be used again for another key."""
_USED: Final = struct.Struct("<Q")
"""At the start: the bytes used after it."""

OTHER: Final = "other"
"""Label of models, channels and codes that have no series of their own."""
WAIT_BOUNDS: Final = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class SharedNumbers:
    """Numbers by key. Create it before the fork of the processes that share it."""

    def __init__(self, size: int = SIZE) -> None:
        self._memory = mmap.mmap(-1, size)
        self._view = memoryview(self._memory)
        self._numbers: dict[Key, Numbers] = {}
        self._full = False
        self._keep: Callable[[Key], bool] = lambda key: True
        self._free: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        """Where entries are that may be used again, by room and width."""

    def keep(self, keep: Callable[[Key], bool]) -> None:
        """Forget the keys for which `keep` is false: nothing is counted there any more, and others may use their memory.

        They are exported until another key needs it.
        """
        self._keep = keep
        self._numbers = {key: numbers for key, numbers in self._numbers.items() if keep(key)}
        self._full = False

    def at(self, key: Key, width: int = 1) -> Numbers:
        """Return the key's numbers, which begin as 0.0; keep them where you count often.

        Where no room is left, they are numbers that are not shared.
        """
        result = self._numbers.get(key)
        if result is None:
            result = self._numbers[key] = self._find_or_make(key, width)
        return result

    def __iter__(self) -> Iterator[tuple[Key, list[float]]]:
        """Yield all keys with their present numbers."""
        for start in self._entries():
            encoded, numbers = self._entry(start)
            values = list(numbers)
            if encoded and self._entry(start)[0] == encoded:  # else its writer is using it for another key
                key = _key(encoded)
                if key is not None:
                    yield key, values

    def _entries(self) -> Iterator[int]:
        """Yield where each entry begins."""
        start, end = _USED.size, self._end()
        while start < end:
            yield start
            _, room, width = _HEAD.unpack_from(self._memory, start)
            start += _size(room, width)

    def _entry(self, start: int) -> tuple[bytes, Numbers]:
        """Return the encoded key of an entry, empty for a free one, and its numbers."""
        length, room, width = _HEAD.unpack_from(self._memory, start)
        name = start + _HEAD.size
        numbers = self._view[name + room : start + _size(room, width)].cast("d")
        return self._memory[name : name + length], numbers

    def _end(self) -> int:
        (used,) = _USED.unpack_from(self._memory)
        return _USED.size + int(used)

    def _find_or_make(self, key: Key, width: int) -> Numbers:
        encoded = msgspec.json.encode(key)
        room = -(-len(encoded) // _ROOM) * _ROOM
        head, end = _HEAD.pack(len(encoded), room, width), self._end()
        start = self._memory.find(head + encoded, _USED.size, end)
        if start >= 0:
            return self._entry(start)[1]
        if end + _size(room, width) <= len(self._memory):
            self._write(end, head, encoded)
            # last: a concurrent reader sees complete entries only
            _USED.pack_into(self._memory, 0, end + _size(room, width) - _USED.size)
            return self._entry(end)[1]
        fresh = memoryview(bytearray(_NUMBER.size * width)).cast("d")
        if not (start := self._reusable(room, width)):
            return fresh
        _HEAD.pack_into(self._memory, start, 0, room, width)
        self._entry(start)[1][:] = fresh
        self._write(start, head, encoded)
        return self._entry(start)[1]

    def _write(self, start: int, head: bytes, encoded: bytes) -> None:
        name = start + _HEAD.size
        self._memory[name : name + len(encoded)] = encoded
        self._memory[start:name] = head

    def _reusable(self, room: int, width: int) -> int:
        """Return where an entry of this size is that is not needed; 0 if there is none, which is logged once."""
        if not self._full and not self._free[room, width]:
            self._free.clear()
            for start in self._entries():
                _, its_room, its_width = _HEAD.unpack_from(self._memory, start)
                if self._unneeded(start):
                    self._free[its_room, its_width].append(start)
        starts = self._free[room, width]
        while starts:
            start = starts.pop()
            if self._unneeded(start):  # its channel may have come back
                return start
        if not self._full:
            log.error("metrics_full", reason="there is no room for more series: new ones are not exported")
        self._full = True
        return 0

    def _unneeded(self, start: int) -> bool:
        encoded = self._entry(start)[0]
        key = _key(encoded) if encoded else None
        return key is None or not self._keep(key)


class SharedHistogram:
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


def _key(encoded: bytes) -> Key | None:
    """Return the key of an entry; None where it cannot be read, which must stop neither a process nor an export."""
    try:
        return msgspec.json.decode(encoded, type=Key)
    except msgspec.MsgspecError:
        return None


def _size(room: int, width: int) -> int:
    """Return the bytes of an entry."""
    return _HEAD.size + room + _NUMBER.size * width


class Family(msgspec.Struct, frozen=True):
    """One metric. `merge` makes one number of those of several processes; without it each has the label `process`.

    Of one with `states`, the last label is the state: each has a series, 1 for the present one. None has while the number is 0.
    """

    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    merge: Callable[[Iterable[float]], float] | None = sum
    states: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        """How many numbers one series has."""
        return SharedHistogram.width(self.bounds) if self.kind == "histogram" else 1
