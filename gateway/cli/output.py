"""Standard output that may be closed before a command's end, as by `gateway usage export | head -1`, or accept no more.

Python ignores SIGPIPE, because a connection to a store may break, too. Here only standard output is meant.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.cli import exits


class OutputClosed(BaseException):
    """Nothing reads standard output any more. Not an `OSError`, which libraries take for a failure of their own and print."""


class OutputFailed(BaseException):
    """Standard output accepts no more: the disk is full, for example."""


class _Output(io.FileIO):
    """Standard output, whose end is not an error to report."""

    ended = False

    def write(self, data: object) -> int:
        if self.ended:
            return len(memoryview(data).cast("B"))  # type: ignore[arg-type]
        try:
            return super().write(data)  # type: ignore[arg-type]
        except BrokenPipeError:
            self.ended = True
            raise OutputClosed from None
        except OSError as error:
            self.ended = True
            raise OutputFailed(error.strerror) from None


@contextmanager
def ending_by_sigpipe() -> Iterator[None]:
    """Write standard output so that a command ends by SIGPIPE once nothing reads it, after everything that it does at its end."""
    stdout = sys.stdout
    if stdout is None:  # closed before the start
        yield
        return
    output = _Output(stdout.fileno(), "wb", closefd=False)
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(output), stdout.encoding, stdout.errors, line_buffering=stdout.isatty()
    )
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OutputFailed as error:
        raise SystemExit(
            exits.failed(f"standard output: {error}; the output is not whole", "refused").exit_code
        ) from None
    except OutputClosed:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGPIPE)
