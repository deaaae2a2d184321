"""Ends an answer before a forbidden word reaches the caller, also where the word comes in several events.

What it cannot do: take back the beginning of a word that came in an earlier event than its end; see a word that is spelt with
spaces, or encoded otherwise than by the escapes of JSON; read comments between events, the names of fields, ids, the errors of the
gateway, and an upstream's error in place of an answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import ClassVar, Final

import msgspec

from gateway import Delta, Exchange, Plugin, Refused, Services
from plugins.text_search import unescaped

LONGEST_ESCAPE: Final = 26
"""Characters in which JSON may write one: two halves, such as `\\ud83d\\ude00`, each with up to eight backslashes where that
JSON is a text of other JSON, up to four times."""
MOST_TEXTS: Final = 256
"""Texts of one answer (choices, their reasoning, tool calls) whose ends are kept. A stream that has more is ended."""


class TextTail(msgspec.Struct):
    """The end of a text, in which a word may have begun, and that of what came in each of its fields."""

    end: str = ""
    fields: dict[str, str] = {}


class Tails(msgspec.Struct):
    """The ends of the texts of an answer."""

    ends: dict[object, TextTail] = {}


class StopWords(Plugin):
    """Ends an answer with an error before a word reaches the caller. What came in events before the one that completes it was sent.

    A word is looked for in each text by itself: in the answer, its reasoning, refusals, tool calls, transcripts, and every other
    field. A text may itself be JSON, such as the arguments of a tool: its escapes are read. Where a text may come in two fields,
    such as `reasoning` and `reasoning_content`, it is looked for in each of them, too. What cannot be read ends the answer: an
    event that is too long, or is no JSON, and more than 256 texts. An answer that is not streamed is read before any of it is sent.
    An upstream's error that comes in place of an answer is not searched.
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
        """Begin to look at an answer."""
        wire = exchange.request.operation.wire
        if wire is not None and wire.generates:
            exchange[Tails] = Tails()

    async def explain(self, exchange: Exchange) -> str:
        """Do the same as `on_request`, which takes nothing."""
        return f"looks for {len(self.words)} words in the answer"

    def on_response(self, exchange: Exchange) -> None:
        """Search an answer that is not streamed."""
        self._search(exchange, exchange.deltas())

    def on_chunk(self, exchange: Exchange, chunk: bytes) -> None:
        """Search each text with the end of what came before it."""
        self._search(exchange, exchange.deltas(chunk))

    def _search(self, exchange: Exchange, deltas: Iterable[Delta]) -> None:
        if Tails not in exchange:
            return
        ends = exchange[Tails].ends
        for delta in deltas:
            if delta.kind == "unread":
                text = "The answer was ended: it has an event that is too long or is no JSON, so that it cannot be checked."
                exchange.stop(Refused(400, "content_stopped", text), keep=delta.start)
                return
            if delta.key not in ends and len(ends) >= MOST_TEXTS:
                text = f"The answer was ended: it has more than {MOST_TEXTS} texts, so that it cannot be checked."
                exchange.stop(Refused(400, "content_stopped", text), keep=delta.start)
                return
            if self._forbidden(ends, delta):
                exchange.stop(Refused(400, "content_stopped", self.message), keep=delta.start)
                return

    def _forbidden(self, ends: dict[object, TextTail], delta: Delta) -> bool:
        """Return whether a text has a word now. Keep its end."""
        tail = ends.get(delta.key)
        if tail is None:
            tail = ends[delta.key] = TextTail(fields={delta.field: ""})
        if delta.field not in tail.fields:
            tail.fields[delta.field] = ""
        text = tail.end + delta.text
        if self._has_word(text):
            return True
        tail.end = self._end(text)
        # As long as a text comes in one field, what came in this field is the text.
        text = tail.fields[delta.field] + delta.text if len(tail.fields) > 1 else text
        if len(tail.fields) > 1 and self._has_word(text):
            return True
        tail.fields[delta.field] = self._end(text)
        return False

    def _has_word(self, text: str) -> bool:
        return bool(self._pattern.search(text) or ("\\" in text and self._pattern.search(unescaped(text))))

    def _end(self, text: str) -> str:
        """Return the end of a text in which a word may have begun."""
        longer = text[-LONGEST_ESCAPE * (self._keep + 1) :]
        if "\\" in longer:
            return longer
        return text[-self._keep :] if self._keep else ""
