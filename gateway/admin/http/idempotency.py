"""`Idempotency-Key`: a write that is repeated with it is done once.

The action itself knows what it made by `LocalClient.key`, where that is made: nothing else has to be kept, and a process may end at
any moment. The key is for one request of one actor: for another it is another key. What sets a state may be set again.

A write is done to its end, also where the caller leaves meanwhile: half of one would be worse than either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from hashlib import sha256
from typing import Any, Final, TypeVar

import msgspec
from aiohttp import web

from gateway.admin.actions.action import Action, Arguments
from gateway.admin.actions.local import Actor
from gateway.base.errors import Refused

HEADER: Final = "Idempotency-Key"
MAX_KEY: Final = 255

Result = TypeVar("Result")

END_S: Final = 5.0
"""How long a stop waits for them."""


def key_of(request: web.Request, actor: Actor, action: Action[Any, Any], arguments: Arguments) -> str:
    """Return what an action knows the first attempt by: the same for this request alone; empty without the header.

    Raises `Refused` (400) for what is no key.
    """
    values = request.headers.getall(HEADER, [])
    if not values or not action.writes:
        return ""
    (key, *others) = (value.strip() for value in values)
    if others or not (0 < len(key) <= MAX_KEY and key.isascii() and key.isprintable()):
        text = f"{HEADER} is one text of 1 to {MAX_KEY} printable ASCII characters."
        raise Refused(400, "invalid_request", text, param=HEADER)
    parts = (key, actor.name, action.name, arguments.path, arguments.query, arguments.body)
    return sha256(msgspec.json.encode(parts)).hexdigest()


class Unbroken:
    """The writes in progress."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    async def done(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Do the work and return its result. Where this call is cancelled, the work goes on."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # nobody may be left to hear of it

    async def end(self, *_: object) -> None:
        """Wait until those in progress have ended, for some seconds."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=END_S)
