"""Numbers that one process writes and others read, in memory shared by a parent process and the children that it forks.

One process at a time writes a set of numbers, without a lock: each number is eight aligned bytes. They outlive the process,
so that its successor continues to count from them. No entry moves, and none is removed.

`Family` is one metric: its kind, its labels, and how the numbers of several processes are made one.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Literal

import msgspec

from gateway.base.log import log
from gateway.metrics.series import Numbers, histogram_width

Key = tuple[str, ...]

SIZE: Final = 1024 * 1024
"""Bytes for all keys and numbers of one process; pages that are not written use no memory."""

_NUMBER: Final = struct.Struct("d")
_HEAD: Final = struct.Struct("<II")
"""Before each key, which is padded to eight bytes: its length, and how many numbers follow."""
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
        start, end = _USED.size, self._end()
        while start < end:
            encoded, numbers, start = self._entry(start)
            if (key := _key(encoded)) is not None:
                yield key, list(numbers)

    def sum(self, name: str) -> int:
        """Return the sum of the first numbers of the keys that begin with a name."""
        return int(sum(numbers[0] for key, numbers in self if key[0] == name))

    def _entry(self, start: int) -> tuple[bytes, Numbers, int]:
        """Return the encoded key of an entry, its numbers, and where the next one begins."""
        length, width = _HEAD.unpack_from(self._memory, start)
        name = start + _HEAD.size
        first, end = name + _padded(length), name + _padded(length) + _NUMBER.size * width
        return self._memory[name : name + length], self._view[first:end].cast("d"), end

    def _end(self) -> int:
        (used,) = _USED.unpack_from(self._memory)
        return _USED.size + int(used)

    def _find_or_make(self, key: Key, width: int) -> Numbers:
        encoded = msgspec.json.encode(key)
        whole, end = _HEAD.pack(len(encoded), width) + encoded, self._end()
        start = self._memory.find(whole, _USED.size, end)
        if start < 0:
            size = _HEAD.size + _padded(len(encoded)) + _NUMBER.size * width
            if end + size > len(self._memory):
                if not self._full:
                    log.error("metrics_full", reason="there is no room for more series: new ones are not exported")
                self._full = True
                return memoryview(bytearray(_NUMBER.size * width)).cast("d")
            start = end
            self._memory[start : start + len(whole)] = whole
            # last: a concurrent reader sees complete entries only
            _USED.pack_into(self._memory, 0, end + size - _USED.size)
        return self._entry(start)[1]


def _key(encoded: bytes) -> Key | None:
    """Return the key of an entry; None where it cannot be read, which must stop neither a process nor an export."""
    try:
        return msgspec.json.decode(encoded, type=Key)
    except msgspec.MsgspecError:
        return None


def _padded(length: int) -> int:
    return -(-length // 8) * 8


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
        return histogram_width(self.bounds) if self.kind == "histogram" else 1
