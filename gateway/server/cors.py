"""The public port where pages of other origins may call it (`port.cors_origins`).

Where no origin is named, `Gateway` serves, and no request is looked at for its origin. Cookies are never asked for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from gateway.chain.chain import Chain
from gateway.chain.services import Services
from gateway.chat.request import Body
from gateway.config.schema import Port
from gateway.domain.exchange import Exchange
from gateway.operations.operation import Operation
from gateway.proxy.lifecycle import ExchangeRunner
from gateway.server.gateway import Gateway, is_preflight
from gateway.server.head import ParsedRequest

READABLE: Final = ", ".join(
    (
        *("x-request-id", "x-served-model", "retry-after", "retry-after-ms", "x-should-retry"),
        *(f"x-ratelimit-{what}-{unit}" for unit in ("requests", "tokens") for what in ("limit", "remaining", "reset")),
    )
)
"""The headers of an answer that a page may read, besides the few that it always may."""
GRANTED: Final = {
    "Access-Control-Allow-Methods": "GET, POST",
    "Access-Control-Allow-Headers": "authorization, content-type, *",
    "Access-Control-Max-Age": "7200",
}
"""`*` stands for all headers except `authorization`. Browsers keep the answer for two hours at most."""


class CrossOriginGateway(Gateway):
    """A public port that pages of some other origins may call."""

    def __init__(self, port: Port, chain: Chain, services: Services, runner: ExchangeRunner) -> None:
        super().__init__(port, chain, services, runner)
        self._named = frozenset(port.cors_origins)

    def _granted(self, request: ParsedRequest) -> dict[str, str] | None:
        """Return the headers for a preflight request of a page that may call, and that has no body, as none has."""
        if not is_preflight(request) or self.closing or request.headers["Origin"] not in self._named:
            return None
        bodyless = not request.content_length and "Transfer-Encoding" not in request.headers
        return GRANTED | _allowed(request.headers["Origin"]) if bodyless else None

    def _exchange(
        self,
        request: ParsedRequest,
        operation: Operation,
        argument: str,
        read_body: Callable[[], Body | Awaitable[Body]],
        on_body_dropped: Callable[[], None] = lambda: None,
    ) -> Exchange:
        exchange = super()._exchange(request, operation, argument, read_body, on_body_dropped)
        exchange.response_headers["Vary"] = "Origin"
        origin = request.headers.get("Origin")
        if origin in self._named:
            exchange.response_headers |= _allowed(origin) | {"Access-Control-Expose-Headers": READABLE}
        return exchange


def gateway_of(port: Port, chain: Chain, services: Services, runner: ExchangeRunner) -> Gateway:
    """Return the public port that the settings ask for."""
    return (CrossOriginGateway if port.cors_origins else Gateway)(port, chain, services, runner)


def _allowed(origin: str) -> dict[str, str]:
    return {"Access-Control-Allow-Origin": origin, "Vary": "Origin"}
