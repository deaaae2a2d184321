"""Work of a plugin, run so that it always ends, and always by a result or an `Exception` that a check can put into words.

Meanwhile it is watched for mistakes:

- calls that stop the event loop, seen where a plugin's hooks make them: sleeps, sockets, files, processes, databases;
- coroutines that it makes and does not await: their work is never done;
- functions that it has called again and again: each is called once here, and watched as a hook is;
- tasks that it leaves behind when it has stopped, and threads that keep the process from ending;
- replies of the store that are lost: the store has executed a command, but its reply never arrives. Sending it again does not
  help.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import linecache
import sys
import threading
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator
from contextvars import Context
from functools import partial
from inspect import getfile
from traceback import walk_stack, walk_tb
from types import FrameType
from typing import Any, Final, Self, TypeVar

from gateway.base.errors import StoreAway
from gateway.chain.chain import ABANDON_S
from gateway.chain.entry import HOOKS, PLUGIN_ERRORS, describe_error, error_text, origin_of, parents, place_of_hook
from gateway.chain.plugin import Plugin
from gateway.chain.services import Services
from gateway.plugin_kit.finding import Ending
from gateway.store.client.connection import TASK

CONTAINED: Final = "gateway: work of a plugin"
"""The name of the tasks of this module. One that goes on when it is cancelled is a finding already."""
OURS: Final = sys.stdlib_module_names | {"gateway"}
"""The modules whose frames are not a plugin's."""

Result = TypeVar("Result")
Frames = Iterable[tuple[FrameType, int]]
"""Frames with the lines that they have come to, the outermost first."""

LIMIT_S: Final = 2.0
MISTAKES: Final = (TypeError, AttributeError, NameError, LookupError)
"""What is a mistake wherever it runs. What else a function raises may be the place: there is no network in a test."""

Repeated = Callable[[], Awaitable[None]]

FILES: Final = "write files in `await asyncio.to_thread(...)`"
BLOCKING: Final = {
    ("time", "sleep"): "use `await asyncio.sleep(...)`",
    ("io", "open"): FILES,
    ("_io", "open"): FILES,
    ("posix", "open"): FILES,
    ("posix", "fsync"): FILES,
    ("posix", "system"): "use `asyncio.create_subprocess_exec`",
    ("posix", "waitpid"): "use `asyncio.create_subprocess_exec`",
    ("_socket", "getaddrinfo"): "use `services.http`",
}
"""Functions that block, and what to use instead."""

DEPTH: Final = 8
"""Frames in which the plugin is looked for, from the one that makes a coroutine upwards."""

EXECUTOR: Final = "asyncio_"
"""What the names of asyncio's own threads begin with: `asyncio.to_thread` starts them, and they wait for more work."""
GRACE_S: Final = 1.0
"""How long after `stop` tasks and threads may take to end."""
POLL_S: Final = 0.02


class AbnormalEnd(Exception):
    """How work ended that neither returned nor raised an `Exception`. The text continues the name of a hook.

    `function` and `at` are the plugin's function, and the file and the line that it had come to; empty where that is not known.
    """

    def __init__(self, text: str, function: str = "", at: str = "") -> None:
        super().__init__(text)
        self.function = function
        self.at = at


class Overdue(AbnormalEnd, TimeoutError):
    """Work that did not end in time. `goes_on`: nor when it was cancelled."""

    goes_on = False


async def contained(work: Coroutine[Any, Any, Result], limit_s: float, *, context: Context | None = None) -> Result:
    """Return the result of `work`, which runs in a task of its own, so that it cancels no other. Raises `Exception` only.

    After `limit_s` the work is cancelled and, where it goes on, left behind: `Overdue`. What it raises that is no `Exception`,
    such as `KeyboardInterrupt`, becomes `AbnormalEnd`.
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
        raise AbnormalEnd("cancels its own task")
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


def _ended(error: BaseException) -> AbnormalEnd:
    task = asyncio.current_task()
    by_itself = isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling()
    text = "cancels its own task" if by_itself else f"raised {error_text(error).removesuffix(': ')}"
    ended = AbnormalEnd(text, *place_in(walk_tb(error.__traceback__)))
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


class Background:
    """The functions that a plugin gave to `every`."""

    def __init__(self) -> None:
        self.functions: list[Repeated] = []

    def watch(self, services: Services) -> None:
        """Note what is given to `every` of these services, too."""
        every = services.every

        def noted(seconds: float, function: Repeated) -> None:
            every(seconds, function)
            self.functions.append(function)

        services.every = noted  # type: ignore[method-assign]

    async def problems(self, blocking: Blocking) -> list[str]:
        """Call each function once. Return what is wrong with it, and what `blocking` sees in it."""
        found = []
        for function in self.functions:
            name, place = described(function)
            try:
                with blocking.of(function, f"`{name}`, which `every` calls,"):
                    returned = await contained(_called(function), LIMIT_S)
                if returned:
                    found.append(f"`{name}`, which `every` calls, returns {returned}: write `async def`{place}")
            except MISTAKES as error:
                found.append(f"`{name}`, which `every` calls, raised {describe_error(error)}")
            except AbnormalEnd as error:
                if not isinstance(error, Overdue) or error.goes_on:
                    at = f" ({error.at})" if error.at else place
                    found.append(f"`{name}`, which `every` calls, {error}{at}")
            except PLUGIN_ERRORS:
                continue
        return found + blocking.take()


async def _called(function: Repeated) -> str:
    """Call a function, and wait for it. Return what it returned, in words, where that cannot be waited for."""
    made: Any = function()
    if not inspect.isawaitable(made):
        return an(made)
    await made
    return ""


def described(function: Any) -> tuple[str, str]:
    """Return the name of a function, and its file and line in brackets; empty where it has none."""
    while isinstance(function, partial):
        function = function.func
    code = getattr(inspect.unwrap(function), "__code__", None)
    name = str(getattr(function, "__name__", type(function).__name__))
    return name, "" if code is None else f" ({code.co_filename}, line {code.co_firstlineno})"


def cure_of(called: Any) -> str:
    """Return what to use in place of a built-in function; empty for one that does not block."""
    name = (str(getattr(called, "__module__", "")), str(getattr(called, "__name__", "")))
    if cure := BLOCKING.get(name, ""):
        return cure
    owner: Any = getattr(called, "__self__", None)
    if str(getattr(called, "__qualname__", "")).startswith("socket.") and name[1] in ("connect", "recv", "recv_into"):
        return "use `services.http`" if owner.gettimeout() != 0 else ""
    return "use `await asyncio.to_thread(...)`" if type(owner).__module__ == "sqlite3" else ""


class Blocking:
    """A context manager that notes what the hooks of a plugin call that blocks. What others call meanwhile is not noted."""

    def __init__(self, kind: type[Plugin]) -> None:
        self._files = {getfile(parent) for parent in parents(kind)}
        self._also: tuple[Any, str] = (None, "")
        self._problems: dict[str, bool] = {}

    def of(self, function: object, name: str) -> Self:
        """Note what this function calls, too, from now on. `name` is what it is called in a problem."""
        self._also = getattr(inspect.unwrap(function), "__code__", None), name  # type: ignore[arg-type]
        return self

    def __enter__(self) -> None:
        self._profile = sys.getprofile()
        sys.setprofile(self._look)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(self._profile)

    def take(self) -> list[str]:
        """Return a line for each call that blocks, with its place and its cure, which was not returned before."""
        new = [text for text, told in self._problems.items() if not told]
        self._problems |= dict.fromkeys(new, True)
        return new

    def _look(self, frame: FrameType, event: str, called: Any) -> None:
        if event != "c_call" or not (cure := cure_of(called)):
            return
        place, caller = "", frame
        while caller is not None:
            code = caller.f_code
            if code.co_filename.startswith("<frozen importlib") or code.co_filename == linecache.__file__:
                return  # what a module does once, when it is imported; and what a warning reads
            if code.co_filename in self._files:
                place = place or f"{code.co_filename}, line {caller.f_lineno}"
                if code is self._also[0] or code.co_name in HOOKS:
                    name = self._also[1] if code is self._also[0] else f"`{code.co_name}`"
                    text = f"{name} blocks the event loop with `{called.__name__}` ({place}): {cure}"
                    self._problems.setdefault(text, False)
                    return
            caller = caller.f_back  # type: ignore[assignment]


class Unawaited:
    """A context manager that notes the coroutines of a plugin that nobody awaits. Other warnings are given when it ends."""

    def __init__(self, kind: type[Plugin]) -> None:
        self._files = {getfile(parent) for parent in parents(kind)}
        self._warnings = warnings.catch_warnings(record=True)
        self._caught: list[warnings.WarningMessage] = []
        self.problems: list[str] = []
        """A line for each, with its place."""

    def __enter__(self) -> Self:
        self._depth = sys.get_coroutine_origin_tracking_depth()
        sys.set_coroutine_origin_tracking_depth(DEPTH)
        caught = self._warnings.__enter__()
        self._caught = [] if caught is None else caught
        warnings.simplefilter("always", RuntimeWarning)
        return self

    def __exit__(self, *_: object) -> None:
        gc.collect()
        self._warnings.__exit__(None, None, None)
        sys.set_coroutine_origin_tracking_depth(self._depth)
        for each in self._caught:
            if place := self._place(each.source):
                name = getattr(each.source, "__qualname__", "a coroutine")
                self.problems.append(f"`{name}` is not awaited ({place}): write `await` before it")
            else:
                warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)

    def _place(self, source: object) -> str:
        frames = getattr(source, "cr_origin", None) or ()
        return next((f"{file}, line {line}" for file, line, _ in frames if file in self._files), "")


class LeftBehind:
    """What was begun since this was made."""

    def __init__(self) -> None:
        self._tasks = asyncio.all_tasks()
        self._threads = set(threading.enumerate())

    async def problems(self) -> list[str]:
        """Return a line for each task and thread that still runs, with its place. The tasks are cancelled."""
        tasks = {task for task in asyncio.all_tasks() - self._tasks if task.get_name() not in (CONTAINED, TASK)}
        if tasks:
            _, tasks = await asyncio.wait(tasks, timeout=GRACE_S)
        workers = {thread for thread in threading.enumerate() if thread.name.startswith(EXECUTOR)}
        threads = (set(threading.enumerate()) - self._threads) | workers
        for _ in range(round(GRACE_S / POLL_S)):
            if not any(map(_place, workers)):
                break
            await asyncio.sleep(POLL_S)
        running = [(thread, _place(thread)) for thread in threads]
        for task in tasks:
            task.cancel()
        return [
            *map(_task, tasks),
            *(_thread(thread, at) for thread, at in running if at or thread not in workers),
        ]


def _place(thread: threading.Thread) -> str:
    """Return the file and the line of a plugin that a thread runs; empty where it runs none."""
    frame = sys._current_frames().get(thread.ident or 0)
    return "" if frame is None else place_in(reversed(list(walk_stack(frame))))[1]


def _thread(thread: threading.Thread, at: str) -> str:
    return f"thread {thread.name} still runs{f' ({at})' if at else ''}: end it in `stop`, and wait for it"


def _task(task: asyncio.Task[Any]) -> str:
    _, at = place_in(waiting(task.get_coro()))
    place = f" ({at})" if at else ""
    return f"{task.get_name()} still runs `{task.get_coro()}`{place}: cancel it in `stop`, and wait for it"


class LostReplies:
    """An awaitable that runs a coroutine and loses replies on the way.

    Each `await` inside the coroutine runs to its end. From the one numbered `lost_from` on, counted from 0, its result is
    replaced by `StoreAway`; None loses nothing. `waits` counts them.
    """

    def __init__(self, work: Awaitable[Any], lost_from: int | None) -> None:
        self.waits = 0
        self.work = work
        self._lost_from = lost_from

    def __await__(self) -> Generator[Any, Any, Any]:
        inner = self.work.__await__()
        error: BaseException | None = None
        while True:
            try:
                future = inner.send(None) if error is None else inner.throw(error)
            except StopIteration as done:
                return done.value
            lost = self._lost_from is not None and self.waits >= self._lost_from
            self.waits += 1
            try:
                yield future
                error = StoreAway("the reply was lost") if lost else None
            except BaseException as raised:
                error = raised


def raised(hook: str, error: BaseException, ending: Ending) -> str:
    """Return what a hook raised, with its place, and in which ending."""
    at = error.at if isinstance(error, AbnormalEnd) else origin_of(error).get("at", "")
    fact = error.args[0] if isinstance(error, KeyError) and error.args else None
    cure = f"; put {fact.__name__} into `requires`, or use `exchange.get`" if isinstance(fact, type) else ""
    if isinstance(error, AttributeError) and "'coroutine' object" in str(error):
        cure = "; write `await` before the call that returns it"
    lost = ending.lost_from
    when = f"({ending.name})" if lost is None else f"where replies were lost (from wait {lost + 1} on)"
    return f"`{hook}` {told(error)} {when}" + (f" at {at}" if at else "") + cure


def told(error: BaseException) -> str:
    """Return how a hook ended, to continue its name."""
    return str(error) if isinstance(error, AbnormalEnd) else f"raised {error_text(error)}"


def failed(hook: str, error: BaseException) -> str:
    """Return how a function of a plugin ended, with its place. `hook` is its name where the error does not know it."""
    if not isinstance(error, AbnormalEnd):
        return f"`{hook}` raised {describe_error(error)}"
    return f"`{error.function or hook}` {error}" + (f" ({error.at})" if error.at else "")


def in_vain(plugin: Plugin, hook: str, returned: object) -> list[str]:
    """Return what is wrong with a hook that returns something, in words."""
    if returned is None:
        return []
    return [f"`{hook}` returns {an(returned)}, which is ignored: return nothing{place_of_hook(type(plugin), hook)}"]


def an(value: object) -> str:
    """Return the name of a value's type with its article."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
