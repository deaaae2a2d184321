"""Refuses prompts with confidential content before they reach an upstream. The hooks: `start`, `on_request`."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from gateway import Exchange, Operation, Plugin, Refused, Services

COMMON: Final = {
    "card-number": r"\b(?:\d[ -]?){15}\d\b",
    "private-key": r"-----BEGIN [A-Z ]*PRIVATE KEY-----",
    "aws-key": r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
}


class PromptPatterns(Plugin):
    """Refuses prompts that match a pattern. The error names the pattern; the prompt is neither changed nor logged.

    Patterns are Python regular expressions. Searching a prompt blocks all other requests of the process, for about 50 ms a
    megabyte: avoid nested repeats, and put `PromptSize` above this plugin if prompts may be large.
    """

    API = 1
    patterns: dict[str, str] = msgspec.field(default_factory=COMMON.copy)
    """Regular expressions by their names, which callers see in the error."""

    async def start(self, services: Services) -> None:
        """Compile the patterns. Raises `ValueError` for an invalid one, which stops the start."""
        self._patterns = {}
        for name, pattern in self.patterns.items():
            try:
                self._patterns[name] = re.compile(pattern)
            except (re.error, OverflowError, RecursionError) as error:
                raise ValueError(f"patterns.{name} is no regular expression: {error}") from None

    async def on_request(self, exchange: Exchange) -> None:
        """Search every string of the messages, including parts and tool calls."""
        if exchange.request.operation is not Operation.CHAT:
            return
        text = "\n".join(_strings(msgspec.json.decode((await exchange.body()).top["messages"])))
        for name, pattern in self._patterns.items():
            if pattern.search(text):
                message = f"The prompt has something that may not be sent from here ({name}). Take it out and retry."
                raise Refused(400, "prompt_forbidden", message, param="messages")

    async def explain(self, exchange: Exchange) -> str:
        """Do the same as `on_request`, which takes nothing."""
        await self.on_request(exchange)
        return "no pattern matches"


def _strings(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [text for item in value for text in _strings(item)] if isinstance(value, list) else []
