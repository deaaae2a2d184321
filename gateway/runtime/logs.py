"""Logging of one process: each record is one line, JSON or, on a terminal, coloured text.

Control characters are escaped, and long values are cut. Lines that repeat are left out beyond `BURST`, so that what callers
and upstreams do does not fill the disk; the next such line that is written says how many were.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import OrderedDict
from collections.abc import MutableMapping
from typing import Any, Final

import structlog

MAX_VALUE_LENGTH: Final = 2000
BURST: Final = 100
"""Lines of one kind that may come at once. After those, one a second is written."""
KIND: Final = ("level", "channel", "plugin", "hook", "child", "work")
"""The fields whose values, beside the event, say of which kind a line is."""
FORMAT: Final = "_format"
"""The field for the text of a library's line before values are put into it."""
MAX_KINDS: Final = 1000
ALL_WRITTEN: Final = frozenset({"journal_not_written"})
"""Events of which each line is needed: it names a charge that is nowhere else."""


def configure(*, json: bool | None = None) -> None:
    """Set up logging to standard error for this process. `json` defaults to whether that is not a terminal."""
    as_json = not sys.stderr.isatty() if json is None else json
    plain = structlog.dev.plain_traceback  # the default shows local variables, which may include a token
    renderer: Any = (
        structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer(exception_formatter=plain)
    )
    tracebacks: list[Any] = [structlog.processors.format_exc_info] if as_json else []
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            Repetitions(),
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *tracebacks,
            _sanitize,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(level=logging.WARNING, handlers=[_StructlogHandler()], force=True)


class Repetitions:
    """Leaves out lines of a kind of which there were too many, and counts them in `left_out` of the next that is written."""

    def __init__(self) -> None:
        self._kinds: OrderedDict[tuple[object, ...], _Kind] = OrderedDict()

    def __call__(self, _: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Return the record. Raises `structlog.DropEvent` for one that is left out."""
        if event.get("event") in ALL_WRITTEN:
            return event
        name = (event.pop(FORMAT, event.get("event")), *(str(event.get(field)) for field in KIND))
        kind = self._kinds.setdefault(name, _Kind())
        self._kinds.move_to_end(name)
        if len(self._kinds) > MAX_KINDS:
            self._kinds.popitem(last=False)
        now = time.monotonic()
        drained_at = max(now, kind.drained_at) + 1
        if drained_at - now > BURST:
            kind.left_out += 1
            raise structlog.DropEvent
        kind.drained_at = drained_at
        if kind.left_out:
            event["left_out"], kind.left_out = kind.left_out, 0
        return event


class _Kind:
    """The lines of one kind: when none will count any more (a leaky bucket), and how many were left out."""

    __slots__ = ("drained_at", "left_out")

    def __init__(self) -> None:
        self.drained_at = 0.0
        self.left_out = 0


def _sanitize(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Escape what is not printable in all values but tracebacks, and cut long ones."""
    for key, value in event.items():
        if isinstance(value, str) and key != "exception":
            short = value if len(value) <= MAX_VALUE_LENGTH else value[:MAX_VALUE_LENGTH] + "..."
            event[key] = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in short)
    return event


class _StructlogHandler(logging.Handler):
    """Passes records of the standard `logging` module, which libraries use, to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        exc_info = record.exc_info if record.exc_info and record.exc_info[0] is not None else None
        structlog.get_logger(record.name).log(
            record.levelno, record.getMessage(), exc_info=exc_info, **{FORMAT: record.msg}
        )
