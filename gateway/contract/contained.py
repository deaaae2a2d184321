"""Work of a plugin, run so that it always ends, and always by a result or an `Exception` that a check can put into words."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Iterable, Iterator
from contextvars import Context
from traceback import walk_tb
from types import FrameType
from typing import Any, Final, TypeVar

from gateway.chain.failures import error_text
from gateway.chain.starting import ABANDON_S
from gateway.contract.lost_replies import LostReplies

CONTAINED: Final = "gateway: work of a plugin"
"""The name of the tasks of this module. One that goes on when it is cancelled is a finding already."""
OURS: Final = sys.stdlib_module_names | {"gateway"}
"""The modules whose frames are not a plugin's."""

Result = TypeVar("Result")
Frames = Iterable[tuple[FrameType, int]]
"""Frames with the lines that they have come to, the outermost first."""


class Ended(Exception):
    """How work ended that neither returned nor raised an `Exception`. The text continues the name of a hook.

    `function` and `at` are the plugin's function, and the file and the line that it had come to; empty where that is not known.
    """

    def __init__(self, text: str, function: str = "", at: str = "") -> None:
        super().__init__(text)
        self.function = function
        self.at = at


class Overdue(Ended, TimeoutError):
    """Work that did not end in time. `goes_on`: nor when it was cancelled."""

    goes_on = False


async def contained(work: Coroutine[Any, Any, Result], limit_s: float, *, context: Context | None = None) -> Result:
    """Return the result of `work`, which runs in a task of its own, so that it cancels no other. Raises `Exception` only.

    After `limit_s` the work is cancelled and, where it goes on, left behind: `Overdue`. What it raises that is no `Exception`,
    such as `KeyboardInterrupt`, becomes `Ended`.
    """
    task = asyncio.create_task(_outcome(work), name=CONTAINED, context=context)
    try:
        await asyncio.wait([task], timeout=limit_s)
        if not task.done():
            raise await _overdue(task, work, limit_s)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if task.cancelled():
        raise Ended("cancels its own task")
    result, error = task.result()
    if error is not None:
        raise error
    return result  # type: ignore[return-value]


async def _outcome(work: Coroutine[Any, Any, Result]) -> tuple[Result | None, Exception | None]:
    """Return what the work returned or raised: a task that raises `KeyboardInterrupt` ends the event loop."""
    try:
        return await work, None
    except BaseException as error:
        cause = error.__cause__ if type(error) is RuntimeError else None  # as `RequestHooks` raises it
        failed = error if cause is None or isinstance(cause, Exception) else cause
        return None, failed if isinstance(failed, Exception) else _ended(failed)


def _ended(error: BaseException) -> Ended:
    task = asyncio.current_task()
    by_itself = isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling()
    text = "cancels its own task" if by_itself else f"raised {error_text(error).removesuffix(': ')}"
    ended = Ended(text, *place_in(walk_tb(error.__traceback__)))
    ended.__cause__ = error
    return ended


async def _overdue(task: asyncio.Task[Any], work: object, limit_s: float) -> Overdue:
    function, at = place_in(waiting(work))
    task.cancel()
    await asyncio.wait([task], timeout=ABANDON_S)
    goes_on = not task.done()
    text = f"did not end within {limit_s:g} s{', nor when it was cancelled' if goes_on else ''}"
    overdue = Overdue(text, function, at)
    overdue.goes_on = goes_on
    return overdue


def place_in(frames: Frames) -> tuple[str, str]:
    """Return the name of the plugin's function among frames, and the last line of its file there, as `FILE, line N`.

    Both are empty where no frame is a plugin's.
    """
    function, file, place = "", "", ""
    for frame, line in frames:
        code = frame.f_code
        if not file and str(frame.f_globals.get("__name__", "")).partition(".")[0] not in OURS:
            function, file = code.co_name, code.co_filename
        if code.co_filename == file:
            place = f"{file}, line {line}"
    return function, place


def waiting(work: Any) -> Iterator[tuple[FrameType, int]]:
    """Yield the frames of a coroutine that waits, the outermost first."""
    while work is not None:
        frame = getattr(work, "cr_frame", None) or getattr(work, "gi_frame", None)
        if frame is None:
            return
        yield frame, frame.f_lineno
        by = frame.f_locals.get("self")
        work = by.work if isinstance(by, LostReplies) else getattr(work, "cr_await", None)
