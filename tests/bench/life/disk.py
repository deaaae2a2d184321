"""A small disk for the gateway's data, which can be made full: a tmpfs that only this process and its children see."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

CLONE_NEWNS, MS_REMOUNT, MS_REC, MS_PRIVATE = 0x20000, 0x20, 0x4000, 1 << 18
MNT_DETACH = 2
MIB = 1 << 20


class SmallDisk:
    """A tmpfs at `folder`. `full()` shrinks it to what is in use, `roomy()` gives the room back."""

    def __init__(self, folder: Path, mib: int) -> None:
        """Mount it in a mount namespace of its own, which ends with its last process. Raises `OSError` where that is refused."""
        self._folder = folder
        self._mib = mib
        if sys.platform != "linux":
            raise OSError("only Linux has mount namespaces")
        self._libc = ctypes.CDLL(None, use_errno=True)
        _checked(self._libc.unshare(CLONE_NEWNS))
        _checked(self._libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))
        self._mount(0, mib * MIB)

    def full(self) -> None:
        """Leave no room."""
        status = os.statvfs(self._folder)
        used = (status.f_blocks - status.f_bfree) * status.f_frsize
        self._mount(MS_REMOUNT, used)

    def roomy(self) -> None:
        """Leave room again."""
        self._mount(MS_REMOUNT, self._mib * MIB)

    def leave(self) -> None:
        """Unmount it. What still has a file open keeps it."""
        _checked(self._libc.umount2(bytes(self._folder), MNT_DETACH))

    def _mount(self, flags: int, size: int) -> None:
        _checked(self._libc.mount(b"tmpfs", bytes(self._folder), b"tmpfs", flags, b"size=%d" % size))


def _checked(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
