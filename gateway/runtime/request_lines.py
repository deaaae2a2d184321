"""On a terminal, a line for each request that has ended: time, account, model, status, first byte, duration, charge, id.

A process of its own follows the files of the usage log, so a request costs the same with these lines as without. A terminal that
is paused, or slow, holds up nothing else.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Final, TextIO

from gateway.amounts import amount
from gateway.exchange import Outcome
from gateway.runtime.logs import CLOCK, printable
from gateway.usage import queries
from gateway.usage.record import Record

COLUMNS: Final = "time, account, model, status, first byte, duration, charge, x-request-id"
POLL_S: Final = 0.25
AT_ONCE: Final = 25
"""Lines that are written of the requests that ended between two looks; the rest are counted."""


def work(folder: Path, output: TextIO | None = None) -> Callable[[Callable[[], None]], None]:
    """Return the work of a child that writes the lines of a usage log to standard error until SIGTERM, the last ones after it."""

    def follow(ready: Callable[[], None]) -> None:
        stopping = False

        def stop(_: int, __: FrameType | None) -> None:
            nonlocal stopping
            stopping = True

        tail = queries.Tail(folder)
        signal.signal(signal.SIGTERM, stop)
        ready()
        try:
            while True:
                last = stopping
                ended = [record for _, record in tail.poll()]
                _write(ended, sys.stderr if output is None else output)
                if last and not ended:
                    return
                if not ended:
                    time.sleep(POLL_S)
        except OSError:  # the terminal is gone
            while not stopping:
                time.sleep(POLL_S)

    return follow


def line_of(record: Record) -> str:
    """Return the line of a request that has ended."""
    why = record.error_code or ("" if record.outcome in (None, Outcome.COMPLETED) else record.outcome)
    if record.operation == "counted":
        why = f"{why} and {record.events - 1} more like it"
    cells = (
        datetime.fromisoformat(record.arrived_at).astimezone().strftime(CLOCK),
        record.account or "-",
        record.model or record.operation or "-",
        f"{record.status or '-'} {why}".rstrip(),
        "-" if record.first_byte_ms is None else in_words(record.first_byte_ms),
        in_words(record.duration_ms),
        amount(record.charge_micros),
        record.id,
    )
    return printable("  ".join(cells))


def in_words(ms: int) -> str:
    """Return a duration: `12 ms`, `2.1 s`."""
    return f"{ms} ms" if ms < 1000 else f"{ms / 1000:.1f} s"


def _write(ended: Sequence[Record], output: TextIO) -> None:
    for record in ended[:AT_ONCE]:
        output.write(f"{line_of(record)}\n")
    if len(ended) > AT_ONCE:
        output.write(f"... and {len(ended) - AT_ONCE} more requests: `gateway usage list` has all of them\n")
    output.flush()
