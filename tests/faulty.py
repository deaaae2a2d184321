"""Plugins that each break one promise, for the contract tests to find."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import ClassVar

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway import (
    AnswerDelta,
    AnswerReader,
    Caller,
    ChatRequest,
    Delta,
    Dialect,
    Exchange,
    Operation,
    Outcome,
    Plugin,
    Refused,
    Reply,
    Script,
    Services,
    Step,
)
from gateway.base.errors import StoreAway


class Good(Plugin):
    """Does everything that a plugin may do, correctly."""

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
    """Replies in place of the upstream."""

    async def on_request(self, exchange: Exchange) -> Reply:
        return Reply(200, b"{}")


class NoDocstring(Plugin):
    async def on_end(self, exchange: Exchange) -> None: ...


class Undocumented(Plugin):
    """Has a setting without documentation."""

    known: int = 1
    """Known."""
    unknown: int = 2


class Inherits(Undocumented):
    """Inherits the setting without documentation."""

    own: int = 3
    """Its own."""


class Waits(Plugin):
    """Has an async hook where it must not wait."""

    async def on_chunk(self, exchange: Exchange, chunk: bytes) -> None: ...  # type: ignore[override]


class Blocks(Plugin):
    """Has a hook that is not async where it must be."""

    def on_request(self, exchange: Exchange) -> None: ...  # type: ignore[override]


class TakesTooLittle(Plugin):
    """Has a hook without the parameter for the chunk."""

    def on_chunk(self, exchange: Exchange) -> None: ...  # type: ignore[override]


class Misspelt(Plugin):
    """Has a hook with a misspelt name."""

    async def on_requests(self, exchange: Exchange) -> None: ...


class NamesFacts(Plugin):
    """Names a fact by a string."""

    requires = ("Caller",)  # type: ignore[assignment]


class PromisesOnly(Plugin):
    """Provides a fact without a hook that sets it."""

    provides = (Caller,)


class Lacks(Plugin):
    """Does not set the fact that it provides."""

    provides = (Caller,)

    async def on_request(self, exchange: Exchange) -> None: ...


class Own(msgspec.Struct):
    """A fact that no installed plugin provides."""


class NeedsOwn(Plugin):
    """Requires a fact that nothing installed provides."""

    requires = (Own,)


class Undeclared(Plugin):
    """Reads a fact without requiring it."""

    async def on_request(self, exchange: Exchange) -> None:
        exchange[Caller]


class Refuses(Plugin):
    """Refuses every request."""

    async def on_request(self, exchange: Exchange) -> None:
        raise Refused(403, "closed", "Come back later.")


class NeverStarts(Plugin):
    """Does not start."""

    async def start(self, services: Services) -> None:
        raise ValueError("opens must be before closes")


class Fails(Plugin):
    """Raises in `start`."""

    async def start(self, services: Services) -> None:
        raise RuntimeError("a bug")


class Exits(Plugin):
    """Ends the process in `on_request`."""

    async def on_request(self, exchange: Exchange) -> None:
        raise SystemExit(3)


class AssignsId(Plugin):
    """Gives the request another id."""

    async def on_request(self, exchange: Exchange) -> None:
        exchange.id = "mine"


class ReplacesHeaders(Plugin):
    """Leaves no headers."""

    async def on_request(self, exchange: Exchange) -> None:
        exchange.response_headers = None  # type: ignore[assignment]


class ReadsEveryBody(Plugin):
    """Reads a body where there is none."""

    async def on_request(self, exchange: Exchange) -> None:
        await exchange.body()


class Grows(Plugin):
    """Keeps the id of every request for ever."""

    async def start(self, services: Services) -> None:
        self._seen: set[str] = set()

    async def on_request(self, exchange: Exchange) -> None:
        self._seen.add(exchange.id)


class ReleasesWholeOnly(Plugin):
    """Gives back only after a complete answer."""

    async def start(self, services: Services) -> None:
        self._running = 0

    async def on_request(self, exchange: Exchange) -> None:
        self._running += 1

    async def on_end(self, exchange: Exchange) -> None:
        if exchange.outcome is Outcome.COMPLETED:
            self._running -= 1


class NeverReleases(Plugin):
    """Takes a slot and never releases it."""

    async def start(self, services: Services) -> None:
        self._free = asyncio.Semaphore(1000)

    async def on_request(self, exchange: Exchange) -> None:
        await self._free.acquire()


class TrustsTheReply(Plugin):
    """Records what it took in the store only after the reply."""

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


class CountsAgain(Plugin):
    """Plans a step that counts again when it is sent again."""

    async def start(self, services: Services) -> None:
        self._keys = [services.key("{a}")]

    async def request_step(self, exchange: Exchange) -> Step:
        return Step(Script("count", "return redis.call('INCR', KEYS[1])"), self._keys)


class FailsInTheStore(Plugin):
    """Plans a step with an error in its Lua."""

    async def start(self, services: Services) -> None:
        self._keys = [services.key("{a}")]

    async def request_step(self, exchange: Exchange) -> Step:
        return Step(Script("fail", "return missing.name"), self._keys)


class KeepsItsStep(Plugin):
    """Returns one step for all requests."""

    async def start(self, services: Services) -> None:
        self._step = Step(Script("look", "return redis.call('EXISTS', KEYS[1])"), [services.key("{a}")])

    async def request_step(self, exchange: Exchange) -> Step:
        return self._step


class SpreadsItsKeys(Plugin):
    """Plans a step whose keys are in two hash slots."""

    async def start(self, services: Services) -> None:
        self._keys = [services.key("{a}"), services.key("{b}")]

    async def request_step(self, exchange: Exchange) -> Step:
        return Step(Script("look", "return redis.call('EXISTS', KEYS[1])"), self._keys)


class HasBothForms(SpreadsItsKeys):
    """Defines both forms of the request hook."""

    async def on_request(self, exchange: Exchange) -> None: ...


class PlansAndCounts(Plugin):
    """Does something in request_step that must happen once."""

    async def request_step(self, exchange: Exchange) -> None:
        if Own in exchange:
            raise RuntimeError("planned twice")
        exchange[Own] = Own()


class AsksAgain(TrustsTheReply):
    """Repeats the command after a lost reply, and trusts the second reply."""

    async def on_request(self, exchange: Exchange) -> None:
        try:
            await super().on_request(exchange)
        except StoreAway:
            await super().on_request(exchange)


class EndsWithoutABeginning(Plugin):
    """Expects in on_end a fact that is set after a wait."""

    async def start(self, services: Services) -> None:
        self._redis = services.redis

    async def on_request(self, exchange: Exchange) -> None:
        await self._redis.call("PING")
        exchange[Own] = Own()

    async def on_end(self, exchange: Exchange) -> None:
        exchange[Own]


class Hangs(Plugin):
    """Waits for ever in on_end."""

    async def on_end(self, exchange: Exchange) -> None:
        await asyncio.Event().wait()


class Believes(Plugin):
    """Assumes that every chunk is UTF-8."""

    def on_chunk(self, exchange: Exchange, chunk: bytes) -> None:
        chunk.decode()


class Once(Plugin):
    """Cannot start beside another instance."""

    there: ClassVar[bool] = False

    async def start(self, services: Services) -> None:
        if Once.there:
            raise OSError("the port is taken")
        Once.there = True

    async def stop(self) -> None:
        Once.there = False


class TakesToExplain(Good):
    """Does in explain what it does in on_request."""

    async def explain(self, exchange: Exchange) -> str:
        await self.on_request(exchange)
        return "opens one"


class ExplainsAnother(Plugin):
    """Accepts every request, and explains that it refuses."""

    async def on_request(self, exchange: Exchange) -> None:
        pass

    async def explain(self, exchange: Exchange) -> str:
        raise Refused(403, "closed", "Never.")


class ExplainsWithoutItsFact(Plugin):
    """Does not set its fact in explain."""

    provides = (Own,)

    async def on_request(self, exchange: Exchange) -> None:
        exchange[Own] = Own()

    async def explain(self, exchange: Exchange) -> str:
        return "is there"


class ShowsItsKey(Plugin):
    """Shows its key in its repr."""

    api_key: str = ""
    """What the service wants."""


class ShowsAnAddress(Plugin):
    """Shows the address of a service in its repr, with what it has of credentials."""

    url: str = ""
    """Where the service is."""


class ChangesEachPiece(Plugin):
    """Replaces a number in each piece of an answer by itself."""

    def on_delta(self, exchange: Exchange, delta: Delta, last: bool) -> tuple[str, str]:
        return delta.text.replace("4111 1111", "..."), ""


class HoldsAllBack(Plugin):
    """Holds an answer back until it is whole."""

    def on_delta(self, exchange: Exchange, delta: Delta, last: bool) -> tuple[str, str]:
        return "", delta.text


class FailsAtAWord(Plugin):
    """Fails at a word of an answer."""

    def on_delta(self, exchange: Exchange, delta: Delta, last: bool) -> tuple[str, str]:
        return (delta.text, "") if "banana" not in delta.text else (str(1 // 0), "")


class OwnRedis(Plugin):
    """Keeps answers in a Redis of its own, with redis-py, which reads a file when it connects."""

    url: str
    """Where it is."""

    async def start(self, services: Services) -> None:
        self._client = Redis.from_url(self.url)

    async def stop(self) -> None:
        await self._client.aclose()

    async def on_request(self, exchange: Exchange) -> None:
        with suppress(RedisError):  # it is a cache
            await self._client.set("plugin:last", "any", ex=60)


class LogsTheToken(Plugin):
    """Logs the caller's token."""

    async def start(self, services: Services) -> None:
        self._log = services.log

    async def on_request(self, exchange: Exchange) -> None:
        self._log.info("arrived", headers=dict(exchange.request.headers))


class LogsItsKey(Plugin):
    """Logs its key."""

    api_key: str = ""
    """What the service wants."""

    async def start(self, services: Services) -> None:
        services.log.info("begins", key=self.api_key)

    def __repr__(self) -> str:
        return "<LogsItsKey>"


class AnswersADict(Plugin):
    """Returns what is no Reply."""

    async def on_request(self, exchange: Exchange) -> Reply:
        return {"answer": "yes"}  # type: ignore[return-value]


class PlansADict(Plugin):
    """Returns what is no Step."""

    async def request_step(self, exchange: Exchange) -> Step:
        return {"keys": []}  # type: ignore[return-value]


class ReturnsAChunk(Plugin):
    """Returns another chunk, as if it could be changed."""

    def on_chunk(self, exchange: Exchange, chunk: bytes) -> None:
        return chunk.replace(b"a", b"b")  # type: ignore[return-value]


class RefusesInEnd(Plugin):
    """Returns something from on_end."""

    async def on_end(self, exchange: Exchange) -> None:
        return Refused(403, "late", "Too late.")  # type: ignore[return-value]


class ExplainsInNumbers(Plugin):
    """Explains with a number."""

    async def explain(self, exchange: Exchange) -> str:
        return 1  # type: ignore[return-value]


class EditsUndeclared(Plugin):
    """Changes the request and does not say so."""

    async def on_request(self, exchange: Exchange) -> None:
        if exchange.request.operation is Operation.CHAT:
            await exchange.edit({"seed": 1})


class EditsNowhere(Plugin):
    """Says that it changes the request, and has no hook to do so."""

    edits = True


class EditsBadly(Plugin):
    """Makes a request that no upstream would take."""

    edits = True

    async def on_request(self, exchange: Exchange) -> None:
        if exchange.request.operation is Operation.CHAT:
            await exchange.edit({}, drop=["messages"])


class EditsLate(Plugin):
    """Changes the request when it was sent."""

    def on_response(self, exchange: Exchange) -> None:
        exchange.edit({"seed": 1}).send(None)


class ExplainsNoEdit(Plugin):
    """Changes the request, but not when it explains itself."""

    edits = True

    async def on_request(self, exchange: Exchange) -> None:
        if exchange.request.operation is Operation.CHAT:
            await exchange.edit({"seed": 1})

    async def explain(self, exchange: Exchange) -> str:
        return "sets the seed"


class CountsUndeclared(Plugin):
    """Refuses long answers and does not say that it counts."""

    async def on_request(self, exchange: Exchange) -> None:
        if exchange.request.operation is Operation.CHAT and ((await exchange.body()).max_tokens or 0) > 1000:
            raise Refused(400, "too_long", "Ask for less.")


ENOUGH = Refused(400, "enough", "Enough.")


class StopsWithText(Plugin):
    """Ends a stream with what is no error."""

    def on_chunk(self, exchange: Exchange, chunk: bytes) -> None:
        exchange.stop("enough")  # type: ignore[arg-type]


class Texts(list[str]):
    """The texts of a stream."""


class ReadsOnlyStreams(Plugin):
    """Takes an answer that is not streamed for an event."""

    def on_response(self, exchange: Exchange) -> None:
        if exchange.answer is not None:
            exchange.answer["choices"][0]["delta"]


class AnswersHalf(Plugin):
    """Answers without an end."""

    async def on_request(self, exchange: Exchange) -> Reply | None:
        return Reply(events=self.play()) if exchange.request.operation is Operation.CHAT else None

    async def play(self) -> AsyncIterator[bytes]:
        yield b'data: {"choices":[{"index":0,"delta":{"content":"half"}}]}\n\n'


class AnswersText(AnswersHalf):
    """Answers with text."""

    async def play(self) -> AsyncIterator[bytes]:
        yield "data: [DONE]\n\n"  # type: ignore[misc]


class AnswersAndFails(AnswersHalf):
    """Answers, and fails in the middle."""

    async def play(self) -> AsyncIterator[bytes]:
        yield b'data: {"choices":[{"index":0,"delta":{"content":"half"}}]}\n\n'
        raise ZeroDivisionError


class AnswersAndStays(AnswersHalf):
    """Does not end when its caller leaves."""

    async def play(self) -> AsyncIterator[bytes]:
        try:
            yield b'data: {"choices":[{"index":0,"delta":{"content":"all"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
        except GeneratorExit:
            await asyncio.Event().wait()


class AnswersAFunction(AnswersHalf):
    """Forgets to call the generator function."""

    async def on_request(self, exchange: Exchange) -> Reply | None:
        return Reply(events=self.play)  # type: ignore[arg-type]


class RequiresAType(Plugin):
    """Requires a fact."""

    requires = Caller  # type: ignore[assignment]


class ProvidesADialect(Plugin):
    """Names a dialect, and no tuple of them."""

    dialects = Dialect  # type: ignore[assignment]


class RepeatsACoroutine(Plugin):
    """Calls the function itself."""

    async def start(self, services: Services) -> None:
        services.every(60, self._refresh())  # type: ignore[arg-type]

    async def _refresh(self) -> None:
        pass


class ForgetsToAwaitTheBody(Plugin):
    """Reads the body without waiting for it."""

    async def on_request(self, exchange: Exchange) -> None:
        body = exchange.body()
        try:
            body.model  # type: ignore[attr-defined] # noqa: B018
        finally:
            body.close()


class SendsABadHeader(Plugin):
    """Sends what a caller wrote."""

    def on_response(self, exchange: Exchange) -> None:
        exchange.response_headers["x-note"] = "two\r\nlines"


class SendsAnId(Plugin):
    """Gives requests an id of its own."""

    async def on_request(self, exchange: Exchange) -> None:
        exchange.response_headers["X-Request-Id"] = "mine"


class SendsANumber(Plugin):
    """Sends a number."""

    def on_response(self, exchange: Exchange) -> None:
        exchange.response_headers["x-tries"] = len(exchange.attempts)  # type: ignore[assignment]


class PrintsTheToken(Plugin):
    """Prints what it gets."""

    async def on_request(self, exchange: Exchange) -> None:
        print(dict(exchange.request.headers))


class LogsTheTokenByItself(Plugin):
    """Logs what it gets, in Python's own way."""

    async def on_request(self, exchange: Exchange) -> None:
        logging.getLogger("mine").warning("%s", exchange.request.headers["authorization"])


class CountsInTwoKinds(Plugin):
    """Has one name for two metrics."""

    async def start(self, services: Services) -> None:
        services.metrics.counter("seen", "Seen.")
        services.metrics.histogram("seen", "Seen.")


class AssignsTheCharge(Plugin):
    """Makes requests free."""

    async def on_end(self, exchange: Exchange) -> None:
        exchange.charge_micros = 0  # type: ignore[misc]


class WritesTheBody(Plugin):
    """Changes the request past `edit`."""

    edits = True

    async def on_request(self, exchange: Exchange) -> None:
        if exchange.request.operation is Operation.CHAT:
            (await exchange.body()).top["seed"] = msgspec.Raw(b"1")  # type: ignore[index]


class EditsWithNoNumber(Plugin):
    """Sets a field to what JSON does not have."""

    edits = True

    async def on_request(self, exchange: Exchange) -> None:
        if exchange.request.operation is Operation.CHAT:
            await exchange.edit({"temperature": float("nan")})


class Plain(Dialect):
    """A dialect without a fault."""

    name = "plain"
    path = "/plain"

    def request(self, chat: ChatRequest) -> bytes:
        return msgspec.json.encode({"limit": chat.max_tokens})

    def reader(self) -> AnswerReader:
        return NoReader()


class NoReader(AnswerReader):
    """Knows nothing."""

    def read(self, name: str, data: bytes) -> Iterable[AnswerDelta]:
        return ()


class GoodDialect(Plugin):
    """Provides a dialect."""

    dialects = (Plain,)


class AuthOfNoKind(Plugin):
    """Has a dialect with a way to authenticate that there is not."""

    class Faulty(Plain):
        """Faulty."""

        auth = "basic"

    dialects = (Faulty,)


class AuthIsNone(Plugin):
    """Has a dialect without a way to authenticate."""

    class Faulty(Plain):
        """Faulty."""

        auth = None  # type: ignore[assignment]

    dialects = (Faulty,)


class AsksInText(Plugin):
    """Has a dialect that asks in text."""

    class Faulty(Plain):
        """Faulty."""

        def request(self, chat: ChatRequest) -> bytes:
            return '{"limit": 4711}'  # type: ignore[return-value]

    dialects = (Faulty,)


class ForgetsTheLimit(Plugin):
    """Has a dialect that sends no limit."""

    class Faulty(Plain):
        """Faulty."""

        def request(self, chat: ChatRequest) -> bytes:
            return b"{}"

    dialects = (Faulty,)


class HasNoReader(Plugin):
    """Has a dialect that makes no reader."""

    class Faulty(Plain):
        """Faulty."""

        def reader(self) -> AnswerReader:
            return None  # type: ignore[return-value]

    dialects = (Faulty,)


class ReadsDicts(Plugin):
    """Has a dialect whose reader gives what is no delta."""

    class Faulty(Plain):
        """Faulty."""

        def reader(self) -> AnswerReader:
            return Reader()

    dialects = (Faulty,)


class Reader(AnswerReader):
    """Gives dicts."""

    def read(self, name: str, data: bytes) -> Iterable[AnswerDelta]:
        yield {"message": {}}  # type: ignore[misc]


class KnowsItAll(Plugin):
    """Has a dialect whose reader fails at what it does not know."""

    class Faulty(Plain):
        """Faulty."""

        def reader(self) -> AnswerReader:
            return Strict()

    dialects = (Faulty,)


class Strict(AnswerReader):
    """Knows all events."""

    def read(self, name: str, data: bytes) -> Iterable[AnswerDelta]:
        raise KeyError(name)


class ErrorOfText(Plugin):
    """Has a dialect whose errors are texts."""

    class Faulty(Plain):
        """Faulty."""

        def error(self, status: int, body: bytes) -> tuple[int, bytes]:
            return body.decode()  # type: ignore[return-value]

    dialects = (Faulty,)


class ExitsInStop(Plugin):
    """Ends the process in `stop`."""

    async def stop(self) -> None:
        raise SystemExit(3)


class FailsInStop(Plugin):
    """Has a bug in `stop`."""

    async def stop(self) -> None:
        raise RuntimeError("a bug")


class NeverEndsItsStart(Plugin):
    """Waits for ever in `start`."""

    async def start(self, services: Services) -> None:
        await asyncio.Event().wait()


class NeverEndsItsStop(Plugin):
    """Waits for ever in `stop`."""

    async def stop(self) -> None:
        await asyncio.Event().wait()
