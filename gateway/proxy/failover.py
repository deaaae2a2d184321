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
from gateway.proxy.attempt import Call, CallerGone
from gateway.proxy.caller import CallerSide
from gateway.proxy.failure import Verdict
from gateway.proxy.relay import End, Stream
from gateway.proxy.upstream import Upstreams

MOST_ATTEMPTS: Final = 3


class Pipe:
    """Takes an exchange that the chain let through to an upstream, and its answer to the caller."""

    def __init__(self) -> None:
        self._upstreams = Upstreams()
        self.streams: set[Stream] = set()
        """The calls of upstreams that are under way."""

    async def run(self, exchange: Exchange, chain: Chain, caller: CallerSide) -> None:
        """Serve the exchange whole. Raises `Refused` when no candidate answered, `CallerGone` when nobody waits any more."""
        body = await exchange.body()
        route = exchange[Route]
        untried = list(route.candidates)
        last: Verdict | None = None
        while untried and len(exchange.attempts) < MOST_ATTEMPTS:
            if caller.gone:
                raise CallerGone
            try:
                candidate = await route.gate.admit(untried, exchange.id)
            except Refused:
                if last is None:
                    raise
                break
            rest = untried[untried.index(candidate) + 1 :]
            untried = [other for other in rest if other.name != candidate.name]
            try:
                last = await Call(exchange, chain, caller, body, candidate, route.gate).run(
                    self._upstreams, self.streams
                )
                if last is None:
                    return
                attempt = exchange.attempts[-1]
                attempt.error = last.error.code
                if last.maybe_billed:
                    attempt.usage = Usage(body.prompt_tokens_estimate, 0, "estimated")
                if last.final:
                    break
                route.gate.failed(candidate, exchange.id, last.error.code, last.cool_s)
            finally:
                route.gate.left(candidate, exchange.id)
        raise last.error if last is not None else Refused(404, "model_not_found", "Nothing serves this model.")

    def stop_streams(self) -> None:
        """End what still streams, with the error event."""
        for stream in list(self.streams):
            stream.end(End.STOPPING)

    async def close(self) -> None:
        """Close the idle connections to the upstreams."""
        await self._upstreams.close()
