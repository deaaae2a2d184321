"""Answers a request that was asked before with the answer that was given then, event for event.

Only streamed requests with `temperature: 0` are kept, and answered where every field is equal. Answers are in the memory of each
worker: in the store they would take the memory that balances need, and each request would wait for one more reply.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from hashlib import blake2b
from typing import Literal

import msgspec

from gateway import Caller, Exchange, Operation, Outcome, Plugin, Reply, Route, Services, Usage

HIT = {"x-answer-cache": "hit"}


class CachedAnswer(msgspec.Struct):
    """An answer: while it comes, and when it is kept, until `expires`, a time of the clock that never jumps."""

    key: bytes
    model: str
    events: list[bytes] = []
    size: int = 512  # what it takes besides the events
    usage: Usage = Usage()
    expires: float = 0


class AnswerCache(Plugin):
    """Answers equal requests with `temperature: 0` from memory. Put it below `model-routing`, which checks the caller's rights.

    Answers that were refused, cut or ended with an error are not kept, nor those of a model that served in place of another.
    """

    API = 1
    requires = (Caller, Route)

    seconds: float = 300
    """How long an answer is kept."""
    megabytes: float = 64
    """The memory that all answers of one worker may take; the oldest are dropped first."""
    longest_kilobytes: float = 256
    """The largest answer that is kept."""
    shared: bool = False
    """Whether accounts get answers to requests of others, and so may find out what these have asked."""
    charge: Literal["none", "as-upstream"] = "none"
    """What a kept answer costs the caller: nothing, or as much as the upstream's, without what failed attempts before it cost."""

    def __post_init__(self) -> None:
        if min(self.seconds, self.megabytes, self.longest_kilobytes) <= 0:
            raise ValueError("seconds, megabytes and longest_kilobytes must be above 0")

    async def start(self, services: Services) -> None:
        """Begin with no answers."""
        self._clock = services.clock
        self._answers: dict[bytes, CachedAnswer] = {}
        self._size = 0

    async def on_request(self, exchange: Exchange) -> Reply | None:
        """Answer from memory, or begin to record the answer."""
        key = await self._key(exchange)
        if key and (answer := self._found(key)):
            return Reply(headers=HIT, events=_replay(answer.events), usage=answer.usage, charge=self.charge)
        if key:
            exchange[CachedAnswer] = CachedAnswer(key, exchange.model)
        return None

    async def explain(self, exchange: Exchange) -> str:
        """Return whether there is an answer."""
        key = await self._key(exchange)
        kept = "answers from memory" if key and self._found(key) else "keeps the answer"
        return kept if key else "does not keep answers to such requests"

    def on_chunk(self, exchange: Exchange, chunk: bytes) -> None:
        """Keep what the caller gets, unless it is too large."""
        answer = exchange.get(CachedAnswer)
        if answer is not None:
            answer.size += len(chunk)
            if answer.size <= self.longest_kilobytes * 1024:
                answer.events.append(chunk)
            else:
                answer.events.clear()

    async def on_end(self, exchange: Exchange) -> None:
        """Keep a complete answer of the model that was asked for: once it is back, it answers."""
        answer = exchange.get(CachedAnswer)
        if answer is None or not answer.events or exchange.model != answer.model:
            return
        if exchange.outcome is Outcome.COMPLETED:
            self._drop(answer.key)
            # What failed attempts used is no part of the answer.
            answer.usage = exchange.attempts[-1].usage if exchange.attempts else exchange.usage
            answer.expires = self._clock.monotonic() + self.seconds
            self._answers[answer.key] = answer
            self._size += answer.size
            while self._size > self.megabytes * 1_000_000:
                self._drop(next(iter(self._answers)))

    async def _key(self, exchange: Exchange) -> bytes | None:
        """Return what is the same for equal requests; None for one that is not kept."""
        if exchange.request.operation is not Operation.CHAT:
            return None
        body = await exchange.body()
        if not body.stream or msgspec.json.decode(body.top.get("temperature", b"1")) != 0:
            return None
        digest = blake2b(msgspec.json.encode("" if self.shared else exchange[Caller].account), digest_size=32)
        for name, value in sorted(body.top.items()):
            digest.update(b"%b:%d:%b," % (msgspec.json.encode(name), len(memoryview(value)), value))
        return digest.digest()

    def _found(self, key: bytes) -> CachedAnswer | None:
        if key in self._answers and self._answers[key].expires <= self._clock.monotonic():
            self._drop(key)
        return self._answers.get(key)

    def _drop(self, key: bytes) -> None:
        self._size -= self._answers.pop(key).size if key in self._answers else 0


async def _replay(events: list[bytes]) -> AsyncIterator[bytes]:
    for event in events:
        yield event
