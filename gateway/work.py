"""What a plugin does beside its hooks: tasks that repeat, and a session of HTTP. Both end with the plugin."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from gateway.log import place_of

if TYPE_CHECKING:
    from aiohttp import ClientSession

MAX_TASKS: Final = 16
"""Repeated functions of one plugin."""
TOTAL_S: Final = 30.0
"""How long one request of the session may take, where the plugin does not say otherwise."""
CONNECT_S: Final = 5.0
MAX_CONNECTIONS: Final = 20
"""Connections of the session that are open at once; more requests wait."""


class Work:
    """The tasks and the session of one plugin. `name` and `log` are for its failures."""

    def __init__(self, name: str, log: Any) -> None:
        self._name = name
        self._log = log
        self._tasks: list[asyncio.Task[None]] = []
        self._http: ClientSession | None = None

    @property
    def http(self) -> ClientSession:
        """The session, which is opened when it is used first."""
        if self._http is None:
            from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector

            self._http = ClientSession(
                timeout=ClientTimeout(total=TOTAL_S, sock_connect=CONNECT_S),
                connector=TCPConnector(limit=MAX_CONNECTIONS),
                cookie_jar=DummyCookieJar(),
            )
        return self._http

    def every(self, seconds: float, function: Callable[[], Awaitable[None]]) -> None:
        """Start the task that calls `function` again and again. Raises `ValueError`, and `TypeError` for what is no function."""
        if isinstance(function, Coroutine):
            function.close()
            raise TypeError("every: give the function without calling it, as in `services.every(60, self.refresh)`")
        if not callable(function):
            raise TypeError(f"every: give an `async` function, not {function!r}")
        if not seconds > 0:
            raise ValueError(f"every: give seconds above 0, not {seconds}")
        if len(self._tasks) >= MAX_TASKS:
            raise ValueError(f"every: a plugin has {MAX_TASKS} tasks at most")
        name = getattr(function, "__qualname__", repr(function))
        task = asyncio.get_running_loop().create_task(
            self._repeat(seconds, function, name), name=f"{self._name}: {name}"
        )
        self._tasks.append(task)

    async def end_tasks(self) -> None:
        """Cancel the tasks, and wait until they have ended."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def close(self) -> None:
        """End the tasks that are left, and close the session."""
        await self.end_tasks()
        http, self._http = self._http, None
        if http is not None:
            await http.close()

    async def _repeat(self, seconds: float, function: Callable[[], Awaitable[None]], name: str) -> None:
        task = asyncio.current_task()
        while True:
            await asyncio.sleep(seconds)
            try:
                await function()
            except BaseException as error:
                if task is not None and task.cancelling():
                    raise
                at = place_of(error)
                self._log.error("plugin_failed", plugin=self._name, hook="every", work=name, at=at, exc_info=error)
