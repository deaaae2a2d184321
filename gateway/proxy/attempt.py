"""One call of one upstream: its connection, its credential, its answer, and what of it reaches the caller.

How an answer may end, and what the caller gets:

- complete (`[DONE]`, or a finish reason and a clean end): the proper end of the stream;
- anything else after the first byte: one error event of ours at an event border, then the cut;
- anything else before it: nothing, and a `UpstreamFailure` instead.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from typing import Final

import structlog
from aiohttp import ClientError

from gateway import crash_points
from gateway.chain import Chain
from gateway.chat.request import Body, BodyPart
from gateway.chat.usage import Usage, usage_of
from gateway.errors import Refused, render, unavailable
from gateway.exchange import Attempt, Exchange, Outcome
from gateway.facts import Candidate, CircuitBreaker
from gateway.proxy import failure
from gateway.proxy.caller import CallerConnection
from gateway.proxy.end_reason import AFTER_FIRST_BYTE, EndReason
from gateway.proxy.failure import UpstreamFailure
from gateway.proxy.pool import UpstreamPool
from gateway.proxy.relay import Relay
from gateway.proxy.upstream import InvalidResponse, UpstreamConnection, collected

STREAM_HEADERS: Final = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}

TRACE_VALUE: Final = re.compile(r"[\x21-\x7e][\x20-\x7e]{0,511}")

log = structlog.get_logger("gateway.proxy.attempt")


class CallerGone(Exception):
    """The caller left before the first byte."""


class UpstreamCall:
    """One candidate's turn. `run` returns None once the caller has an answer; else why this candidate gave none."""

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
        self.attempt = Attempt(candidate.name, candidate.model)
        self.began = time.monotonic()
        timers = candidate.channel.timers
        self.deadline = min(self.began + timers.first_byte, exchange.started + timers.total)

    async def run(self, pool: UpstreamPool, relays: set[Relay]) -> UpstreamFailure | None:
        """Call, with each of the channel's credentials until one is not refused. Raises `CallerGone`."""
        self.exchange.attempts.append(self.attempt)
        crash_points.point("upstream.before")
        self.exchange.channel = self.candidate.name
        target = pool.target(self.candidate.channel)
        body = self.body.upstream(self.candidate.model, ask_usage=self.candidate.channel.ask_usage)
        accept = "text/event-stream" if self.body.stream else "application/json"
        while True:
            credential = target.credentials.next()
            message = target.message(body, credential=credential, accept=accept, trace=self._trace())
            found = await self._send(pool, relays, message)
            another = (
                found is not None and found.refuses_us and target.credentials.refused(credential, self.candidate.name)
            )
            if not another:
                return found

    async def _send(
        self, pool: UpstreamPool, relays: set[Relay], message: Sequence[BodyPart]
    ) -> UpstreamFailure | None:
        """One request; and once more on a fresh connection, where a pooled one was closed under us before any answer."""
        for fresh in (False, True):
            opened = await self._open(pool, fresh=fresh)
            if opened is None:
                return failure.unreachable()
            upstream, used = opened
            relay = Relay(
                self.exchange,
                self.body,
                self.candidate.channel,
                self.caller,
                upstream,
                self._begin,
                self.chain.on_chunk + crash_points.on_event,
            )
            relays.add(relay)
            try:
                upstream.send(message)
                crash_points.point("upstream.sent")
                return await self._answer(upstream, relay)
            except InvalidResponse:
                return failure.invalid_response()
            except ConnectionError:
                if upstream.answered or not used:
                    break
            finally:
                relays.discard(relay)
                relay.close()
        return failure.dropped()

    async def _open(self, pool: UpstreamPool, *, fresh: bool) -> tuple[UpstreamConnection, bool] | None:
        """A connection; None where there is none to be had. The caller's leaving ends the wait."""
        loop = asyncio.get_running_loop()
        target = pool.target(self.candidate.channel)
        try:
            async with asyncio.timeout_at(loop.time() + self.deadline - time.monotonic()) as wait:
                self.caller.on_gone = lambda: None if wait.expired() else wait.reschedule(loop.time())
                upstream, used = await pool.open(target, fresh=fresh)
        except (TimeoutError, ClientError, OSError) as error:
            if self.caller.gone:
                raise CallerGone from None
            log.warning("upstream_unreachable", channel=self.candidate.name, error=type(error).__name__)
            return None
        finally:
            self.caller.on_gone = None
        if self.caller.gone:
            upstream.release()
            raise CallerGone
        return upstream, used

    def _trace(self) -> str:
        lines = []
        for name in ("traceparent", "tracestate"):
            value = self.exchange.request.headers.get(name)
            if value is not None and TRACE_VALUE.fullmatch(value):
                lines.append(f"{name}: {value}\r\n")
        return "".join(lines)

    async def _answer(self, upstream: UpstreamConnection, relay: Relay) -> UpstreamFailure | None:
        attempt, credentials = self.attempt, self.candidate.channel.credentials
        relay.first_within(self._left())
        why = await relay.ended
        if upstream.status:
            attempt.status = upstream.status
            attempt.upstream_request_id = failure.scrubbed(upstream.headers.get("x-request-id", ""), credentials)[:128]
        if relay.joined:
            crash_points.point("stream.ended")
            attempt.usage = relay.usage()
            await self._close(relay, why)
            return None
        if self.caller.gone or why is EndReason.STOPPING:
            return self._cut_short()
        if relay.failure is not None:
            raise relay.failure
        if relay.events.error is not None and relay.events.first_error:
            return failure.of_event(relay.events.error, credentials)
        match why:
            case EndReason.OTHER:
                return await self._other(upstream, relay)
            case EndReason.LATE:
                return failure.timed_out()
            case EndReason.BROKEN:
                return failure.dropped()
            case EndReason.SIZE if relay.events.started:
                return failure.too_large()
            case _:
                return failure.invalid_response()

    async def _other(self, upstream: UpstreamConnection, relay: Relay) -> UpstreamFailure | None:
        """What came in place of a stream of events."""
        if upstream.failure is not None:
            raise upstream.failure
        ended = relay.again()
        if upstream.status == 200:
            expected = upstream.media_type == "application/json" and not self.body.stream
            return await self._whole(upstream, ended) if expected else failure.invalid_response()
        text, _ = await collected(upstream, failure.LARGEST_ERROR_BODY, self._left(), ended)
        if ended.done():
            return self._cut_short()
        told = b"" if upstream.encoded else text
        found = failure.of_answer(upstream.status, upstream.headers, told, self.candidate.channel.credentials)
        if found.final:
            self._answered()
        return found

    def _begin(self) -> dict[str, str]:
        """The first event is here: the head of the answer."""
        self._answered()
        for hook in self.chain.on_response:
            hook(self.exchange)
        return {**STREAM_HEADERS, **self.exchange.response_headers}

    def _answered(self) -> None:
        self.breaker.answered(self.candidate, self.exchange.id, time.monotonic() - self.began)

    def _left(self) -> float:
        return max(0.0, self.deadline - time.monotonic())

    def _cut_short(self) -> UpstreamFailure:
        """The caller left, or the gateway stops, before the first event."""
        self.attempt.usage = Usage(self.body.prompt_tokens_estimate, 0, "estimated")
        if self.caller.gone:
            raise CallerGone
        return UpstreamFailure(unavailable(), final=True)

    async def _whole(self, upstream: UpstreamConnection, ended: asyncio.Future[EndReason]) -> UpstreamFailure | None:
        """A JSON answer, for operators who let `stream: false` through."""
        channel, exchange = self.candidate.channel, self.exchange
        self.deadline = exchange.started + channel.timers.total
        text, complete = await collected(upstream, channel.max_response_bytes, self._left(), ended)
        if self.caller.gone:
            return self._cut_short()
        if not complete:
            return failure.timed_out() if self._left() == 0 else failure.dropped()
        usage = usage_of(text)
        if usage is None:
            return failure.invalid_response()
        self.attempt.usage = usage
        self._answered()
        exchange.first_byte = time.monotonic()
        exchange.bytes = len(text)
        text = failure.scrubbed(text.decode("utf-8", "replace"), channel.credentials).encode()
        headers = {"Content-Type": "application/json", **exchange.response_headers}
        self.caller.promise(200, headers, text)  # it leaves once it is charged
        exchange.status, exchange.outcome = 200, Outcome.COMPLETED
        return None

    async def _close(self, relay: Relay, why: EndReason) -> None:
        """What the end of a stream means, and what the caller gets of it."""
        exchange, caller = self.exchange, self.caller
        exchange.status = 200
        if why is EndReason.UPSTREAM and (rest := relay.rest()):
            caller.write(rest)
        if relay.events.error is not None:
            exchange.outcome = Outcome.UPSTREAM_ERROR_IN_STREAM
            await caller.cut(b"")
        elif relay.left_early:
            exchange.outcome = Outcome.CALLER_GONE
        elif relay.events.complete or (relay.events.finished and why is EndReason.CALLER):
            exchange.outcome = Outcome.COMPLETED  # its proper end is written once it is charged
        elif why is EndReason.STALLED:
            exchange.outcome = Outcome.STOPPED
            caller.abort()
        else:
            exchange.outcome, code, message = AFTER_FIRST_BYTE[why]
            error = Refused(500, code, message, type="service_error" if code[:8] != "upstream" else "upstream_error")
            exchange.error = error
            if why in (EndReason.UPSTREAM, EndReason.BROKEN, EndReason.IDLE):
                self.breaker.failed(self.candidate, exchange.id, code, None)
            await caller.cut(b"data: %b\n\n" % render(error, exchange.id) if relay.events.at_boundary else b"")
