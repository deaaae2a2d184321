"""The upstream side of an exchange: candidates in order, each tried at most once, never after the first byte.

How an answer may end, and what the caller gets:

- complete (`[DONE]`, or a finish reason and a clean end): the proper end of the stream;
- anything else after the first byte: one error event of ours at an event border, then the cut. Nothing is retried.
- anything else before it: the next candidate, at most three in all, then the error of the last one.
"""

from __future__ import annotations

import asyncio
import re
import time
from typing import Final

import msgspec
import structlog
from aiohttp import ClientError

from gateway import verdict
from gateway.body import Body
from gateway.caller import CallerSide
from gateway.chain import Chain
from gateway.errors import Refused, internal, render
from gateway.exchange import Attempt, Exchange, Outcome, Usage
from gateway.facts import Candidate, Route
from gateway.stream import End, Stream
from gateway.upstream import Garbled, Upstreams, UpstreamSide
from gateway.verdict import Verdict

MOST_ATTEMPTS: Final = 3

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

log = structlog.get_logger("gateway.pipe")


class CallerGone(Exception):
    """The caller left before the first byte."""


class Pipe:
    """Takes an exchange that the chain let through to an upstream, and its answer to the caller."""

    def __init__(self) -> None:
        self._upstreams = Upstreams()
        self._streams: set[Stream] = set()

    async def run(self, exchange: Exchange, chain: Chain, caller: CallerSide) -> None:
        """Serve the exchange whole. Raises `Refused` when no candidate answered, `CallerGone` when nobody waits any more."""
        body = await exchange.body()
        last: Verdict | None = None
        for candidate in exchange[Route].candidates[:MOST_ATTEMPTS]:
            if caller.gone:
                raise CallerGone
            last = await self._attempt(exchange, chain, caller, body, candidate)
            if last is None:
                return
            exchange.attempts[-1].error = last.error.code
            if last.maybe_billed:
                exchange.attempts[-1].usage = Usage(body.prompt_tokens_estimate, 0, "estimated")
            if last.final:
                break
        raise (
            last.error
            if last is not None
            else Refused(
                503,
                "model_unavailable",
                "No channel can serve this model at the moment. Retry shortly or choose another model.",
                type="upstream_error",
                retry_after_s=5,
            )
        )

    def stop_streams(self) -> None:
        """End what still streams, with the error event."""
        for stream in list(self._streams):
            stream.end(End.STOPPING)

    async def close(self) -> None:
        """Close the idle connections to the upstreams."""
        await self._upstreams.close()

    async def _attempt(
        self, exchange: Exchange, chain: Chain, caller: CallerSide, body: Body, candidate: Candidate
    ) -> Verdict | None:
        """None once the caller has an answer; else why this candidate gave none."""
        attempt = Attempt(candidate.name, candidate.model)
        exchange.attempts.append(attempt)
        exchange.channel = candidate.name
        message = self._message(exchange, body, candidate)
        deadline = time.monotonic() + candidate.channel.timers.first_byte
        for fresh in (False, True):
            try:
                upstream, used = await self._upstreams.open(self._upstreams.target(candidate.channel))
            except (TimeoutError, ClientError, OSError) as error:
                log.warning("upstream_unreachable", channel=candidate.name, error=type(error).__name__)
                return verdict.unreachable()
            stream = Stream(exchange, body, candidate.channel, caller, upstream)
            self._streams.add(stream)
            try:
                upstream.send(message)
                return await self._answer(exchange, chain, caller, body, attempt, upstream, stream, deadline)
            except Garbled:
                return verdict.garbled()
            except ConnectionError:
                # A pooled connection may have been closed under us: once more, if it is sure that nothing was answered.
                if upstream.answered or not used or fresh:
                    return verdict.dropped()
            finally:
                self._streams.discard(stream)
                stream.close()
        return verdict.dropped()

    def _message(self, exchange: Exchange, body: Body, candidate: Candidate) -> bytes:
        lines = []
        for name in ("traceparent", "tracestate"):
            value = exchange.request.headers.get(name)
            if value is not None and TRACE_VALUE.fullmatch(value):
                lines.append(f"{name}: {value}\r\n")
        return self._upstreams.target(candidate.channel).message(
            body.upstream(candidate.model, ask_usage=candidate.channel.ask_usage),
            accept="text/event-stream" if body.stream else "application/json",
            trace="".join(lines),
        )

    async def _answer(
        self,
        exchange: Exchange,
        chain: Chain,
        caller: CallerSide,
        body: Body,
        attempt: Attempt,
        upstream: UpstreamSide,
        stream: Stream,
        deadline: float,
    ) -> Verdict | None:
        await asyncio.wait(
            (upstream.head, stream.first),
            timeout=deadline - time.monotonic(),
            return_when=asyncio.FIRST_COMPLETED,
        )
        if caller.gone or stream.first.done():
            return self._gone(attempt, stream, body)
        if not upstream.head.done():
            return verdict.timed_out()
        upstream.head.result()
        attempt.status = upstream.status
        attempt.upstream_request_id = upstream.headers.get("x-request-id", "")[:128]
        encoded = upstream.headers.get("Content-Encoding", "identity") != "identity"
        kind = upstream.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if upstream.status != 200:
            text = b"" if encoded else await _collect(upstream, verdict.LARGEST_ERROR_BODY, deadline)
            return verdict.of_answer(upstream.status, upstream.headers, text, stream.credential)
        if encoded or kind != ("text/event-stream" if body.stream else "application/json"):
            return verdict.garbled()
        if not body.stream:
            return await self._whole(exchange, caller, attempt, upstream, stream)
        stream.flow()
        await asyncio.wait((stream.first,), timeout=deadline - time.monotonic())
        if caller.gone:
            return self._gone(attempt, stream, body)
        if not stream.first.done():
            return verdict.timed_out()
        if stream.events.error is not None and stream.events.first_error:
            return verdict.of_event(stream.events.error, stream.credential)
        if stream.first.result() is End.BROKEN:
            return verdict.dropped()
        if not stream.events.started:
            return verdict.garbled()
        for moment in chain.on_response:
            moment(exchange)
        stream.join({**STREAM_HEADERS, **exchange.response_headers}, chain.on_chunk)
        why = await stream.ended
        attempt.usage = stream.usage()
        await self._close(exchange, caller, stream, why)
        return None

    def _gone(self, attempt: Attempt, stream: Stream, body: Body) -> Verdict:
        if stream.first.done() and stream.first.result() is End.STOPPING:
            return Verdict(internal(), final=True)
        attempt.usage = Usage(body.prompt_tokens_estimate, 0, "estimated")
        raise CallerGone

    async def _whole(
        self,
        exchange: Exchange,
        caller: CallerSide,
        attempt: Attempt,
        upstream: UpstreamSide,
        stream: Stream,
    ) -> Verdict | None:
        """A JSON answer, for operators who let `stream: false` through."""
        timers = stream.channel.timers
        text = await _collect(upstream, stream.channel.max_response_bytes, exchange.started + timers.total)
        usage = _usage_of(text)
        if usage is None:
            return verdict.garbled()
        attempt.usage = usage
        exchange.first_byte = time.monotonic()
        exchange.bytes = len(text)
        text = verdict.scrubbed(text.decode("utf-8", "replace"), stream.credential).encode()
        headers = {"Content-Type": "application/json", **exchange.response_headers}
        caller.reply(200, headers, text)
        exchange.status, exchange.outcome = 200, Outcome.COMPLETED
        return None

    async def _close(self, exchange: Exchange, caller: CallerSide, stream: Stream, why: End) -> None:
        """What the end of a stream means, and what the caller gets of it."""
        exchange.status = 200
        if why is End.UPSTREAM and (rest := stream.events.close()):
            caller.write(rest)
        if stream.events.error is not None:
            exchange.outcome = Outcome.UPSTREAM_ERROR_IN_STREAM
            await caller.cut(b"")
        elif stream.left_early:
            exchange.outcome = Outcome.CALLER_GONE
        elif stream.events.complete or (stream.events.finished and why is End.CALLER):
            exchange.outcome = Outcome.COMPLETED
            caller.finish()
        elif why is End.STALLED:
            exchange.outcome = Outcome.STOPPED
            caller.abort()
        else:
            exchange.outcome, code, message = AFTER_FIRST_BYTE[why]
            error = Refused(500, code, message, type="service_error" if code[:8] != "upstream" else "upstream_error")
            exchange.error = error
            await caller.cut(b"data: %b\n\n" % render(error, exchange.id) if stream.events.at_border else b"")


async def _collect(upstream: UpstreamSide, most: int, deadline: float) -> bytes:
    """The body, up to `most` bytes; what the upstream sent beyond is not read."""
    pieces: list[bytes] = []
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    size = 0

    def on_data(data: bytes) -> None:
        nonlocal size
        pieces.append(data)
        size += len(data)
        if size > most and not done.done():
            done.set_result(None)

    def on_end(clean: bool) -> None:
        if not done.done():
            done.set_result(None)

    upstream.flow_to(on_data, on_end)
    await asyncio.wait((done,), timeout=max(0.0, deadline - time.monotonic()))
    return b"".join(pieces)[:most]


class _Counted(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Answer(msgspec.Struct):
    usage: _Counted | None = None


def _usage_of(text: bytes) -> Usage | None:
    """What a JSON answer says it used, estimated from its size where it says nothing; None if it is no JSON object."""
    try:
        counted = msgspec.json.decode(text, type=_Answer).usage
    except (msgspec.DecodeError, RecursionError):
        return None
    if counted is None:
        return Usage(0, -(-len(text) // 4), "estimated")
    return Usage(max(0, counted.prompt_tokens), max(0, counted.completion_tokens), "upstream")
