"""How long a caller looked at nothing. The first event is often empty; what counts is the first text."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from gateway import Exchange, Outcome, Plugin, Services

TEXT: Final = re.compile(rb'"(?:content|reasoning_content|arguments)"\s*:\s*"[^"]')


class Waited(msgspec.Struct):
    """Milliseconds until the first text, once there was one."""

    ms: float | None = None


class FirstTokenAlarm(Plugin):
    """Logs a warning for each request whose first text took too long, with the channel that was slow."""

    slow_ms: float = 5000
    """From this on it is worth a line, in milliseconds from the request's arrival."""

    async def start(self, services: Services) -> None:
        """Take the log."""
        self._log = services.log

    async def on_request(self, exchange: Exchange) -> None:
        """Begin to wait."""
        exchange[Waited] = Waited()

    async def explain(self, exchange: Exchange) -> str:
        """Nobody is refused here."""
        return "watches for the first text"

    def on_chunk(self, exchange: Exchange, chunk: bytes) -> None:
        """Look until there is text, and not beyond."""
        waited = exchange[Waited]
        if waited.ms is None and TEXT.search(chunk):
            waited.ms = exchange.duration_ms

    async def on_end(self, exchange: Exchange) -> None:
        """A caller who gave up before the first text has waited, too."""
        gave_up = exchange.outcome is Outcome.CALLER_GONE
        waited = exchange[Waited].ms or (exchange.duration_ms if gave_up else 0)
        if waited >= self.slow_ms:
            self._log.warning(
                "first_token_slow",
                request_id=exchange.id,
                channel=exchange.channel,
                model=exchange.model,
                waited_ms=round(waited),
                gave_up=gave_up,
            )
