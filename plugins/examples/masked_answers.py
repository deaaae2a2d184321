"""Replaces card numbers in answers, also where one comes in several events. The hooks: `on_request`, `on_delta`."""

from __future__ import annotations

import re
from typing import Final

from gateway import Delta, Exchange, Plugin, Refused

CARD: Final = re.compile(r"\d(?:[ -]?\d){12,18}")
LONGEST: Final = 37
"""Characters of the longest card number, with a space between any two digits."""


class MaskedAnswers(Plugin):
    """Replaces card numbers in the text of answers. Put it below `auth`, above what answers.

    Looked at are the texts of chat completions and completions. Answers of other operations cannot be changed: requests for them
    are refused. Left as they are: tool calls, and a number that is split between two texts, or spelt with other signs than spaces.
    """

    API = 1

    mask: str = "[card-number]"
    """What stands in place of a card number."""

    async def on_request(self, exchange: Exchange) -> None:
        """Refuse what has an answer that is not looked at."""
        wire = exchange.request.operation.wire
        if wire is not None and wire.generates and not wire.rewrites:
            raise Refused(400, "invalid_request", "Answers are masked here: send the request to /v1/chat/completions.")

    async def explain(self, exchange: Exchange) -> str:
        """Do the same as `on_request`, which takes nothing."""
        await self.on_request(exchange)
        return "masks card numbers in the answer"

    def on_delta(self, exchange: Exchange, delta: Delta, last: bool) -> tuple[str, str] | None:
        """Hold back the digits at the end, which may be the beginning of a number. All other text passes at once."""
        text, at, parts = delta.text, 0, list[str]()
        number = text[len(text.rstrip("0123456789 -")) :].lstrip(" -")
        end = len(text) - (0 if last else min(len(number), LONGEST))
        for match in CARD.finditer(text):
            if match.start() >= end:
                break
            parts += (text[at : match.start()], self.mask)
            at = match.end()
        end = max(at, end)
        return "".join(parts) + text[at:end], text[end:]
