"""Replies that are lost: what was asked for was done, and nobody is told. Asking again is of no use."""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from typing import Any

from gateway.errors import StoreAway


class LostReplies:
    """Waits for a coroutine that is given `StoreAway` in place of all that it waits for, from the `loses`-th time on."""

    def __init__(self, work: Awaitable[Any], loses: int | None) -> None:
        self.waits = 0
        self._work = work
        self._loses = loses

    def __await__(self) -> Generator[Any, Any, Any]:
        inner = self._work.__await__()
        error: BaseException | None = None
        while True:
            try:
                waited_for = inner.send(None) if error is None else inner.throw(error)
            except StopIteration as done:
                return done.value
            lost = self._loses is not None and self.waits >= self._loses
            self.waits += 1
            try:
                yield waited_for
                error = StoreAway("the reply was lost") if lost else None
            except BaseException as raised:
                error = raised
