"""Lost replies: the store has executed a command, but its reply never arrives. Sending it again does not help."""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from typing import Any

from gateway.errors import StoreAway


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
