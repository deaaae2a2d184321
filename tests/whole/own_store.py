"""A store server that a test can make fail in each way that a store can fail, and repair."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from gateway.store.embedded import SETTINGS, find_server
from tests.patience import PATIENCE_S

SLOW_S: Final = 2.0
"""How long a slow store delays each command."""
LOADED_SLOWLY: Final = ("--key-load-delay", "2000", "--loading-process-events-interval-bytes", "1024")


class OwnStore:
    """A server in `folder`, and an operator's connection that stays open during the faults."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._socket = folder / "store.sock"
        self.url = f"unix://{self._socket}"
        self.operator = self._connected()
        self.slowing: asyncio.Task[None] | None = None

    async def start(self, *settings: str) -> None:
        """Start the server with its data, and wait until it replies, even if it is still loading."""
        places = ("--dir", self._folder, "--unixsocket", self._socket, "--logfile", self._folder / "log")
        # A killed server must not lose acknowledged writes: on a busy disk `everysec` writes seconds late.
        more = ("--enable-debug-command", "yes", "--appendfsync", "always", *settings)
        self.process = subprocess.Popen([find_server(), *SETTINGS, *map(str, places), *more])  # noqa: ASYNC220 - it forks
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with suppress(RedisError, OSError):
                    await self.command("CONFIG", "GET", "port")
                    return
                await asyncio.sleep(0.005)

    async def command(self, *command: str | int) -> Any:
        """Send a command on the operator's connection and return the reply."""
        return await self.operator.execute_command(*command)  # type: ignore[no-untyped-call, unused-ignore]

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    async def end(self) -> None:
        """Kill the server."""
        self.process.kill()
        await asyncio.to_thread(self.process.wait)
        await self.operator.aclose()  # type: ignore[attr-defined, unused-ignore]
        self.operator = self._connected()

    def _connected(self) -> Redis:
        return Redis(unix_socket_path=str(self._socket), single_connection_client=True)


@asynccontextmanager
async def own_store(folder: Path) -> AsyncIterator[OwnStore]:
    store = OwnStore(folder)
    await store.start()
    try:
        yield store
    finally:
        await store.end()


Act = Callable[[OwnStore], Awaitable[object]]


class Fault(msgspec.Struct, frozen=True):
    """A fault: how it begins and how it ends."""

    begin: Act
    end: Act


def _commands(*commands: str) -> Act:
    async def act(store: OwnStore) -> None:
        for command in commands:
            await store.command(*command.split(" "))

    return act


def _signal(number: int) -> Act:
    async def act(store: OwnStore) -> None:
        store.signal(number)

    return act


async def _nothing(store: OwnStore) -> None:
    pass


async def _restart(store: OwnStore) -> None:
    await store.end()
    await store.start()


async def _load(store: OwnStore) -> None:
    """Restart with so much data that loading takes seconds."""
    await store.command("DEBUG", "POPULATE", 3000, "ballast", 100)
    await store.command("BGREWRITEAOF")
    while (await store.operator.info("persistence"))["aof_rewrite_in_progress"]:
        await asyncio.sleep(0.01)
    await store.end()
    await store.start(*LOADED_SLOWLY)
    assert (await store.operator.info("persistence"))["loading"]


async def _loaded(store: OwnStore) -> None:
    await store.command("CONFIG", "SET", "key-load-delay", 0)
    while (await store.operator.info("persistence"))["loading"]:
        await asyncio.sleep(0.01)


async def _slow_down(store: OwnStore) -> None:
    async def sleep() -> None:
        while True:
            await store.command("DEBUG", "SLEEP", str(SLOW_S))

    store.slowing = asyncio.create_task(sleep())
    reader, connection = await asyncio.open_unix_connection(store.url.removeprefix("unix://"))
    with suppress(TimeoutError):
        while True:
            connection.write(b"PING\r\n")
            await asyncio.wait_for(reader.readline(), 0.1)
    connection.close()


async def _speed_up(store: OwnStore) -> None:
    assert store.slowing is not None
    store.slowing.cancel()
    await asyncio.gather(store.slowing, return_exceptions=True)


async def _run_on(store: OwnStore) -> None:
    """Run a script that does not end, and wait until other connections get BUSY."""
    await store.command("CONFIG", "SET", "busy-reply-threshold", "1")
    _, connection = await asyncio.open_unix_connection(store.url.removeprefix("unix://"))
    connection.write(b'EVAL "while true do end" 0\r\n')
    with suppress(ResponseError):
        while True:
            await store.command("PING")
    connection.close()


REFUSING: Final = {
    "away": Fault(OwnStore.end, OwnStore.start),
    "frozen": Fault(_signal(signal.SIGSTOP), _signal(signal.SIGCONT)),
    "slow": Fault(_slow_down, _speed_up),
    "loading": Fault(_load, _loaded),
    "a replica now": Fault(_commands("REPLICAOF 127.0.0.1 1"), _commands("REPLICAOF NO ONE")),
    "a replica without its master": Fault(
        _commands("CONFIG SET replica-serve-stale-data no", "REPLICAOF 127.0.0.1 1"), _commands("REPLICAOF NO ONE")
    ),
    "out of memory": Fault(_commands("CONFIG SET maxmemory 1"), _commands("CONFIG SET maxmemory 0")),
    "without its replicas": Fault(
        _commands("CONFIG SET min-replicas-to-write 1"), _commands("CONFIG SET min-replicas-to-write 0")
    ),
    "busy with a script": Fault(_run_on, _commands("SCRIPT KILL")),
    "full of connections": Fault(
        _commands("CONFIG SET maxclients 1", "CLIENT KILL TYPE normal"), _commands("CONFIG SET maxclients 10000")
    ),
    "locked": Fault(
        _commands("CONFIG SET requirepass another", "CLIENT KILL TYPE normal"), _commands("CONFIG SET requirepass ")
    ),
}
"""While one of these lasts, every request is refused."""

PASSING: Final = {
    "restarted": Fault(_restart, _nothing),
    "its scripts flushed": Fault(_commands("SCRIPT FLUSH"), _nothing),
    "its connections cut": Fault(_commands("CLIENT KILL TYPE normal"), _nothing),
}
"""After one of these, no request fails."""
