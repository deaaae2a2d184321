"""The terminal of `gateway serve`: welcome (processes, addresses, next steps), a line for each ended request, lines of the stop.

A line has time, account, model, status, first byte, duration, charge, id. A process of its own follows the files of the usage
log, so a request costs the same with these lines as without. A terminal that is paused, or slow, holds up nothing else.
"""

from __future__ import annotations

import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final, TextIO

import msgspec

from gateway.admin.actions.links import base
from gateway.base.amounts import amount
from gateway.base.log import log
from gateway.base.text import counted, printable
from gateway.config.schema import Config
from gateway.domain.exchange import Outcome
from gateway.metrics.shared import SharedNumbers
from gateway.runtime.logs import CLOCK
from gateway.serve.demo import Opened
from gateway.usage import queries
from gateway.usage.home import Home
from gateway.usage.record import Record

LAST = "Stop with Ctrl-C; balances are kept."

COLUMNS: Final = "time, account, model, status, first byte, duration, charge, x-request-id"
LOGGED: Final = (
    *("arrived_at", "operation", "account", "token_id", "model", "channel", "status", "outcome", "error_code"),
    *("prompt_tokens", "completion_tokens", "charge_micros", "first_byte_ms", "duration_ms", "address", "tags"),
)
"""The fields of a line of the log, beside `request_id`."""
POLL_S: Final = 0.25
AT_ONCE: Final = 25
"""Lines that are written of the requests that ended between two looks; the rest are counted."""

SILENT_S: Final = 0.3
"""A shorter stop says nothing. Within this time each worker has counted its open exchanges."""


def program() -> str:
    """Return how this program was called, so that a command can be pasted into the same folder."""
    return shlex.quote(sys.argv[0]) if sys.argv[0].endswith("gateway") else "gateway"


def demo(config: Config, opened: Opened, base_url: str, path: Path) -> str:
    """Return what a newcomer needs for a first request to the demo, and to see what became of it."""
    message = {"role": "user", "content": "Tell me a story"}
    body = msgspec.json.encode({"model": next(iter(config.models)), "stream": True, "messages": [message]}).decode()
    pages = "Open the pages; this link lets one person in, once, within ten minutes:"
    portal = "What callers see of their own use; enter with the token:"
    given = f"--config {shlex.quote(str(path))}"
    return "\n".join(
        [
            "This is the demo: a gateway, its store, and an upstream that streams words.",
            "",
            f"  base address  {base_url}",
            f"  token         {opened.token}",
            "",
            "Paste this into another terminal (-N shows each word as it comes, -i the head):",
            "",
            f"  curl -iN {base_url}/chat/completions \\",
            f"    -H 'Authorization: Bearer {opened.token}' -H 'Content-Type: application/json' \\",
            f"    -d {shlex.quote(body)}",
            "",
            "Then look at each request that ends, at what became of one (ID is its",
            "x-request-id), and at what is left of the balance:",
            "",
            f"  {program()} usage tail {given}",
            f"  {program()} trace ID {given}",
            f"  {program()} account show {opened.account} {given}",
            "",
            *([pages, "", f"  {opened.link}", ""] if opened.link else ()),
            *([portal, "", f"  {base(config.portal.listen)}/my", ""] if config.portal else ()),
        ]
    )


def on_terminal(config: Config, *, recorded: bool) -> str:
    """Return what a person at the terminal will see next. `recorded`: the chain writes the usage log."""
    lines = []
    if config.admin is not None:
        lines.append(f"The operator's port is {config.admin}: `{program()} admin link` lets you in at its pages,")
        lines.append(f"and programs use it with the token in {config.data_path / 'admin.token'}.")
    if recorded:
        lines += ["Each request that has ended is a line here:", f"{COLUMNS}."]
    return "\n".join(lines)


def work(home: Home, output: TextIO | None = None, *, log_of: str = "") -> Callable[[Callable[[], None]], None]:
    """Return the work of a child that writes the lines of a usage log to standard error until SIGTERM, the last ones after it.

    `log_of`: the gateway whose requests are lines of the log, as JSON; the requests of all of them are lines for a terminal.
    """

    def follow(ready: Callable[[], None]) -> None:
        stopping = False

        def stop(_: int, __: FrameType | None) -> None:
            nonlocal stopping
            stopping = True

        tail = queries.Tail(home)
        signal.signal(signal.SIGTERM, stop)
        ready()
        try:
            while True:
                last = stopping
                ended = [record for _, record in tail.poll()]
                if log_of:
                    _log(record for record in ended if record.gateway == log_of)
                else:
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


def _log(ended: Iterable[Record]) -> None:
    for record in ended:
        log.info("request_ended", request_id=record.id, **{name: getattr(record, name) for name in LOGGED})


def _write(ended: Sequence[Record], output: TextIO) -> None:
    for record in ended[:AT_ONCE]:
        output.write(f"{line_of(record)}\n")
    if len(ended) > AT_ONCE:
        output.write(f"... and {len(ended) - AT_ONCE} more requests: `gateway usage list` has all of them\n")
    output.flush()


class Farewell:
    """Reports the open requests that the stop of a gateway waits for. Call `look` again and again meanwhile."""

    def __init__(
        self, numbers: Iterable[SharedNumbers], drain_s: float, say: Callable[[str], None] | None = None
    ) -> None:
        """Read the open requests from the workers' `numbers`. `say` writes a line; without it, to standard error."""
        self._numbers = list(numbers)
        self._drain_s = drain_s
        self._say = say or partial(print, file=sys.stderr, flush=True)
        self._said = ""
        self._began: float | None = None

    def look(self, *, cut: bool) -> None:
        """Say how many requests are open, if the line differs from the last one. `cut`: the streams are being cut."""
        if self._began is None:
            self._began = time.monotonic()
        if time.monotonic() - self._began < SILENT_S and not cut:
            return
        requests, streams = (
            sum(each.sum(name) for each in self._numbers) for name in ("open_requests", "open_streams")
        )
        what = "stream" if streams >= requests else "request"
        many = counted(requests, what)
        text = ""
        if cut:
            text = "the open streams are cut; each gets an error, and is charged for what it was sent"
        elif requests:
            them = "it" if requests == 1 else "them"
            text = f"waiting for {many}, up to {self._drain_s:g} s; Ctrl-C again cuts {them}"
        if text and text != self._said:
            self._line(text)

    def end(self, folder: Path) -> None:
        """Say that the gateway has stopped, and where its data is."""
        self._line(f"stopped; balances and records are in {folder}")

    def _line(self, text: str) -> None:
        """Say a line, the first one below the `^C` that a terminal shows."""
        self._say(text if self._said else f"\n{text}")
        self._said = text
