"""Replaces what matches a pattern in a request before it leaves, such as card numbers.

What it cannot do:

- It reads text: that of every field, and the names of fields. It does not see what is in pictures, sounds and files, nor text that
  is encoded (in base64, say), translated or spelt with spaces. Numbers that are no text are left as they are.
- What is split between two texts, as between two messages or two parts of one, matches no pattern.
- In a text of more than 48 KiB, a pattern may miss a match of more than 16 KiB.
- The answer is not changed, and what was replaced is not put back into it.
- A pattern finds what it describes. Nothing here proves that a request has no personal data left.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Generator, Mapping
from typing import Any, Final

import msgspec

from gateway import Caller, Exchange, Plugin, Refused, Services
from plugins.text_search import JsonSearch, pattern_of

COMMON: Final = {
    "card-number": r"\b(?:\d[ -]?){12,18}\d\b",
    "e-mail": r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}",
    "private-key": (
        r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----[\s\S]*?(?=-----END |\Z)"
        r"(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----)?"
    ),
    "aws-key": r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
}
FIXED: Final = ("model", "stream", "stream_options")
"""Fields that are not changed: the name of a model that is served, and how the answer is delivered."""


class Redact(Plugin):
    """Replaces what matches a pattern by its name in brackets, in all texts of a request and names of fields. Put it below `auth`.

    The answer is not changed. Of names that an object has twice, only the last is sent. A large body is searched in pieces, about
    50 ms a megabyte and pattern, and others are served in between. A match of more than 16 KiB may be missed in a text of more than
    48 KiB.
    """

    API = 1
    requires = (Caller,)
    edits = True

    patterns: dict[str, str] = msgspec.field(default_factory=COMMON.copy)
    """Regular expressions by their names: what `card-number` matches becomes `[card-number]`."""

    async def start(self, services: Services) -> None:
        """Compile the patterns. Raises `ValueError` for an invalid one, which stops the start."""
        patterns = []
        for name, pattern in self.patterns.items():
            try:
                patterns.append(pattern_of(pattern))
            except (re.error, OverflowError, RecursionError) as error:
                raise ValueError(f"patterns.{name} is no regular expression: {error}") from None
        self._search = JsonSearch(patterns, [f"[{name}]" for name in self.patterns])
        self._turn = asyncio.Lock()

    async def on_request(self, exchange: Exchange) -> None:
        """Replace what matches in every text of the body."""
        await self._replace(exchange)

    async def explain(self, exchange: Exchange) -> str:
        """Do the same as `on_request`, which takes nothing."""
        changed = await self._replace(exchange)
        return f"replaces text in {', '.join(changed)}" if changed else "no pattern matches"

    async def _replace(self, exchange: Exchange) -> list[str]:
        """Return the names of the fields in which something was replaced."""
        if exchange.request.operation.wire is None:
            return []
        changed: dict[str, Any] = {}
        dropped: list[str] = []
        steps = self._changes((await exchange.body()).top, changed, dropped)
        for _ in steps:
            async with self._turn:  # of several large bodies, one piece is searched in a turn of the event loop
                await asyncio.sleep(0)
        if changed:
            await exchange.edit(changed, drop=dropped)
        return list(changed)

    def _changes(
        self, top: Mapping[str, msgspec.Raw], changed: dict[str, Any], dropped: list[str]
    ) -> Generator[None, None, None]:
        """Set what is to be sent in place of fields, and the names that are not sent, with a pause after each piece."""
        for name, raw in top.items():
            new_name = name if name in FIXED else (yield from self._search.name(name))
            value: Any = raw
            differs = new_name != name
            if name != "model" and bytes(memoryview(raw)[:1]) in (b'"', b"[", b"{"):
                try:
                    found = yield from self._search.value(raw)
                except msgspec.DecodeError:
                    text = f"'{name}' has a number that is too large."
                    raise Refused(400, "invalid_request", text, param=name) from None
                if found.changed:
                    value, differs = found.value, True
            if differs and name in FIXED:
                text = f"'{name}' has text that may not be sent from here, or a name twice."
                raise Refused(400, "invalid_request", text, param=name)
            if differs:
                changed[new_name] = value
            if new_name != name:
                dropped.append(name)
