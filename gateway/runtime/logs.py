"""Logging of one process: each record is one line, JSON or, on a terminal, text with the local time, coloured unless `NO_COLOR`
is set.

Control characters are escaped, and long values are cut. Lines that repeat are left out beyond `BURST`, so that what callers
and upstreams do does not fill the disk; the next such line that is written says how many were.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import Counter
from collections.abc import MutableMapping
from typing import Any, Final

import structlog

from gateway.base.amounts import amount
from gateway.base.leaky_buckets import LeakyBuckets
from gateway.base.text import printable, without_credentials

MAX_VALUE_LENGTH: Final = 2000
BURST: Final = 100
"""Lines of one kind that may come at once. After those, one a second is written."""
KIND: Final = ("level", "channel", "plugin", "hook", "child", "work")
"""The fields whose values, beside the event, say of which kind a line is."""
FORMAT: Final = "_format"
"""The field for the text of a library's line before values are put into it."""
ALL_WRITTEN: Final = frozenset({"journal_not_written", "request_ended"})
"""Events of which each line is needed: it names a charge that is nowhere else, or was asked for."""
CLOCK: Final = "%H:%M:%S"
"""The format of times on a terminal."""
SAID_IN_WORDS: Final = frozenset({"admin_port_served", "portal_port_served", "event_path", "stopping", "stopped"})
"""Events that have no line on a terminal: `gateway serve` prints its own sentences about them there."""


def configure(*, json: bool | None = None) -> None:
    """Set up logging to standard error for this process. `json` defaults to whether that is not a terminal."""
    as_json = not on_terminal() if json is None else json
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            Repetitions(),
            *(_for_programs() if as_json else _for_people()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(level=logging.WARNING, handlers=[_StructlogHandler()], force=True)


def on_terminal() -> bool:
    """Return whether a person reads the log of this process."""
    return sys.stderr.isatty()


def _for_programs() -> list[Any]:
    stamp = structlog.processors.TimeStamper(fmt="iso", utc=True)
    return [stamp, structlog.processors.format_exc_info, _sanitize, structlog.processors.JSONRenderer()]


def _for_people() -> list[Any]:
    stamp = structlog.processors.TimeStamper(fmt=CLOCK, utc=False)
    plain = structlog.dev.plain_traceback  # the default shows local variables, which may include a token
    colors = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return [
        _leave_out,
        stamp,
        _in_currency,
        structlog.processors.format_exc_info,
        _sanitize,
        structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=plain),
    ]


def _leave_out(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    if event.get("event") in SAID_IN_WORDS:
        raise structlog.DropEvent
    return event


def _in_currency(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Show amounts as people read them: `charged_micros=25` is `charged=0.000025`."""
    for name in [name for name, value in event.items() if name.endswith("_micros") and isinstance(value, int)]:
        event[name.removesuffix("_micros")] = amount(event.pop(name))
    return event


class Repetitions:
    """Leaves out lines of a kind of which there were too many, and counts them in `left_out` of the next that is written."""

    def __init__(self) -> None:
        self._lines = LeakyBuckets(BURST, BURST, monotonic=time.monotonic)
        self._left_out = Counter[str]()

    def __call__(self, _: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Return the record. Raises `structlog.DropEvent` for one that is left out."""
        if event.get("event") in ALL_WRITTEN:
            return event
        kind = repr([event.pop(FORMAT, event.get("event")), *(str(event.get(field)) for field in KIND)])
        if self._lines.add(kind):
            self._left_out[kind] += 1
            raise structlog.DropEvent
        if left_out := self._left_out.pop(kind, 0):
            event["left_out"] = left_out
        return event


def _sanitize(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Escape unprintable characters in all values but tracebacks, and cut long ones. Leave out credentials.

    An exception of a plugin or of a library may have a header of the caller in its text.
    """
    for key, value in event.items():
        if key == "exception":
            event[key] = without_credentials(value)
        elif isinstance(value, str):
            text = without_credentials(value)
            short = text if len(text) <= MAX_VALUE_LENGTH else text[:MAX_VALUE_LENGTH] + "..."
            event[key] = printable(short)
    return event


class _StructlogHandler(logging.Handler):
    """Passes records of the standard `logging` module, which libraries use, to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        exc_info = record.exc_info if record.exc_info and record.exc_info[0] is not None else None
        structlog.get_logger(record.name).log(
            record.levelno, record.getMessage(), exc_info=exc_info, **{FORMAT: record.msg}
        )
