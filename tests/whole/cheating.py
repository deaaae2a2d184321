"""A plugin above `quota` that tries to change what is charged or recorded, as the header `x-cheat` says."""

from __future__ import annotations

from typing import Any

from gateway import Exchange, Outcome, Plugin, Usage


class Cheating(Plugin):
    """Changes what only the gateway may, in the hook that the header names."""

    async def on_request(self, exchange: Exchange) -> None:
        self._cheat(exchange, "on_request")

    def on_response(self, exchange: Exchange) -> None:
        self._cheat(exchange, "on_response")

    def on_chunk(self, exchange: Exchange, chunk: bytes) -> None:
        self._cheat(exchange, "on_chunk")

    async def on_end(self, exchange: Exchange) -> None:
        self._cheat(exchange, "on_end")

    def _cheat(self, exchange: Any, hook: str) -> None:
        asked, _, how = exchange.request.headers.get("x-cheat", "").partition(" ")
        if asked != hook:
            return
        if how == "assigns":
            exchange.charge_micros = 0
        elif how == "prices":
            exchange.price = {}
        elif how == "charges":
            exchange.charge(self, 0)
        elif how == "id":
            exchange.id = "00000000-0000-0000-0000-000000000000"
        elif how == "attempts":
            exchange.attempts = None
        elif how == "outcome":
            exchange.outcome = Outcome.REFUSED
        elif how == "in place":
            exchange.price.clear()
            exchange.attempts[-1].usage = Usage(0, 0, "upstream")
            exchange.attempts.clear()
