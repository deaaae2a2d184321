"""What every part of the call of one upstream knows and does, whatever kind of answer it gets."""

from __future__ import annotations

import time

from gateway.attempt import Attempt
from gateway.chain.chain import Chain
from gateway.chat.deltas import WholeAnswer
from gateway.chat.request import Body, BodyPart
from gateway.chat.usage import Usage
from gateway.errors import Refused, unavailable
from gateway.exchange import Exchange, Outcome
from gateway.facts import Candidate, CircuitBreaker
from gateway.proxy import failure
from gateway.proxy.caller import CallerConnection
from gateway.proxy.failure import CallerGone, UpstreamFailure
from gateway.proxy.gathering import Gathering
from gateway.proxy.response_hooks import run_response_hooks
from gateway.proxy.upstream import UpstreamConnection


def without_output(usage: Usage) -> Usage:
    """Return what is charged of an attempt whose output the caller did not get."""
    return Usage(usage.prompt_tokens, 0, usage.source, usage.cached_tokens, usage.cache_write_tokens)


class Call:
    """One call of an upstream. `gathering`: its stream is gathered, for a caller that did not ask for one."""

    def __init__(
        self,
        exchange: Exchange,
        chain: Chain,
        caller: CallerConnection,
        body: Body,
        candidate: Candidate,
        breaker: CircuitBreaker,
    ) -> None:
        self.exchange = exchange
        self.chain = chain
        self.caller = caller
        self.body = body
        self.candidate = candidate
        self.breaker = breaker
        self.upstream: UpstreamConnection | None = None
        self.parts: list[BodyPart] = []
        self.message: list[BodyPart] = []
        self.began = time.monotonic()
        self.attempt = Attempt(candidate.name, candidate.model, cost=candidate.cost, began=self.began)
        self.attempt.dialect = candidate.channel.dialect or ""
        timers = candidate.channel.timers
        name = candidate.channel.dialect
        self.dialect = None if name is None else chain.dialects[name]
        gathered = not body.stream and (candidate.channel.upstream_stream or name is not None)
        self.gathering = Gathering(caller) if gathered else None
        self.streamed = body.stream or self.gathering is not None
        first_s = timers.first_byte if self.streamed else timers.total
        self.deadline = min(self.began + first_s, exchange.started + timers.total)

    def answered(self) -> None:
        """Tell the circuit breaker that the answer has begun."""
        self.breaker.answered(self.candidate, self.exchange.id, time.monotonic() - self.began)

    def remaining_s(self) -> float:
        """Return how long the call may still take."""
        return max(0.0, self.deadline - time.monotonic())

    def interrupted(self) -> UpstreamFailure:
        """Return or raise what ends the exchange before the first event: the caller left, or the gateway stops or ends it."""
        self.attempt.usage = Usage(self.body.prompt_tokens_estimate, 0, "estimated")
        if self.caller.gone:
            raise CallerGone
        return UpstreamFailure(self.exchange.stopped or unavailable(), final=True)

    def begin_gathering(self) -> dict[str, str]:
        """Note that the upstream has begun a stream of which the caller gets no head."""
        self.answered()
        return {}

    def prepare_json(self, text: bytes) -> UpstreamFailure | None:
        """Prepare a JSON answer, which is written once it is charged. Return why there is none: a plugin ended the exchange.

        Of such an answer the output is not charged, and nothing where a plugin fails.
        """
        exchange = self.exchange
        text = failure.scrubbed(text.decode("utf-8", "replace"), self.candidate.channel.scrubbed).encode()
        used, self.attempt.usage = self.attempt.usage, Usage()
        if self.chain.on_response:
            exchange.texts = WholeAnswer(text)
            try:
                run_response_hooks(exchange, self.chain.on_response)
            except Refused as refused:
                self.attempt.usage = without_output(used)
                return UpstreamFailure(refused.with_traceback(None), final=True)
        self.caller.prepare(200, {"Content-Type": "application/json", **exchange.response_headers}, text)
        self.attempt.usage = used
        exchange.first_byte, exchange.bytes = time.monotonic(), len(text)
        exchange.status, exchange.outcome = 200, Outcome.COMPLETED
        return None
