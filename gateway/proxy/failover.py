"""The upstream side of an exchange: candidates in order, no channel twice, never another after the first byte.

At most three are called, and whether one may be is the route's gate to say. Where none gave an answer, the caller gets the
error of the last one.
"""

from __future__ import annotations

from typing import Final

from gateway.chain import Chain
from gateway.chat.usage import Usage
from gateway.errors import Refused
from gateway.exchange import Exchange
from gateway.facts import Route
from gateway.proxy.attempt import CallerGone, UpstreamCall
from gateway.proxy.caller import CallerConnection
from gateway.proxy.end_reason import EndReason
from gateway.proxy.failure import UpstreamFailure
from gateway.proxy.pool import UpstreamPool
from gateway.proxy.relay import Relay

MOST_ATTEMPTS: Final = 3


class Failover:
    """Takes an exchange that the chain let through to an upstream, and its answer to the caller."""

    def __init__(self) -> None:
        self._pool = UpstreamPool()
        self.relays: set[Relay] = set()
        """The calls of upstreams that are under way."""

    async def run(self, exchange: Exchange, chain: Chain, caller: CallerConnection) -> None:
        """Serve the exchange whole. Raises `Refused` when no candidate answered, `CallerGone` when nobody waits any more."""
        body = await exchange.body()
        route = exchange[Route]
        untried = list(route.candidates)
        last: UpstreamFailure | None = None
        while untried and len(exchange.attempts) < MOST_ATTEMPTS:
            if caller.gone:
                raise CallerGone
            try:
                candidate = await route.breaker.admit(untried, exchange.id)
            except Refused:
                if last is None:
                    raise
                break
            rest = untried[untried.index(candidate) + 1 :]
            untried = [other for other in rest if other.name != candidate.name]
            try:
                last = await UpstreamCall(exchange, chain, caller, body, candidate, route.breaker).run(
                    self._pool, self.relays
                )
                if last is None:
                    return
                attempt = exchange.attempts[-1]
                attempt.error = last.error.code
                if last.maybe_billed:
                    attempt.usage = Usage(body.prompt_tokens_estimate, 0, "estimated")
                if last.final:
                    break
                route.breaker.failed(candidate, exchange.id, last.error.code, last.cool_s)
            finally:
                route.breaker.left(candidate, exchange.id)
        raise last.error if last is not None else Refused(404, "model_not_found", "Nothing serves this model.")

    def stop_streams(self) -> None:
        """End what still relays, with the error event."""
        for stream in list(self.relays):
            stream.end(EndReason.STOPPING)

    async def close(self) -> None:
        """Close the idle connections to the upstreams."""
        await self._pool.close()
