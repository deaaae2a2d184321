"""Logging of one process: each record is one line, JSON or, on a terminal, coloured text.

Control characters are escaped, and long values are cut.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Final

import structlog

MAX_VALUE_LENGTH: Final = 2000


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
        structlog.get_logger(record.name).log(record.levelno, record.getMessage(), exc_info=exc_info)
