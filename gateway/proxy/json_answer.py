"""An upstream's answer in JSON, to a request that is not streamed: read whole, within a bound, before the caller gets any of it.

Nothing is known of it until it is there, so only the timer of the whole exchange judges it.
"""

from __future__ import annotations

import asyncio

from gateway.chat.response import Response
from gateway.config.channel import Channel
from gateway.proxy import failure
from gateway.proxy.body import read_body
from gateway.proxy.call import Call
from gateway.proxy.end_reason import EndReason
from gateway.proxy.ending import meter
from gateway.proxy.failure import UpstreamFailure
from gateway.proxy.upstream import UpstreamConnection


async def pass_on(call: Call, upstream: UpstreamConnection, ended: asyncio.Future[EndReason]) -> UpstreamFailure | None:
    """Read a JSON response, and prepare and charge it. Return why there is none."""
    channel = call.candidate.channel
    call.deadline = call.exchange.started + channel.timers.total
    response = await _read(upstream, channel, call.remaining_s(), ended)
    if call.caller.gone or ended.done():
        return call.interrupted()
    if isinstance(response, UpstreamFailure):
        return response
    call.answered()
    call.attempt.completion_id = failure.scrubbed(response.completion_id, channel.scrubbed)
    meter(call.attempt, response.usage, response.estimate_output, call.body, call.candidate)
    return call.prepare_json(response.text)


async def _read(
    upstream: UpstreamConnection, channel: Channel, timeout_s: float, ended: asyncio.Future[EndReason]
) -> Response | UpstreamFailure:
    """Return the response, or why it is none. What is read when `ended` is done is not complete."""
    if upstream.media_type != "application/json":
        return failure.invalid_response("JSON")
    read = await read_body(upstream, channel.max_response_bytes, timeout_s, ended)
    if not read.whole:
        if read.long:
            return failure.too_large()
        return failure.dropped() if read.broken else failure.timed_out("answer")
    try:
        response = Response.read(read.data)
    except ValueError:
        return failure.invalid_response("valid JSON")
    if response is None:
        return failure.invalid_response("a chat completion")
    return failure.of_event(response.facts, channel.scrubbed) if response.error else response
