"""Checks large bodies part by part, while the event loop has nothing else to do, so that others are served in between.

The check of a body of 8 MiB takes some 100 ms where it is as expensive as it can be. A part takes a millisecond, except for
those that a parser does at once, which take 10 ms for a long text. Accounts take turns: a large body of one does not wait
for all those of another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from functools import partial
from typing import Final, TypeAlias

from gateway.chat.request import Body, BodyRules, check_in_steps
from gateway.errors import Refused
from gateway.proxy.turns import Turns

Steps: TypeAlias = Generator[None, None, Body]

SMALL: Final = 64 * 1024
"""Bytes up to which a body is checked at once: the check takes less than a millisecond."""


class LargeBodies:
    """The order in which a worker checks large bodies."""

    __slots__ = ("_turns",)

    def __init__(self) -> None:
        self._turns = Turns()

    async def check(self, raw: bytes | bytearray, rules: BodyRules, owner: str) -> Body:
        """Return the checked body of an account or an address. Raises `Refused`."""
        checked: asyncio.Future[Body] = asyncio.get_running_loop().create_future()
        self._wait(check_in_steps(raw, rules), checked, owner)
        try:
            return await checked
        finally:
            del checked  # else it and the refusal that it raises refer to each other, and keep the body

    def _wait(self, steps: Steps, checked: asyncio.Future[Body], owner: str) -> None:
        # Not a function that refers to itself: only the garbage collector would free it, and with it the body.
        self._turns.wait(partial(self._step, steps, checked, owner), owner)

    def _step(self, steps: Steps, checked: asyncio.Future[Body], owner: str) -> None:
        if checked.done():  # cancelled: the caller has left
            return
        try:
            next(steps)
        except StopIteration as end:
            checked.set_result(end.value)
        except Refused as refusal:
            checked.set_exception(refusal.with_traceback(None))
        except Exception as error:
            checked.set_exception(error)
        else:
            self._wait(steps, checked, owner)
