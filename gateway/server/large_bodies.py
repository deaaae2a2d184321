"""Checks large bodies part by part, while the event loop has nothing else to do, so that others are served in between.

The check of a body of 8 MiB takes some 100 ms where it is as expensive as it can be. A part takes a millisecond, except for
those that a parser does at once, which take 10 ms for a long text. Accounts take turns: a large body of one does not wait
for all those of another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Final

from gateway.chat.request import Body, BodyRules, check_in_steps
from gateway.errors import Refused
from gateway.proxy.turns import Turns

SMALL: Final = 64 * 1024
"""Bytes up to which a body is checked at once: the check takes less than a millisecond."""


class LargeBodies:
    """The order in which a worker checks large bodies."""

    __slots__ = ("_turns",)

    def __init__(self) -> None:
        self._turns = Turns()

    async def check(self, raw: bytes | bytearray, rules: BodyRules, owner: str) -> Body:
        """Return the checked body of an account or an address. Raises `Refused`."""
        check: _Check | None = _Check(self._turns, check_in_steps(raw, rules), owner)
        try:
            return await check.checked
        finally:
            check = None  # else it and what it raised refer to each other, and keep the body


class _Check:
    """The check of one body. Nothing in it refers to itself, so that the body is freed as soon as it is of no use."""

    __slots__ = ("_owner", "_steps", "_turns", "checked")

    def __init__(self, turns: Turns, steps: Generator[None, None, Body], owner: str) -> None:
        self._turns, self._steps, self._owner = turns, steps, owner
        self.checked: asyncio.Future[Body] = asyncio.get_running_loop().create_future()
        turns.wait(self._step, owner)

    def _step(self) -> None:
        if self.checked.done():  # cancelled: the caller has left
            return
        try:
            next(self._steps)
        except StopIteration as end:
            self.checked.set_result(end.value)
        except Refused as refusal:
            self.checked.set_exception(refusal.with_traceback(None))
        except Exception as error:
            self.checked.set_exception(error)
        else:
            self._turns.wait(self._step, self._owner)
