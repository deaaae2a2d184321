"""The logger of all modules. structlog is imported when something is logged: commands that log nothing start faster without it."""

from __future__ import annotations

from traceback import walk_tb
from typing import Any, Final


class _Logger:
    """The logger of structlog, which takes an event and fields: `log.warning("store_away", reason=...)`."""

    def __getattr__(self, method: str) -> Any:
        import structlog

        return getattr(structlog.get_logger(), method)


log: Final = _Logger()


def place_of(error: BaseException, file: str = "") -> str:
    """Return the last line of `file` in the traceback of an error, as `FILE, line N`; empty where it has none.

    Without `file`, it is the outermost file that is not the gateway's: of a library's error, the one that called the library.
    """
    place = ""
    for frame, line in walk_tb(error.__traceback__):
        name = frame.f_code.co_filename
        module = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if not file and module not in ("gateway", "importlib", "_frozen_importlib"):
            file = name
        if name == file:
            place = f"{name}, line {line}"
    return place
