"""Exceptions of plugins: which are contained, and how they are described."""

from __future__ import annotations

import asyncio
from traceback import extract_tb
from typing import Final

PLUGIN_ERRORS: Final = (Exception, SystemExit)
"""What a plugin may raise without ending the process: `SystemExit`, as of `sys.exit()`, would end the worker."""


def describe_error(error: BaseException) -> str:
    """Return the type, the text and the place of an exception that a plugin did not mean for the operator."""
    place = extract_tb(error.__traceback__)[-1]
    return f"{error_text(error)} ({place.filename}, line {place.lineno})"


def error_text(error: BaseException) -> str:
    """Return the type and the text of an exception. A plugin's own exception may fail at giving its text."""
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException:
        return type(error).__name__


def is_cancellation(error: BaseException) -> bool:
    """Return whether this task itself is cancelled, not only a future that a plugin waited for, or is being closed.

    A coroutine that is closed runs in no task, unlike a plugin that raises `GeneratorExit`.
    """
    try:
        task = asyncio.current_task()
    except RuntimeError:  # there is no event loop any more
        task = None
    if isinstance(error, GeneratorExit):
        return task is None
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
