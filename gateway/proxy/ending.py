"""The end of a stream of which the caller has had the first byte: its outcome, its usage, and what the caller still gets.

- complete (`[DONE]`; or a clean end with the finish reason of each choice that appeared; or the finish reasons of all choices,
  the final usage, and silence): the end of the stream, which is written once it is charged;
- an error event of the upstream: it is passed on if client libraries recognise it, else replaced; then the stream is cut off;
- where a plugin ended the stream, its error in an error event, after what it let pass; then the stream is cut off;
- otherwise one error event from the gateway, at the end of an event; then the stream is cut off.

The usage of a plugin's own answer is read here, too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Literal

import msgspec

from gateway.chat.events import EventStream
from gateway.chat.request import DEFAULT_TIER, Body
from gateway.chat.usage import ReportedUsage, Usage
from gateway.domain.exchange import COMPLETED, Attempt, Exchange, Outcome
from gateway.domain.facts import Candidate, Route
from gateway.operations.operation import errors_of
from gateway.proxy import failure
from gateway.proxy.caller import CallerConnection
from gateway.proxy.chunk_hooks import COMPLETE, INCOMPLETE, EndReason
from gateway.proxy.relay import ABANDONED, Relay, RelayState

NO_CEILING: Final = 1 << 31


def meter(
    attempt: Attempt, reported: ReportedUsage, estimate_output: Callable[[], int], body: Body, candidate: Candidate
) -> None:
    """Set the usage to charge, and the usage and price as the upstream reported them.

    An estimate is never above the ceiling of the request or model.
    """
    if reported.prompt_final and reported.completion_final:
        attempt.usage = reported.usage(_unasked, _unasked)
    else:
        attempt.usage = _estimated(reported, estimate_output, body, candidate)
    if body.unit:
        told = body.units if reported.units is None else reported.units
        source: Literal["upstream", "estimated"] = "estimated" if reported.units is None else "upstream"
        attempt.usage = msgspec.structs.replace(attempt.usage, units=told, source=source)
        attempt.cost = None  # a channel tells none for what is billed by units
    last = reported.last
    text = last.text
    attempt.reported = failure.scrubbed(text.decode(errors="replace"), candidate.channel.scrubbed) if text else ""
    attempt.stated_micros = last.cost_micros
    attempt.service_tier = reported.service_tier
    if (
        body.service_tier
        and not reported.service_tier
        and (fields := candidate.channel.fields)
        and fields.replaces("service_tier")
    ):
        attempt.service_tier = DEFAULT_TIER  # what the caller asked for was not sent
    if candidate.cost is not None and reported.service_tier:
        attempt.cost = candidate.cost.in_tier(reported.service_tier)


def _unasked() -> int:
    """Stand in for an estimate where the counts are final."""
    return 0


def _estimated(reported: ReportedUsage, estimate_output: Callable[[], int], body: Body, candidate: Candidate) -> Usage:
    ceiling = body.n * (body.max_tokens or candidate.max_output_tokens or NO_CEILING)
    return reported.usage(lambda: body.prompt_tokens_estimate, lambda: min(estimate_output(), ceiling))


def _output(events: EventStream, by_time: int) -> int:
    return max(events.output.tokens(), by_time)


def meter_stream(attempt: Attempt, relay: Relay, body: Body, candidate: Candidate, by_time: int) -> None:
    """Set the usage of a stream that has ended. The report is kept as the upstream wrote it, also in another dialect.

    `by_time`: the output tokens of the time that the upstream worked, 0 where that does not count.
    """
    events = relay.events
    meter(attempt, events.usage, partial(_output, events, by_time), body, candidate)
    if relay.translation is not None:
        text = relay.translation.reported.decode(errors="replace")
        attempt.reported = failure.scrubbed(text, candidate.channel.scrubbed)


def conclude(
    exchange: Exchange,
    caller: CallerConnection,
    relay: Relay,
    reason: EndReason,
    whole: bool,
    error: bytes | None = None,
    on_failed: Callable[[str], None] | None = None,
) -> bytes | None:
    """Set the outcome of a stream that has ended. Return the last event of one that is to be cut off, else None.

    `whole`: nothing is missing. `error`: the upstream's error event. `on_failed` is called with the code of our error where
    the end is the upstream's fault.
    """
    exchange.status = 200
    if error is not None:
        exchange.outcome = Outcome.UPSTREAM_ERROR_IN_STREAM
        failed = failure.of_event(error, relay.channel.scrubbed)
        shown = failed.error
        if on_failed is not None:
            on_failed(shown.code)
        if exchange.attempts:
            exchange.attempts[-1].said = failed.said
        if relay.events.error_relayed:
            return b""
        return errors_of(exchange.request.path).event(shown, exchange.id, relay.events)
    if relay.state is ABANDONED:
        exchange.outcome = Outcome.CALLER_GONE
    elif whole:
        exchange.outcome = COMPLETED
    elif reason is EndReason.CALLER_STALLED:
        exchange.outcome = Outcome.STOPPED
        caller.abort()
    else:
        incomplete = INCOMPLETE[reason]
        stopped = exchange.stopped if reason is EndReason.STOPPING else None
        exchange.error = ours = stopped or incomplete.error()
        exchange.outcome = incomplete.outcome
        if on_failed is not None and reason in (EndReason.UPSTREAM, EndReason.BROKEN, EndReason.IDLE):
            on_failed(ours.code)
        watched = relay.hooks if relay.withheld or relay.failure is not None else None
        at_boundary = (watched or relay.events).at_boundary
        return errors_of(exchange.request.path).event(ours, exchange.id, relay.events) if at_boundary else b""
    return None


def is_complete(relay: Relay, reason: EndReason) -> bool:
    """Return whether a stream that has ended is whole."""
    if relay.withheld:
        return False
    if relay.events.complete or relay.state is RelayState.CONCLUDING:
        return True
    # A gateway that stops does not wait for what may follow the final usage.
    return reason is COMPLETE or (reason is EndReason.STOPPING and relay.events.concluded)


def usage_of(exchange: Exchange, body: Body, events: EventStream, given: Usage | None, *, whole: bool) -> Usage:
    """Return the `given` usage, or the usage that the events report, or an estimate. Of a cut answer the delivered part counts."""
    if given is None:
        route = exchange.get(Route)
        most = body.max_tokens or (route.candidates[0].max_output_tokens if route and route.candidates else None)
        ceiling = body.n * (most or NO_CEILING)
        return events.usage.usage(lambda: body.prompt_tokens_estimate, lambda: min(events.output.tokens(), ceiling))
    if whole:
        return msgspec.structs.replace(given, source="upstream", answers=1)
    output = min(given.completion_tokens, events.output.tokens())
    return msgspec.structs.replace(given, completion_tokens=output, source="estimated", answers=1)
