"""Forked process for one task, which writes its result into a pipe: code that hangs, exits or crashes there hurts no other."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec

POLL_INTERVAL_S: Final = 0.05
PR_SET_PDEATHSIG: Final = 1


class Forked:
    """The forked process as its parent sees it: the bytes it has written so far, and its exit code once it has ended.

    The code is negative for the number of a signal.
    """

    def __init__(self, work: Callable[[int], object], *, session: bool = False) -> None:
        """Fork a process that calls `work` with the descriptor to write to; it ends with this one.

        `session`: it has a session of its own, and what it has started is killed with it.
        """
        self.written = b""
        self.code: int | None = None
        self._session = session
        self._pipe, writing = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                if session:
                    os.setsid()
                end_with(parent, signal.SIGKILL)
                work(writing)
            finally:
                os._exit(1)
        os.close(writing)
        os.set_blocking(self._pipe, False)

    @property
    def ending(self) -> str:
        """How it ended, in words."""
        code = self.code or 0
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    def wait(self) -> None:
        """Wait a moment for what it writes."""
        with suppress(InterruptedError):
            select.select([self._pipe], [], [], POLL_INTERVAL_S)

    def has_ended(self) -> bool:
        """Read what it has written, and return whether it has ended."""
        if self.code is None:
            ended, status = os.waitpid(self._pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if ended else None
        if self._pipe >= 0:
            with suppress(BlockingIOError):
                while data := os.read(self._pipe, 65536):
                    self.written += data
        return self.code is not None

    def close(self) -> None:
        """Kill it if it still runs. May be called again."""
        if self._pipe < 0:
            return
        os.close(self._pipe)
        self._pipe = -1
        if self._session:
            with suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)
        if self.code is None:
            os.kill(self._pid, signal.SIGKILL)  # it may have no session yet
            self.code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])


def write_line(descriptor: int, line: msgspec.Struct) -> None:
    """Write a line of JSON."""
    with open(descriptor, "wb", closefd=False) as pipe:
        pipe.write(msgspec.json.encode(line) + b"\n")


def plain(text: str) -> str:
    """Return text without lone surrogates, which cannot be encoded."""
    return text.encode("utf-8", "backslashreplace").decode()


def end_with(parent: int, number: int) -> None:
    """Have this process get a signal when its parent ends. End at once where it has ended. Only Linux can do that."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:
            os._exit(1)
