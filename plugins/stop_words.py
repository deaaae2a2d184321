"""Ends a stream before a forbidden word reaches the caller, also where the word comes in several events."""

from __future__ import annotations

import re
from typing import ClassVar, Final

import msgspec

from gateway import Delta, Exchange, Operation, Plugin, Refused, Services

MOST_TEXTS: Final = 128
"""Texts of one answer (choices, their reasoning, tool calls) whose ends are kept. A stream that has more is ended."""


class Tails(msgspec.Struct):
    """The end of each text of an answer, in which a word may have begun."""

    ends: dict[object, str] = {}


class StopWords(Plugin):
    """Ends a stream with an error before the event that completes one of some words. What came before it was delivered.

    A word is looked for in each text by itself: in the answer, its reasoning, refusals, tool calls and transcripts. Its beginning
    may have been delivered. An event that is too long to be read ends the stream, too. Requests that are not streamed are refused,
    since nothing looks at their answers.
    """

    API = 1

    words: tuple[str, ...]
    """The words or phrases, found anywhere in a text, also within other words."""
    ignore_case: bool = True
    """Whether capitals do not matter."""
    message: str = "The answer was ended: it has something that may not be sent from here."
    """What the caller reads."""

    longest: ClassVar[int] = 1000

    def __post_init__(self) -> None:
        if not self.words or not all(self.words) or max(map(len, self.words)) > self.longest:
            raise ValueError(f"words must be one or more, each of 1 to {self.longest} characters")

    async def start(self, services: Services) -> None:
        """Compile the words to one pattern."""
        self._pattern = re.compile("|".join(map(re.escape, self.words)), re.IGNORECASE if self.ignore_case else 0)
        self._keep = max(map(len, self.words)) - 1

    async def on_request(self, exchange: Exchange) -> None:
        """Refuse a request whose answer would not be seen."""
        if exchange.request.operation is Operation.CHAT:
            if not (await exchange.body()).stream:
                text = 'Answers are checked while they are streamed: add "stream": true to the body.'
                raise Refused(400, "stream_required", text, param="stream")
            exchange[Tails] = Tails()

    async def explain(self, exchange: Exchange) -> str:
        """Do the same as `on_request`, which takes nothing."""
        await self.on_request(exchange)
        return f"looks for {len(self.words)} words in the answer"

    def on_chunk(self, exchange: Exchange, chunk: bytes) -> None:
        """Search each text with the end of what came before it."""
        ends = exchange[Tails].ends
        for delta in exchange.deltas(chunk):
            if self._forbidden(ends, delta):
                exchange.stop(Refused(400, "content_stopped", self.message), keep=delta.start)
                return

    def _forbidden(self, ends: dict[object, str], delta: Delta) -> bool:
        """Return whether a text has a word now, or cannot be searched. Keep its end."""
        text = ends.get(delta.key, "") + delta.text
        if delta.kind == "unread" or self._pattern.search(text) or len(ends) >= MOST_TEXTS:
            return True
        ends[delta.key] = text[-self._keep :] if self._keep else ""
        return False
