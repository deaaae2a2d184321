"""The attempts of one exchange: the route's candidates in order, no channel twice, none after the first byte.

Where no candidate is left, the models that the route names as fallbacks are tried, unless the upstream judged what the request
contains. The last attempt is theirs.

At most `MAX_ATTEMPTS` candidates are called, each only where the route's circuit breaker admits it, and after a failure only where
the plugins let another one be called. Where none gave an answer, the caller gets the error of the last one.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final
from urllib.parse import quote

from gateway.base.errors import Refused
from gateway.chain.chain import Chain
from gateway.chain.end_hooks import may_fail_over
from gateway.chat.request import Body
from gateway.chat.usage import Usage
from gateway.config.channel import Channel
from gateway.domain.catalogue import MAX_ATTEMPTS
from gateway.domain.exchange import Exchange
from gateway.domain.facts import Candidate, Route
from gateway.operations.wire_format import WireFormat
from gateway.proxy.attempt import UpstreamCall
from gateway.proxy.caller import CallerConnection
from gateway.proxy.failure import CallerGone, UpstreamFailure
from gateway.proxy.kept_answers import of_one_upstream
from gateway.proxy.pool import UpstreamPool
from gateway.proxy.relay import Relays
from gateway.store.channels import CredentialStates
from gateway.store.kept_ids import KeptIds

SERVED_MODEL: Final = "x-served-model"
STARTING_S: Final = 0.5
"""How long is waited until an upstream that loads its model is asked again, where no other can serve."""
VISIBLE: Final = "".join(map(chr, range(0x21, 0x7F))).replace("%", "")


def _has_time(exchange: Exchange, channel: Channel) -> bool:
    """Return whether a call of a channel could still be answered within its `total`."""
    return time.monotonic() < exchange.started + channel.timers.total


def _can_wait(exchange: Exchange, channel: Channel) -> bool:
    """Return whether an upstream that loads its model may be asked again within its `first_byte`, counted from the arrival."""
    return time.monotonic() + STARTING_S < exchange.started + channel.timers.first_byte


def _note(failed: UpstreamFailure, exchange: Exchange, body: Body, candidate: Candidate, route: Route) -> None:
    """Note a failed attempt in the exchange and, where that may be the channel's fault, with the circuit breaker."""
    attempt = exchange.attempts[-1]
    attempt.error, attempt.failed, attempt.said = failed.error.code, time.monotonic(), failed.said
    if failed.maybe_billed and attempt.usage.source == "none":
        attempt.usage = Usage(body.prompt_tokens_estimate, 0, "estimated")
    if failed.starting:
        route.breaker.starting(candidate)
    elif not (failed.final or failed.unfit):
        note = route.breaker.unusable if failed.not_the_request else route.breaker.failed
        note(candidate, exchange.id, failed.error.code, failed.cool_s)


def _without_channel(last: UpstreamFailure | None, refused: Refused) -> UpstreamFailure:
    """Return the failure of a request of which no candidate can be called, or not any more."""
    if last is None:
        return UpstreamFailure(refused, final=True, no_channel=True)
    last.error.unavailable |= refused.unavailable
    return last


def _fall_back(exchange: Exchange, route: Route, last: UpstreamFailure) -> Route | None:
    """Let the next model serve that can; return its route, None where there is none."""
    for index, other in enumerate(route.fallbacks):
        if other.longer or not last.too_long:
            exchange.serve_by(other.model)
            exchange.response_headers[SERVED_MODEL] = quote(other.model, safe=VISIBLE)
            return Route(other.candidates, route.breaker, route.session, route.fallbacks[index + 1 :])
    return None


def _take_back(exchange: Exchange, asked: Body) -> None:
    """Let the exchange be one of the model that was asked for: no other has served it."""
    exchange.response_headers.pop(SERVED_MODEL, None)
    exchange.serve_by(asked.model)
    if exchange.requested_model == asked.model:
        exchange.requested_model = ""


async def _error_of(
    exchange: Exchange, route: Route, last: UpstreamFailure | None, asked: Body, *, gone: bool
) -> Refused | CallerGone:
    """Return the error of an exchange that no candidate has answered."""
    if exchange.model != asked.model:
        _take_back(exchange, asked)
    if gone:
        return CallerGone()
    if last is None:
        return Refused(404, "model_not_found", "Nothing serves this model.")
    asked_s = last.error.retry_after_s or 0.0
    if not (last.final or last.unfit) and (last.error.should_retry is not False or asked_s):
        # A caller that retries earlier would be refused by the circuit breaker.
        last.error.retry_after_s = await route.breaker.wait_s(route.candidates, asked_s) or None
    exchange.refused_by = last.plugin or exchange.refused_by
    return last.error


class Failover:
    """Calls the upstreams of an exchange until one of them has answered the caller."""

    def __init__(self, credentials: CredentialStates | None = None, kept_ids: KeptIds | None = None) -> None:
        """Follow what `credentials` says of those that are set aside, and note there what upstreams refuse.

        `kept_ids`: where the ids of what they keep are remembered.
        """
        self.pool = UpstreamPool(credentials)
        self._kept_ids = kept_ids
        self.relays = Relays()
        """The calls of upstreams in progress, and the streams of plugins that answer."""

    async def run(self, exchange: Exchange, wire: WireFormat, chain: Chain, caller: CallerConnection) -> None:
        """Answer the caller from an upstream. Raises `Refused` when no candidate answered, `CallerGone` when the caller left."""
        asked = body = await exchange.body()
        route = exchange[Route]
        untried = list(route.candidates)
        if wire.keeps and (untried := of_one_upstream(body, untried)) and untried[0].credential:
            route = Route(route.candidates, route.breaker)  # another model's upstream does not have what the body names
        last: UpstreamFailure | None = None
        while untried and len(exchange.attempts) < MAX_ATTEMPTS and not caller.gone:
            if last is not None and not await may_fail_over(exchange, chain.failover_entries):
                break
            if exchange.stopped is not None:
                raise exchange.stopped
            try:
                breaker = route.breaker
                candidate = breaker.admit_at_once(untried) or await breaker.admit(untried, exchange.id)
            except Refused as refused:
                last, untried = _without_channel(last, refused), []
            else:
                rest = untried[untried.index(candidate) + 1 :]
                untried = [other for other in rest if other.name != candidate.name] if rest else rest
                call = UpstreamCall(exchange, chain, caller, wire, body, candidate, route)
                call.kept_ids = self._kept_ids if wire.keeps else None
                try:
                    failed = await call.run(self.pool, self.relays)
                    if failed is None:
                        return
                    _note(failed, exchange, body, candidate, route)
                    if last is None or not failed.unfit:
                        failed.error.unavailable |= last.error.unavailable if last is not None else {}
                        last = failed
                    final = failed.final or (failed.maybe_billed and body.unit != "")  # a picture may have been made
                    untried = [] if final else [other for other in untried if _has_time(exchange, other.channel)]
                    if failed.starting and not (untried or route.fallbacks) and _can_wait(exchange, candidate.channel):
                        await asyncio.sleep(STARTING_S)
                        exchange.attempts.pop()  # it counts as one: nothing was worked on
                        untried = [candidate]
                finally:
                    call.parts.clear()  # errors of libraries refer to themselves, and so keep the call for some time
                    call.message.clear()
                    route.breaker.left(candidate, exchange.id)
            if route.fallbacks and (not untried or len(exchange.attempts) == MAX_ATTEMPTS - 1) and last.may_fall_back:
                other_route = _fall_back(exchange, route, last)
                if other_route is not None:
                    route, body = other_route, await exchange.body()
                    untried = [other for other in route.candidates if _has_time(exchange, other.channel)]
        raise await _error_of(exchange, route, last, asked, gone=caller.gone)

    def stop_relays(self) -> None:
        """End every relay in progress, with the error event."""
        for relay in list(self.relays):
            relay.stop()
