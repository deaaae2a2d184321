"""A store of a test's own that can be broken in every way that a store breaks, and mended."""

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

from gateway.store.client.embedded import SETTINGS, find_server
from tests.patience import PATIENCE_S

SLOW_S: Final = 2.0
"""For how long a slow store lets each command wait."""
LOADED_SLOWLY: Final = ("--key-load-delay", "2000", "--loading-process-events-interval-bytes", "1024")


class OwnStore:
    """A server in `folder`, and a connection of an operator, which nothing takes away."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._socket = folder / "store.sock"
        self.url = f"unix://{self._socket}"
        self.operator = self._connected()
        self.slowing: asyncio.Task[None] | None = None

    async def start(self, *settings: str) -> None:
        """Start the server on what it left, and wait until it answers, be it that it is loading."""
        places = ("--dir", self._folder, "--unixsocket", self._socket, "--logfile", self._folder / "log")
        # A server that is killed forgets nothing that it acknowledged: on a busy disk `everysec` writes seconds late.
        more = ("--enable-debug-command", "yes", "--appendfsync", "always", *settings)
        self.process = subprocess.Popen([find_server(), *SETTINGS, *map(str, places), *more])  # noqa: ASYNC220 - it forks
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with suppress(RedisError, OSError):
                    await self.tell("CONFIG", "GET", "port")
                    return
                await asyncio.sleep(0.005)

    async def tell(self, *command: str | int) -> Any:
        """What the server answers its operator."""
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
    """How it begins and how it ends."""

    begin: Act
    end: Act


def _told(*commands: str) -> Act:
    async def act(store: OwnStore) -> None:
        for command in commands:
            await store.tell(*command.split(" "))

    return act


def _signalled(number: int) -> Act:
    async def act(store: OwnStore) -> None:
        store.signal(number)

    return act


async def _nothing(store: OwnStore) -> None:
    pass


async def _restart(store: OwnStore) -> None:
    await store.end()
    await store.start()


async def _load(store: OwnStore) -> None:
    """Come back with so much to load that it takes seconds."""
    await store.tell("DEBUG", "POPULATE", 3000, "ballast", 100)
    await store.tell("BGREWRITEAOF")
    while (await store.operator.info("persistence"))["aof_rewrite_in_progress"]:
        await asyncio.sleep(0.01)
    await store.end()
    await store.start(*LOADED_SLOWLY)
    assert (await store.operator.info("persistence"))["loading"]


async def _loaded(store: OwnStore) -> None:
    await store.tell("CONFIG", "SET", "key-load-delay", 0)
    while (await store.operator.info("persistence"))["loading"]:
        await asyncio.sleep(0.01)


async def _slow_down(store: OwnStore) -> None:
    async def sleep() -> None:
        while True:
            await store.tell("DEBUG", "SLEEP", str(SLOW_S))

    store.slowing = asyncio.create_task(sleep())
    reader, somebody = await asyncio.open_unix_connection(store.url.removeprefix("unix://"))
    with suppress(TimeoutError):
        while True:
            somebody.write(b"PING\r\n")
            await asyncio.wait_for(reader.readline(), 0.1)
    somebody.close()


async def _speed_up(store: OwnStore) -> None:
    assert store.slowing is not None
    store.slowing.cancel()
    await asyncio.gather(store.slowing, return_exceptions=True)


async def _run_on(store: OwnStore) -> None:
    """A script that does not end; from the moment that others are told so."""
    await store.tell("CONFIG", "SET", "busy-reply-threshold", "1")
    _, somebody = await asyncio.open_unix_connection(store.url.removeprefix("unix://"))
    somebody.write(b'EVAL "while true do end" 0\r\n')
    with suppress(ResponseError):
        while True:
            await store.tell("PING")
    somebody.close()


REFUSING: Final = {
    "away": Fault(OwnStore.end, OwnStore.start),
    "frozen": Fault(_signalled(signal.SIGSTOP), _signalled(signal.SIGCONT)),
    "slow": Fault(_slow_down, _speed_up),
    "loading": Fault(_load, _loaded),
    "a replica now": Fault(_told("REPLICAOF 127.0.0.1 1"), _told("REPLICAOF NO ONE")),
    "a replica without its master": Fault(
        _told("CONFIG SET replica-serve-stale-data no", "REPLICAOF 127.0.0.1 1"), _told("REPLICAOF NO ONE")
    ),
    "out of memory": Fault(_told("CONFIG SET maxmemory 1"), _told("CONFIG SET maxmemory 0")),
    "without its replicas": Fault(
        _told("CONFIG SET min-replicas-to-write 1"), _told("CONFIG SET min-replicas-to-write 0")
    ),
    "busy with a script": Fault(_run_on, _told("SCRIPT KILL")),
    "full of connections": Fault(
        _told("CONFIG SET maxclients 1", "CLIENT KILL TYPE normal"), _told("CONFIG SET maxclients 10000")
    ),
    "locked": Fault(
        _told("CONFIG SET requirepass another", "CLIENT KILL TYPE normal"), _told("CONFIG SET requirepass ")
    ),
}
"""While these last nobody is served."""

PASSING: Final = {
    "restarted": Fault(_restart, _nothing),
    "its scripts flushed": Fault(_told("SCRIPT FLUSH"), _nothing),
    "its connections cut": Fault(_told("CLIENT KILL TYPE normal"), _nothing),
}
"""Of these nobody notices anything."""
