"""The end of a stream of which the caller has had the first byte: its outcome, its usage, and what the caller still gets.

- complete (`[DONE]`; or a clean end with the finish reason of each choice that appeared; or the finish reasons of all choices,
  the final usage, and silence): the end of the stream, which is written once it is charged;
- an error event of the upstream: it is passed on if client libraries recognise it, else replaced; then the stream is cut off;
- otherwise one error event from the gateway, at the end of an event; then the stream is cut off.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gateway.chat.request import Body
from gateway.chat.usage import ReportedUsage
from gateway.errors import render
from gateway.exchange import Attempt, Exchange, Outcome
from gateway.facts import Candidate
from gateway.proxy import failure
from gateway.proxy.caller import CallerConnection
from gateway.proxy.end_reason import INCOMPLETE, EndReason
from gateway.proxy.relay import Relay
from gateway.proxy.relay_state import RelayState

NO_CEILING: Final = 1 << 31


def meter(
    attempt: Attempt, reported: ReportedUsage, estimate_output: Callable[[], int], body: Body, candidate: Candidate
) -> None:
    """Set the usage to charge, and what the upstream said of it. An estimate is never above the ceiling of the request or model."""
    ceiling = body.n * (body.max_tokens or candidate.max_output_tokens or NO_CEILING)
    attempt.usage = reported.usage(lambda: body.prompt_tokens_estimate, lambda: min(estimate_output(), ceiling))
    attempt.reported = failure.scrubbed(reported.last.text.decode(errors="replace"), candidate.channel.scrubbed)
    attempt.stated_micros = reported.last.cost_micros


def meter_stream(attempt: Attempt, relay: Relay, body: Body, candidate: Candidate) -> None:
    """Set the usage of a stream that has ended. What is kept of it is the upstream's own, also of another dialect."""
    meter(attempt, relay.events.usage, relay.events.output.tokens, body, candidate)
    if relay.translation is not None:
        text = relay.translation.reported.decode(errors="replace")
        attempt.reported = failure.scrubbed(text, candidate.channel.scrubbed)


async def conclude(
    exchange: Exchange, caller: CallerConnection, relay: Relay, reason: EndReason, on_failed: Callable[[str], None]
) -> None:
    """Set the outcome of a stream that has ended, and write what the caller gets of it.

    `on_failed` is called with the error's code where the end is the upstream's fault.
    """
    events = relay.events
    exchange.status = 200
    if events.error is not None:
        exchange.outcome = Outcome.UPSTREAM_ERROR_IN_STREAM
        error = failure.of_event(events.error, relay.channel.scrubbed).error
        await caller.cut(b"" if events.error_relayed else b"data: %b\n\n" % render(error, exchange.id))
    elif relay.state is RelayState.ABANDONED:
        exchange.outcome = Outcome.CALLER_GONE
    elif is_complete(relay, reason):
        exchange.outcome = Outcome.COMPLETED
    elif reason is EndReason.CALLER_STALLED:
        exchange.outcome = Outcome.STOPPED
        caller.abort()
    else:
        incomplete = INCOMPLETE[reason]
        stopped = exchange.stopped if reason is EndReason.STOPPING else None
        error = stopped or incomplete.error()
        exchange.outcome, exchange.error = incomplete.outcome, error
        if reason in (EndReason.UPSTREAM, EndReason.BROKEN, EndReason.IDLE):
            on_failed(error.code)
        await caller.cut(b"data: %b\n\n" % render(error, exchange.id) if events.at_boundary else b"")


def is_complete(relay: Relay, reason: EndReason) -> bool:
    """Return whether a stream that has ended is whole."""
    if relay.events.complete or relay.state is RelayState.CONCLUDING:
        return True
    # A gateway that stops does not wait for what may follow the final usage.
    return reason is EndReason.COMPLETE or (reason is EndReason.STOPPING and relay.events.concluded)
