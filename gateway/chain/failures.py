"""Exceptions of plugins: which are contained, and how they are described."""

from __future__ import annotations

import asyncio
from traceback import walk_tb
from types import FrameType
from typing import Final

from gateway.chain.entry import name_of
from gateway.chain.hooks import HOOKS
from gateway.exchange import Exchange
from gateway.log import Logger, place_of
from gateway.plugin import Plugin

PLUGIN_ERRORS: Final = (Exception, SystemExit)
"""What a plugin may raise without ending the process: `SystemExit`, as of `sys.exit()`, would end the worker."""


def describe_error(error: BaseException) -> str:
    """Return the type, the text and the place of an exception that a plugin did not mean for the operator."""
    at = origin_of(error).get("at")
    return f"{error_text(error)} ({at})" if at else error_text(error)


def origin_of(error: BaseException, plugin: str = "", hook: str = "") -> dict[str, str]:
    """Return where in a plugin an exception comes from, as fields of a log line: `plugin`, `hook` and `at`, a file and a line.

    `plugin` and `hook` are what is known of it. Of a library's exception, `at` is the line of the plugin that called the library.
    """
    file, failed = "", error.__cause__ if isinstance(error.__cause__, SystemExit) else error
    for frame, _ in walk_tb(failed.__traceback__):
        code = frame.f_code
        if code.co_name in HOOKS and (owner := _plugin_of(frame)) is not None:
            plugin, hook, file = plugin or name_of(owner), hook or code.co_name, code.co_filename
            break
        if code.co_name == "<module>":
            file = code.co_filename
    found = {"plugin": plugin, "hook": hook, "at": place_of(failed, file)}
    return {name: value for name, value in found.items() if value}


def note_failure(log: Logger, event: str, exchange: Exchange, error: BaseException) -> None:
    """Log a failure that ends an exchange, with where it comes from, and name its plugin in the record."""
    where = origin_of(error, exchange.refused_by)
    exchange.refused_by = where.get("plugin", "")
    log.error(event, **where, request_id=exchange.id, exc_info=error)


def _plugin_of(frame: FrameType) -> Plugin | None:
    """Return the plugin whose hook a frame runs, None where it is another function of that name."""
    code = frame.f_code
    first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
    return first if isinstance(first, Plugin) else None


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
