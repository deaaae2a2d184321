"""Plugins that each break one promise, for the contract tests to find."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import ClassVar

import msgspec

from gateway import Caller, Exchange, Outcome, Plugin, Refused, Reply, Services
from gateway.errors import StoreAway


class Good(Plugin):
    """Does everything that a plugin may, as it should."""

    requires = (Caller,)

    most: int = 5
    """The most."""
    # The least.
    least: int = 1
    api_key: str = ""  # what the service wants

    async def start(self, services: Services) -> None:
        self._redis, self._key = services.redis, services.key("open")
        self._free = asyncio.Semaphore(self.most)
        self._open: dict[str, str] = {}
        self._recent: dict[str, int] = {}
        self._task = asyncio.get_running_loop().create_task(asyncio.Event().wait())

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def on_request(self, exchange: Exchange) -> None:
        await self._free.acquire()
        self._open[exchange.id] = exchange[Caller].account
        await self._redis.call("SADD", self._key, exchange.id)

    async def on_end(self, exchange: Exchange) -> None:
        if self._open.pop(exchange.id, None):
            self._free.release()
            await self._redis.call("SREM", self._key, exchange.id)

    def __repr__(self) -> str:
        return "<Good>"


class Answers(Plugin):
    """Answers itself."""

    async def on_request(self, exchange: Exchange) -> Reply:
        return Reply(200, b"{}")


class NoDocstring(Plugin):
    async def on_end(self, exchange: Exchange) -> None: ...


class Undocumented(Plugin):
    """Keeps a setting to itself."""

    known: int = 1
    """Known."""
    unknown: int = 2


class Inherits(Undocumented):
    """Has it from its parent."""

    own: int = 3
    """Its own."""


class Waits(Plugin):
    """Waits where it may only look."""

    async def on_chunk(self, exchange: Exchange, chunk: bytes) -> None: ...  # type: ignore[override]


class Blocks(Plugin):
    """Cannot wait where it may."""

    def on_request(self, exchange: Exchange) -> None: ...  # type: ignore[override]


class TakesTooLittle(Plugin):
    """Takes no chunk."""

    def on_chunk(self, exchange: Exchange) -> None: ...  # type: ignore[override]


class Misspelt(Plugin):
    """Is never called."""

    async def on_requests(self, exchange: Exchange) -> None: ...


class NamesFacts(Plugin):
    """Names a fact by a string."""

    requires = ("Caller",)  # type: ignore[assignment]


class PromisesOnly(Plugin):
    """Provides what it has no hook to set."""

    provides = (Caller,)


class Lacks(Plugin):
    """Sets nothing of what it provides."""

    provides = (Caller,)

    async def on_request(self, exchange: Exchange) -> None: ...


class Own(msgspec.Struct):
    """A fact that nobody else knows."""


class NeedsOwn(Plugin):
    """Requires a fact that nothing installed provides."""

    requires = (Own,)


class Undeclared(Plugin):
    """Reads a fact without requiring it."""

    async def on_request(self, exchange: Exchange) -> None:
        exchange[Caller]


class Refuses(Plugin):
    """Refuses everybody."""

    async def on_request(self, exchange: Exchange) -> None:
        raise Refused(403, "closed", "Come back later.")


class NeverStarts(Plugin):
    """Does not start."""

    async def start(self, services: Services) -> None:
        raise ValueError("today is no day for it")


class ReadsEveryBody(Plugin):
    """Reads a body where there is none."""

    async def on_request(self, exchange: Exchange) -> None:
        await exchange.body()


class Grows(Plugin):
    """Remembers every request for ever."""

    async def start(self, services: Services) -> None:
        self._seen: set[str] = set()

    async def on_request(self, exchange: Exchange) -> None:
        self._seen.add(exchange.id)


class ReleasesWholeOnly(Plugin):
    """Gives back only after a whole answer."""

    async def start(self, services: Services) -> None:
        self._running = 0

    async def on_request(self, exchange: Exchange) -> None:
        self._running += 1

    async def on_end(self, exchange: Exchange) -> None:
        if exchange.outcome is Outcome.COMPLETED:
            self._running -= 1


class NeverReleases(Plugin):
    """Takes a place and keeps it."""

    async def start(self, services: Services) -> None:
        self._free = asyncio.Semaphore(1000)

    async def on_request(self, exchange: Exchange) -> None:
        await self._free.acquire()


class TrustsTheReply(Plugin):
    """Notes only after the reply what it took in the store."""

    async def start(self, services: Services) -> None:
        self._redis, self._key = services.redis, services.key("open")
        self._mine: set[str] = set()

    async def on_request(self, exchange: Exchange) -> None:
        await self._redis.call("SADD", self._key, exchange.id)
        self._mine.add(exchange.id)

    async def on_end(self, exchange: Exchange) -> None:
        if exchange.id in self._mine:
            self._mine.discard(exchange.id)
            await self._redis.call("SREM", self._key, exchange.id)


class AsksAgain(TrustsTheReply):
    """Asks once more for a reply that did not come, and trusts that one."""

    async def on_request(self, exchange: Exchange) -> None:
        try:
            await super().on_request(exchange)
        except StoreAway:
            await super().on_request(exchange)


class EndsWithoutABeginning(Plugin):
    """Expects at the end what was set after a wait."""

    async def start(self, services: Services) -> None:
        self._redis = services.redis

    async def on_request(self, exchange: Exchange) -> None:
        await self._redis.call("PING")
        exchange[Own] = Own()

    async def on_end(self, exchange: Exchange) -> None:
        exchange[Own]


class Hangs(Plugin):
    """Waits at the end for ever."""

    async def on_end(self, exchange: Exchange) -> None:
        await asyncio.Event().wait()


class Believes(Plugin):
    """Believes that every chunk is UTF-8."""

    def on_chunk(self, exchange: Exchange, chunk: bytes) -> None:
        chunk.decode()


class Works(Plugin):
    """Works in on_chunk."""

    def on_chunk(self, exchange: Exchange, chunk: bytes) -> None:
        for byte in chunk:
            chr(byte)


class Sleeps(Plugin):
    """Sleeps in on_chunk."""

    def on_chunk(self, exchange: Exchange, chunk: bytes) -> None:
        time.sleep(0)


class Sends(Plugin):
    """Sends from on_chunk."""

    async def start(self, services: Services) -> None:
        self._redis, self._key = services.redis, services.key("chunks")

    def on_chunk(self, exchange: Exchange, chunk: bytes) -> None:
        self._redis.submit("INCR", self._key)


class Forks(Plugin):
    """Begins a task in on_chunk."""

    def on_chunk(self, exchange: Exchange, chunk: bytes) -> None:
        self._task = asyncio.get_running_loop().create_task(asyncio.sleep(0))


class Once(Plugin):
    """Cannot be there twice."""

    there: ClassVar[bool] = False

    async def start(self, services: Services) -> None:
        if Once.there:
            raise OSError("the port is taken")
        Once.there = True

    async def stop(self) -> None:
        Once.there = False


class TakesToExplain(Good):
    """Explains by doing."""

    async def explain(self, exchange: Exchange) -> str:
        await self.on_request(exchange)
        return "opens one"


class ExplainsAnother(Plugin):
    """Lets everyone in, and says that it does not."""

    async def on_request(self, exchange: Exchange) -> None:
        pass

    async def explain(self, exchange: Exchange) -> str:
        raise Refused(403, "closed", "Never.")


class ExplainsWithoutItsFact(Plugin):
    """Forgets what those below need to explain themselves."""

    provides = (Own,)

    async def on_request(self, exchange: Exchange) -> None:
        exchange[Own] = Own()

    async def explain(self, exchange: Exchange) -> str:
        return "is there"


class LeavesATask(Plugin):
    """Does not stop what it started."""

    async def start(self, services: Services) -> None:
        self._task = asyncio.get_running_loop().create_task(asyncio.Event().wait())


class LeavesAThread(Plugin):
    """Does not stop a thread that it started."""

    go: ClassVar[threading.Event] = threading.Event()

    async def start(self, services: Services) -> None:
        threading.Thread(target=LeavesAThread.go.wait, daemon=True).start()


class ShowsItsKey(Plugin):
    """Shows its key to whoever prints it."""

    api_key: str = ""
    """What the service wants."""


class LogsTheToken(Plugin):
    """Logs what should never be."""

    async def start(self, services: Services) -> None:
        self._log = services.log

    async def on_request(self, exchange: Exchange) -> None:
        self._log.info("arrived", headers=dict(exchange.request.headers))


class LogsItsKey(Plugin):
    """Logs what it was given to keep."""

    api_key: str = ""
    """What the service wants."""

    async def start(self, services: Services) -> None:
        services.log.info("begins", key=self.api_key)

    def __repr__(self) -> str:
        return "<LogsItsKey>"
