"""Calls that stop the event loop, seen where a plugin's hooks make them: sleeps, sockets, files, processes, databases."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from inspect import getfile
from types import FrameType
from typing import Any, Final

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
        self._problems: dict[str, None] = {}

    def __enter__(self) -> None:
        self._profile = sys.getprofile()
        sys.setprofile(self._look)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(self._profile)

    def problems(self) -> Iterator[str]:
        """Yield a line for each call that blocks, with its place and its cure."""
        yield from self._problems

    def _look(self, frame: FrameType, event: str, called: Any) -> None:
        if event != "c_call" or not (cure := cure_of(called)):
            return
        place, caller = "", frame
        while caller is not None:
            code = caller.f_code
            if code.co_filename in self._files:
                place = place or f"{code.co_filename}, line {caller.f_lineno}"
                if code.co_name in HOOKS:
                    text = f"`{code.co_name}` blocks the event loop with `{called.__name__}` ({place}): {cure}"
                    self._problems[text] = None
                    return
            caller = caller.f_back  # type: ignore[assignment]
