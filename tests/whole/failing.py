"""A plugin that fails in the hook that a request names in `x-fail`."""

from __future__ import annotations

import json

from gateway import Exchange, Plugin


class Failing(Plugin):
    """Fails in the hook that the header `x-fail` names."""

    API = 1

    async def on_request(self, exchange: Exchange) -> None:
        _fail(exchange, "on_request")
        if exchange.request.headers.get("x-fail") == "headers":
            exchange.response_headers = None  # type: ignore[assignment]

    def on_response(self, exchange: Exchange) -> None:
        _fail(exchange, "on_response")

    def on_chunk(self, exchange: Exchange, chunk: bytes) -> None:
        _fail(exchange, "on_chunk")

    async def on_end(self, exchange: Exchange) -> None:
        _fail(exchange, "on_end")


def _fail(exchange: Exchange, hook: str) -> None:
    if exchange.request.headers.get("x-fail") == hook:
        json.loads("no JSON")  # the failure is a library's
