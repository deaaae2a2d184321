"""Replaces what matches a pattern in a request before it leaves, such as card numbers.

What it cannot do:

- It reads text. It does not see what is in pictures, sounds and files, nor text that is encoded, translated or spelt with spaces.
- What is split between two texts, as between two messages or two parts of one, matches no pattern.
- It does not look at the names of fields, only at what they hold.
- The answer is not changed, and what was replaced is not put back into it.
- A pattern finds what it describes. Nothing here proves that a request has no personal data left.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any, Final

import msgspec

from gateway import Caller, Exchange, Operation, Plugin, Refused, Services

COMMON: Final = {
    "card-number": r"\b(?:\d[ -]?){12,18}\d\b",
    "e-mail": r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}",
    "private-key": r"-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]*(?:-----END [A-Z ]*PRIVATE KEY-----)?",
    "aws-key": r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
}
KEPT: Final = frozenset({"model", "role", "type", "id", "tool_call_id", "data", "file_data", "file_id", "format"})
"""Fields of which the text means something to the upstream, or is an encoded picture, sound or file."""
LARGE: Final = 64 * 1024


class Redact(Plugin):
    """Replaces what matches a pattern by its name in brackets, in all texts of a request. Put it below `auth`.

    The answer is not changed. Of a key that an object has twice, only the last value is searched. Searching blocks all other
    requests of the process, for about 50 ms a megabyte and pattern.
    """

    API = 1
    requires = (Caller,)
    edits = True

    patterns: dict[str, str] = msgspec.field(default_factory=COMMON.copy)
    """Regular expressions by their names: what `card-number` matches becomes `[card-number]`."""

    async def start(self, services: Services) -> None:
        """Compile the patterns. Raises `ValueError` for an invalid one, which stops the start."""
        self._patterns = []
        for name, pattern in self.patterns.items():
            try:
                self._patterns.append((re.compile(pattern), f"[{name}]".replace("\\", r"\\")))
            except (re.error, OverflowError, RecursionError) as error:
                raise ValueError(f"patterns.{name} is no regular expression: {error}") from None

    async def on_request(self, exchange: Exchange) -> None:
        """Replace what matches in every text of the body."""
        await self._replace(exchange)

    async def explain(self, exchange: Exchange) -> str:
        """Do the same as `on_request`, which takes nothing."""
        changed = await self._replace(exchange)
        return f"replaces text in {', '.join(changed)}" if changed else "no pattern matches"

    async def _replace(self, exchange: Exchange) -> list[str]:
        """Return the names of the fields in which something was replaced."""
        if exchange.request.operation is not Operation.CHAT:
            return []
        body = await exchange.body()
        changed = {}
        for name, raw in body.top.items():
            if name in KEPT or bytes(memoryview(raw)[:1]) not in (b'"', b"[", b"{"):
                continue
            try:
                before = msgspec.json.decode(raw)
            except msgspec.DecodeError:
                raise Refused(400, "invalid_request", f"'{name}' has a number that is too large.", param=name) from None
            parts = []
            for part in before if isinstance(before, list) else [before]:
                parts.append(self._redacted(part))
                if body.size > LARGE:
                    await asyncio.sleep(0)  # others are served between two messages
            after = parts if isinstance(before, list) else parts[0]
            if after != before:
                changed[name] = after
        if changed:
            await exchange.edit(changed)
        return list(changed)

    def _redacted(self, value: Any) -> Any:
        if isinstance(value, str):
            for pattern, name in self._patterns:
                value = pattern.sub(name, value)
            return value
        if isinstance(value, dict):
            return {name: each if _kept(name, each) else self._redacted(each) for name, each in value.items()}
        return [self._redacted(each) for each in value] if isinstance(value, list) else value


def _kept(name: str, value: Any) -> bool:
    """Return whether a value is left as it is. An address may have something in it, but not one that is a picture itself."""
    return name in KEPT or (name == "url" and isinstance(value, str) and value.startswith("data:"))
