"""Measures the time to the first text of a stream: the first event is often empty. The hooks: `on_chunk`, `on_end`."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from gateway import Exchange, Outcome, Plugin, Services

TEXT: Final = re.compile(rb'"(?:content|reasoning_content|arguments)"\s*:\s*"[^"]')


class FirstText(msgspec.Struct):
    """Milliseconds from the request's arrival to the first text; None as long as there was none."""

    after_ms: float | None = None


class FirstTokenAlarm(Plugin):
    """Logs a warning for each request whose first text came too late, with the channel that was slow."""

    API = 1
    slow_ms: float = 5000
    """The time from which on a warning is logged, in milliseconds from the request's arrival."""

    async def start(self, services: Services) -> None:
        """Take the log from the services."""
        self._log = services.log

    async def on_request(self, exchange: Exchange) -> None:
        """Keep the time in a fact of the exchange."""
        exchange[FirstText] = FirstText()

    async def explain(self, exchange: Exchange) -> str:
        """Return what it does. This plugin refuses no request."""
        return "watches for the first text"

    def on_chunk(self, exchange: Exchange, chunk: bytes) -> None:
        """Search chunks until there is text. Later chunks cost one comparison."""
        first = exchange[FirstText]
        if first.after_ms is None and TEXT.search(chunk):
            first.after_ms = exchange.duration_ms

    async def on_end(self, exchange: Exchange) -> None:
        """Log the warning. A caller that left before the first text waited until it left."""
        gave_up = exchange.outcome is Outcome.CALLER_GONE
        waited_ms = exchange[FirstText].after_ms or (exchange.duration_ms if gave_up else 0)
        if waited_ms >= self.slow_ms:
            self._log.warning(
                "first_token_slow",
                request_id=exchange.id,
                channel=exchange.channel,
                model=exchange.model,
                waited_ms=round(waited_ms),
                gave_up=gave_up,
            )
