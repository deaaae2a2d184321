"""Logs: one record a line, JSON where nobody looks, colours where somebody does. Control characters are escaped, lines capped."""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Final

import structlog

LONGEST_VALUE: Final = 2000


def configure(*, json: bool | None = None) -> None:
    """Set up logging for this process; `json` defaults to whether standard error is no terminal."""
    as_json = not sys.stderr.isatty() if json is None else json
    plain = structlog.dev.plain_traceback  # the default shows local variables, and a token may be among them
    renderer: Any = (
        structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer(exception_formatter=plain)
    )
    tracebacks: list[Any] = [structlog.processors.format_exc_info] if as_json else []
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *tracebacks,
            _tamed,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(level=logging.WARNING, handlers=[_ToStructlog()], force=True)


def _tamed(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for key, value in event.items():
        if isinstance(value, str) and key != "exception":
            short = value if len(value) <= LONGEST_VALUE else value[:LONGEST_VALUE] + "..."
            event[key] = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in short)
    return event


class _ToStructlog(logging.Handler):
    """What libraries log through the standard module, in the same form."""

    def emit(self, record: logging.LogRecord) -> None:
        exc_info = record.exc_info if record.exc_info and record.exc_info[0] is not None else None
        structlog.get_logger(record.name).log(record.levelno, record.getMessage(), exc_info=exc_info)
