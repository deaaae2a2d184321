"""The loggers of the modules. structlog is imported when something is logged: commands that log nothing start faster without it."""

from __future__ import annotations

from typing import Any


class Logger:
    """The logger of structlog with this name, which takes an event and fields: `log.warning("store_away", reason=...)`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Any:
        import structlog

        return getattr(structlog.get_logger(self._name), method)
