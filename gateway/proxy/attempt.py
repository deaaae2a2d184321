"""One call of one upstream: its connection, its credential, its answer, and what of it reaches the caller.

How an answer may end, and what the caller gets:

- complete (`[DONE]`, or a finish reason and a clean end): the proper end of the stream;
- anything else after the first byte: one error event of ours at an event border, then the cut;
- anything else before it: nothing, and a `Verdict` instead.
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
from gateway.chat.request import Body, Piece
from gateway.chat.usage import Usage
from gateway.errors import Refused, render, unavailable
from gateway.exchange import Attempt, Exchange, Outcome
from gateway.facts import Candidate, Gate
from gateway.proxy import failure
from gateway.proxy.caller import CallerSide
from gateway.proxy.collect import collected, usage_of
from gateway.proxy.failure import Verdict
from gateway.proxy.relay import End, Stream
from gateway.proxy.upstream import Garbled, Upstreams, UpstreamSide

STREAM_HEADERS: Final = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}

TRACE_VALUE: Final = re.compile(r"[\x21-\x7e][\x20-\x7e]{0,511}")

AFTER_FIRST_BYTE: Final[dict[End, tuple[Outcome, str, str]]] = {
    End.UPSTREAM: (Outcome.UPSTREAM_TRUNCATED, "upstream_truncated", "The upstream ended the answer before it was whole."),
    End.BROKEN: (Outcome.UPSTREAM_TRUNCATED, "upstream_truncated", "The upstream's connection broke before the answer was whole."),
    End.IDLE: (Outcome.UPSTREAM_STALLED, "upstream_timeout", "The upstream fell silent in the middle of the answer."),
    End.TOTAL: (Outcome.STOPPED, "upstream_timeout", "The answer took longer than this gateway allows."),
    End.SIZE: (Outcome.STOPPED, "upstream_error", "The answer is larger than this gateway allows."),
    End.STOPPING: (Outcome.STOPPED, "service_unavailable", "The gateway is stopping; send the request again."),
    End.PLUGIN: (Outcome.INTERNAL_ERROR, "internal_error", ""),
}  # fmt: skip

log = structlog.get_logger("gateway.proxy.attempt")


class CallerGone(Exception):
    """The caller left before the first byte."""


class Call:
    """One candidate's turn. `run` returns None once the caller has an answer; else why this candidate gave none."""

    def __init__(
        self, exchange: Exchange, chain: Chain, caller: CallerSide, body: Body, candidate: Candidate, gate: Gate
    ) -> None:
        self.exchange = exchange
        self.chain = chain
        self.caller = caller
        self.body = body
        self.candidate = candidate
        self.gate = gate
        self.attempt = Attempt(candidate.name, candidate.model)
        self.began = time.monotonic()
        timers = candidate.channel.timers
        self.deadline = min(self.began + timers.first_byte, exchange.started + timers.total)

    async def run(self, upstreams: Upstreams, streams: set[Stream]) -> Verdict | None:
        """Call, with each of the channel's credentials until one is not refused. Raises `CallerGone`."""
        self.exchange.attempts.append(self.attempt)
        crash_points.point("upstream.before")
        self.exchange.channel = self.candidate.name
        target = upstreams.target(self.candidate.channel)
        body = self.body.upstream(self.candidate.model, ask_usage=self.candidate.channel.ask_usage)
        accept = "text/event-stream" if self.body.stream else "application/json"
        while True:
            credential = target.credentials.next()
            message = target.message(body, credential=credential, accept=accept, trace=self._trace())
            found = await self._send(upstreams, streams, message)
            another = (
                found is not None and found.refuses_us and target.credentials.refused(credential, self.candidate.name)
            )
            if not another:
                return found

    async def _send(self, upstreams: Upstreams, streams: set[Stream], message: Sequence[Piece]) -> Verdict | None:
        """One request; and once more on a fresh connection, where a pooled one was closed under us before any answer."""
        for fresh in (False, True):
            opened = await self._open(upstreams, fresh=fresh)
            if opened is None:
                return failure.unreachable()
            upstream, used = opened
            stream = Stream(
                self.exchange,
                self.body,
                self.candidate.channel,
                self.caller,
                upstream,
                self._begin,
                self.chain.on_chunk + crash_points.on_event,
            )
            streams.add(stream)
            try:
                upstream.send(message)
                crash_points.point("upstream.sent")
                return await self._answer(upstream, stream)
            except Garbled:
                return failure.garbled()
            except ConnectionError:
                if upstream.answered or not used:
                    break
            finally:
                streams.discard(stream)
                stream.close()
        return failure.dropped()

    async def _open(self, upstreams: Upstreams, *, fresh: bool) -> tuple[UpstreamSide, bool] | None:
        """A connection; None where there is none to be had. The caller's leaving ends the wait."""
        loop = asyncio.get_running_loop()
        target = upstreams.target(self.candidate.channel)
        try:
            async with asyncio.timeout_at(loop.time() + self.deadline - time.monotonic()) as wait:
                self.caller.on_gone = lambda: None if wait.expired() else wait.reschedule(loop.time())
                upstream, used = await upstreams.open(target, fresh=fresh)
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

    async def _answer(self, upstream: UpstreamSide, stream: Stream) -> Verdict | None:
        attempt, credentials = self.attempt, self.candidate.channel.credentials
        stream.first_within(self._left())
        why = await stream.ended
        if upstream.status:
            attempt.status = upstream.status
            attempt.upstream_request_id = failure.scrubbed(upstream.headers.get("x-request-id", ""), credentials)[:128]
        if stream.joined:
            crash_points.point("stream.ended")
            attempt.usage = stream.usage()
            await self._close(stream, why)
            return None
        if self.caller.gone or why is End.STOPPING:
            return self._cut_short()
        if stream.failure is not None:
            raise stream.failure
        if stream.events.error is not None and stream.events.first_error:
            return failure.of_event(stream.events.error, credentials)
        match why:
            case End.OTHER:
                return await self._other(upstream, stream)
            case End.LATE:
                return failure.timed_out()
            case End.BROKEN:
                return failure.dropped()
            case End.SIZE if stream.events.started:
                return failure.too_large()
            case _:
                return failure.garbled()

    async def _other(self, upstream: UpstreamSide, stream: Stream) -> Verdict | None:
        """What came in place of a stream of events."""
        if upstream.failure is not None:
            raise upstream.failure
        ended = stream.again()
        if upstream.status == 200:
            expected = upstream.media_type == "application/json" and not self.body.stream
            return await self._whole(upstream, ended) if expected else failure.garbled()
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
        for moment in self.chain.on_response:
            moment(self.exchange)
        return {**STREAM_HEADERS, **self.exchange.response_headers}

    def _answered(self) -> None:
        self.gate.answered(self.candidate, self.exchange.id, time.monotonic() - self.began)

    def _left(self) -> float:
        return max(0.0, self.deadline - time.monotonic())

    def _cut_short(self) -> Verdict:
        """The caller left, or the gateway stops, before the first event."""
        self.attempt.usage = Usage(self.body.prompt_tokens_estimate, 0, "estimated")
        if self.caller.gone:
            raise CallerGone
        return Verdict(unavailable(), final=True)

    async def _whole(self, upstream: UpstreamSide, ended: asyncio.Future[End]) -> Verdict | None:
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
            return failure.garbled()
        self.attempt.usage = usage
        self._answered()
        exchange.first_byte = time.monotonic()
        exchange.bytes = len(text)
        text = failure.scrubbed(text.decode("utf-8", "replace"), channel.credentials).encode()
        headers = {"Content-Type": "application/json", **exchange.response_headers}
        self.caller.promise(200, headers, text)  # it leaves once it is charged
        exchange.status, exchange.outcome = 200, Outcome.COMPLETED
        return None

    async def _close(self, stream: Stream, why: End) -> None:
        """What the end of a stream means, and what the caller gets of it."""
        exchange, caller = self.exchange, self.caller
        exchange.status = 200
        if why is End.UPSTREAM and (rest := stream.rest()):
            caller.write(rest)
        if stream.events.error is not None:
            exchange.outcome = Outcome.UPSTREAM_ERROR_IN_STREAM
            await caller.cut(b"")
        elif stream.left_early:
            exchange.outcome = Outcome.CALLER_GONE
        elif stream.events.complete or (stream.events.finished and why is End.CALLER):
            exchange.outcome = Outcome.COMPLETED  # its proper end is written once it is charged
        elif why is End.STALLED:
            exchange.outcome = Outcome.STOPPED
            caller.abort()
        else:
            exchange.outcome, code, message = AFTER_FIRST_BYTE[why]
            error = Refused(500, code, message, type="service_error" if code[:8] != "upstream" else "upstream_error")
            exchange.error = error
            if why in (End.UPSTREAM, End.BROKEN, End.IDLE):
                self.gate.failed(self.candidate, exchange.id, code, None)
            await caller.cut(b"data: %b\n\n" % render(error, exchange.id) if stream.events.at_border else b"")
