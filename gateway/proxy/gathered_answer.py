"""The end of a stream of the upstream that was gathered: the caller gets one JSON answer, or an error.

The relay did what it does for a stream, with the same timers, limits and usage. Until the answer is whole the caller has nothing,
so what breaks off is an error with a status of its own, and another channel may be called. Output that was not delivered is not
charged, unless the caller left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from gateway.chat.usage import Usage
from gateway.errors import Refused, unavailable
from gateway.proxy import failure
from gateway.proxy.call import Call, without_output
from gateway.proxy.end_reason import INCOMPLETE, EndReason
from gateway.proxy.ending import is_complete, meter_stream
from gateway.proxy.failure import CallerGone, UpstreamFailure
from gateway.proxy.gathering import Gathering
from gateway.proxy.relay import Relay

CHUNKS: Final = "a stream of chat completion chunks"


def finish_gathering(call: Call, gathering: Gathering, relay: Relay, reason: EndReason) -> UpstreamFailure | None:
    """Charge a gathered stream that has ended, and prepare the answer. Return why there is none. Raises `CallerGone`."""
    exchange, attempt, events = call.exchange, call.attempt, relay.events
    exchange.first_byte, exchange.bytes, exchange.events = None, 0, 0
    if reason is EndReason.UPSTREAM:
        gathering.write(relay.rest())
    meter_stream(attempt, relay, call.body, call.candidate)
    if call.caller.gone:
        raise CallerGone
    credentials, usage = call.candidate.channel.scrubbed, attempt.usage
    if events.error is None and not gathering.invalid and is_complete(relay, reason) and (text := _encoded(gathering)):
        return call.prepare_json(text)
    attempt.usage = without_output(usage)
    if reason is EndReason.STOPPING:
        return UpstreamFailure(exchange.stopped or unavailable(), final=True)
    failed = _failure_of(gathering, reason, events.error, usage, credentials)
    attempt.usage = attempt.usage if failed.maybe_billed else Usage()
    return failed


def _encoded(gathering: Gathering) -> bytes:
    """Return the answer, or nothing where no event had a choice."""
    try:
        return gathering.completion.encode()
    except ValueError:
        gathering.invalid = True
        return b""


def _failure_of(
    gathering: Gathering, reason: EndReason, error: bytes | None, usage: Usage, credentials: Sequence[str]
) -> UpstreamFailure:
    """Return why there is no answer, where a gathered stream had an `error` event or ended before it was whole."""
    if error is not None:
        failed = failure.of_event(error, credentials)
        return msgspec.structs.replace(failed, maybe_billed=usage.completion_tokens > 0)
    if gathering.invalid or reason is EndReason.OTHER:
        return msgspec.structs.replace(failure.invalid_response(CHUNKS), maybe_billed=True)
    if reason is EndReason.SIZE:
        return failure.too_large()
    incomplete = INCOMPLETE[reason]
    status = 504 if incomplete.code == "upstream_timeout" else 502
    broken = Refused(status, incomplete.code, incomplete.message, type=incomplete.type, should_retry=False)
    return UpstreamFailure(broken, maybe_billed=True)
