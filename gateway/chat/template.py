"""The template of a stream's events: what nearly all of them have in common, all but their text. Sans-I/O.

An event that begins and ends like an earlier one, with neither a quote nor a line end in between, has another text in the same
JSON string. Nothing has to be looked for in it that was not in the earlier one, except what may be in a text.
"""

from __future__ import annotations

import re
import sys
from typing import Final

from gateway.chat.chunks import FIELDS, FIRST_CHOICE
from gateway.chat.sse import CARRIAGE_RETURN, LINE_FEED

ALL: Final = sys.maxsize
LEARN_AFTER: Final = 16
"""Events after which a template is replaced that fits no more: in the events of some upstreams, more than the text differs."""

_TEXT: Final = re.compile(rb'"(?:content|reasoning_content|reasoning)":"([^"\\]+)"')


class Template:
    """What surrounds the text of an event. `EventStream.feed` compares it itself: a call would cost as much as the comparison."""

    __slots__ = ("_head", "_learn_at", "after", "before", "novel", "size")

    def __init__(self) -> None:
        self.before = self.after = b""
        self.size = -1
        """The size of both together; -1 if there is no template."""
        self.novel = ALL
        """How many bytes may differ from all earlier events, of what was relayed last."""
        self._head = b"\r"
        """How the last event with only text began, up to its choices: often the next one begins so."""
        self._learn_at = 0

    def has_only_text(self, data: bytes, limit: int) -> bool:
        """Return whether data is one complete event of a single line of `limit` bytes, with a JSON object that has only text."""
        return (
            data.find(b"\n") == len(data) - 2
            and data[-1] == LINE_FEED
            and (data.startswith(self._head) or self._learn_head(data))
            and len(data) <= limit
            and CARRIAGE_RETURN not in data
            and FIELDS.search(data, len(self._head)) is None
        )

    def learn(self, event: bytes, events: int) -> None:
        """Keep what surrounds the text of an event that has only text, its number being `events`, unless it did so just before."""
        if events < self._learn_at:
            return
        self._learn_at = events + min(events, LEARN_AFTER) + 1
        if text := _TEXT.search(event, len(self._head)):
            self.before, self.after = event[: text.start(1)], event[text.end(1) :]
            self.size = len(self.before) + len(self.after)

    def forget(self) -> None:
        """Have no template any more: an event was relayed in another form than it had."""
        self.size, self._learn_at = -1, ALL

    def _learn_head(self, data: bytes) -> bool:
        """Return whether an event is a JSON object with a choice and nothing else before. What has none may be an error."""
        end = data.find(FIRST_CHOICE) + len(FIRST_CHOICE)
        if end < len(FIRST_CHOICE) or not data.startswith(b"data: {") or FIELDS.search(data, 0, end):
            return False
        self._head = data[:end]
        return True
