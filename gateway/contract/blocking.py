"""Calls that stop the event loop, seen where a plugin's hooks make them: sleeps, sockets, files, processes, databases."""

from __future__ import annotations

import inspect
import linecache
import sys
from inspect import getfile
from types import FrameType
from typing import Any, Final, Self

from gateway.chain.hooks import HOOKS, parents
from gateway.plugin import Plugin

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
