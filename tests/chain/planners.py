"""Plugins that plan steps, for tests of the chain, and what they did, in order."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from gateway import Exchange, Plugin, Reply, Route, Script, Services, Step
from gateway.base.errors import GatewayError
from gateway.chain.chain import Chain
from gateway.chain.entry import Entry
from gateway.testing import services

APPEND = Script("append", "return redis.call('RPUSH', KEYS[1], ARGV[1])")
STOP = Script("stop", "redis.call('RPUSH', KEYS[1], ARGV[1])\nreturn redis.call('LLEN', KEYS[1]), true")
FAIL = Script("fail", "error({ err = 'ERR broken' })")

KEY = "gw:{t}:ran"

WRONG_STEPS: dict[str, Callable[[], Any]] = {
    "no step": lambda: "rubbish",
    "no keys": lambda: Step(APPEND, [], ["x"]),
    "keys that are None": lambda: Step(APPEND, None, ["x"]),  # type: ignore[arg-type]
    "a key that is None": lambda: Step(APPEND, [None], ["x"]),  # type: ignore[list-item]
    "an argument that is None": lambda: Step(APPEND, [KEY], [None]),  # type: ignore[list-item]
    "an argument that is a dict": lambda: Step(APPEND, [KEY], [{}]),  # type: ignore[list-item]
    "no script": lambda: Step("return 1", [KEY], ["x"]),  # type: ignore[arg-type]
    "too many arguments": lambda: Step(APPEND, [KEY], ["x"] * 9000),
    "Lua with a syntax error": lambda: Step(Script("syntax", "return return"), [KEY], ["x"]),
    "Lua that closes its function": lambda: Step(Script("close", "end end end"), [KEY], ["x"]),
}
"""Makes what a plugin returns as its step, and cannot be sent or run."""

Does = Callable[[Exchange], Awaitable[None]]
Reads = Callable[[Exchange, Any], Awaitable[bool | None]]


async def nothing(_: Exchange) -> None:
    pass


async def passes(_: Exchange, reply: Any) -> bool | None:
    return None


class Planner(Plugin):
    """Plans a step in both directions, which appends its name to a list in the store."""

    name: str = "?"
    calls: list[str] = msgspec.field(default_factory=list)
    script: Script = APPEND
    does: Does = nothing
    reads: Reads = passes
    end_script: Script | None = APPEND
    ends: Reads = passes
    failures: list[str] = msgspec.field(default_factory=list)
    makes: Callable[[], Any] | None = None
    """Makes the steps, in place of this plugin."""

    async def request_step(self, exchange: Exchange) -> Step:
        self.calls.append(f"{self.name} plans")
        await self.does(exchange)
        if self.makes is not None:
            return self.makes()  # type: ignore[no-any-return]

        async def read(reply: Any) -> bool | None:
            self.calls.append(f"{self.name} reads")
            return await self.reads(exchange, reply)

        self.step = Step(self.script, (KEY,), (self.name,), read)
        return self.step

    async def end_step(self, exchange: Exchange) -> Step | None:
        self.calls.append(f"{self.name} plans the end")

        async def read(reply: Any) -> bool | None:
            return await self.ends(exchange, reply)

        async def failed(error: GatewayError) -> None:
            self.failures.append(f"{self.name}: {error}")

        if self.makes is not None:
            return self.makes()  # type: ignore[no-any-return]
        if self.end_script is None:
            return None
        return Step(self.end_script, (KEY,), (f"end of {self.name}",), read, failed)


class Waiter(Plugin):
    """Waits for nothing, and notes what the store has when its hooks run."""

    name: str = "?"
    calls: list[str] = msgspec.field(default_factory=list)

    async def start(self, services: Services) -> None:
        self.redis = services.redis

    async def on_request(self, exchange: Exchange) -> Reply | None:
        self.calls.append(f"{self.name} finds {await ran(self.redis)}")
        return None

    async def on_end(self, exchange: Exchange) -> None:
        self.calls.append(f"{self.name} finds {await ran(self.redis)} at the end")


class Routes(Plugin):
    """Completes a chain."""

    provides: ClassVar[tuple[type, ...]] = (Route,)


async def ran(client: Any) -> list[str]:
    """Return the names of the steps that ran, in order."""
    return [name.decode() for name in await client.call("LRANGE", KEY, 0, -1)]


@asynccontextmanager
async def started(
    folder: Path, url: str, plugins: Sequence[Planner | Waiter], ignore: Sequence[str] = ()
) -> AsyncIterator[tuple[Chain, Services]]:
    """Provide a started chain of these plugins."""
    entries = [Entry(plugin.name, plugin, "ignore" if plugin.name in ignore else "refuse") for plugin in plugins]
    chain = Chain([*entries, Entry("routes", Routes())])
    async with services(folder, url) as given:
        await chain.start(given)
        yield chain, given
        await chain.stop()
