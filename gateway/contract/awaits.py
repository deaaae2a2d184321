"""Coroutines that a plugin makes and does not await: what they were to do is never done."""

from __future__ import annotations

import gc
import sys
import warnings
from inspect import getfile
from typing import Final, Self

from gateway.chain.hooks import parents
from gateway.plugin import Plugin

DEPTH: Final = 8
"""Frames in which the plugin is looked for, from the one that makes a coroutine upwards."""


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
