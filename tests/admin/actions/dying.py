"""A client of the store in a process that ends in the middle of an operation: after any of the commands that it sends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from gateway.store.client.client import Argument, Client, Script


class Killed(BaseException):
    """The process ended here."""


class DyingClient(Client):
    """Sends `commands` commands. The store does the last of them, too, but nobody reads its reply or does anything after it."""

    commands = 0
    died = False

    def submit(self, *command: Argument) -> asyncio.Future[Any]:
        return self._send(lambda: Client.submit(self, *command))

    def run(self, script: Script, keys: Sequence[str], arguments: Sequence[Argument] = ()) -> asyncio.Future[Any]:
        return self._send(lambda: Client.run(self, script, keys, arguments))

    def _send(self, send: Callable[[], asyncio.Future[Any]]) -> asyncio.Future[Any]:
        if self.died:
            raise Killed
        self.commands -= 1
        if self.commands:
            return send()
        self.died = True
        ended = asyncio.ensure_future(_killed_after(send()))
        ended.add_done_callback(
            lambda task: None if task.cancelled() else task.exception()
        )  # perhaps nobody waits for it
        return ended


async def _killed_after(reply: asyncio.Future[Any]) -> None:
    await reply
    raise Killed
