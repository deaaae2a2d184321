"""End of a command: exit codes with the error on one line, and standard output that is closed or accepts no more.

Python ignores SIGPIPE, because a connection to a store may break, too. Here only standard output is meant.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

import msgspec
import typer

from gateway.base.text import shown

if TYPE_CHECKING:
    from gateway.base.errors import GatewayError

EXIT_CODES: Final = {
    "refused": (1, "refused, or a check found something wrong"),
    "misconfigured": (2, "wrong usage or a wrong configuration"),
    "not_found": (3, "an account, a token, a channel, a group or a request is not there"),
    "exists": (4, "it exists already"),
    "conflict": (5, "the transaction was booked before with another amount"),
    "store_away": (6, "the store does not answer: try again"),
}
"""Kinds of errors with their exit codes, and what they mean. 0 means that the work is done."""
AS_JSON: Final[ContextVar[bool]] = ContextVar("AS_JSON", default=False)

DEMO_NAMED: Final[ContextVar[bool]] = ContextVar("DEMO_NAMED", default=False)
"""Whether a command has said that it uses the demo's file."""

SERVES: Final[ContextVar[bool]] = ContextVar("SERVES", default=False)
"""`serve` ends with 1 where a later start may succeed: supervisors know no other code."""


def look_at(arguments: Sequence[str]) -> None:
    """Learn from a command line whether errors are printed as JSON."""
    AS_JSON.set("--json" in arguments)
    DEMO_NAMED.set(False)
    SERVES.set(list(arguments[:1]) == ["serve"])


def refuse(text: str, kind: str = "refused") -> typer.Exit:
    """Print an error, and return the exit to be raised. With `--json` it is `{"error": {"kind", "message"}}` on one line."""
    text = shown(text)
    line = f"gateway: {text}"
    if AS_JSON.get():
        line = msgspec.json.encode({"error": {"kind": kind, "message": text}}).decode()
    typer.echo(line, err=True)
    return typer.Exit(1 if SERVES.get() and kind == "store_away" else EXIT_CODES[kind][0])


def failed_with(error: GatewayError) -> typer.Exit:
    """Print an error of the gateway, and return the exit to be raised."""
    from gateway.admin.actions.action import in_own_words
    from gateway.base.errors import Refused

    told = in_own_words(error) if isinstance(error, Refused) else error
    return refuse(str(told), told.kind)


def in_words() -> str:
    """Return the exit codes for `--help`."""
    return "\n".join(f"  {code}: {meaning}" for code, meaning in [(0, "done"), *EXIT_CODES.values()])


class OutputEnded(BaseException):
    """Standard output accepts no more; without a text, nothing reads it. Not an `OSError`, which libraries take for their own."""


class _Output(io.FileIO):
    """Standard output, whose end is not an error to report."""

    ended = False

    def write(self, data: object) -> int:
        if self.ended:
            return len(memoryview(data).cast("B"))  # type: ignore[arg-type]
        try:
            return super().write(data)  # type: ignore[arg-type]
        except OSError as error:
            self.ended = True
            raise OutputEnded("" if isinstance(error, BrokenPipeError) else error.strerror) from None


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
    except OutputEnded as error:
        if str(error):
            raise SystemExit(refuse(f"standard output: {error}; the output is not whole").exit_code) from None
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGPIPE)
