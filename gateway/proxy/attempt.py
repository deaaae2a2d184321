"""One call of one upstream: connection, credential, response, and the part of it that reaches the caller.

Of a failure before the first byte, the caller gets nothing. After that byte, see `gateway.proxy.ending`.

**Whole answers**, those in JSON and those gathered from a stream, reach the caller once they are complete. An answer in JSON is
read within a bound. Nothing is known of it until it is there, so only the timer of the whole exchange judges it. For an answer
that is gathered the relay did the same as for a stream, with the same timers, limits and usage. What breaks off is an error with
a status of its own, and another channel may be called. Output that was not delivered is not charged, unless the caller left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Final

import msgspec
from aiohttp import ClientError

from gateway.base import crash_points
from gateway.base.errors import Refused, unavailable
from gateway.base.log import log
from gateway.chain.chain import Chain
from gateway.chat.answers import Response
from gateway.chat.events import EventStream
from gateway.chat.request import Body, BodyPart
from gateway.chat.usage import Pace, ReportedUsage, Usage
from gateway.config.channel import Channel
from gateway.domain.exchange import COMPLETED, Attempt, Exchange
from gateway.domain.facts import Caller, Candidate, Route, Trace
from gateway.operations.kept import TRUNCATION
from gateway.operations.wire_format import JSON, CheckedBody, WireFormat
from gateway.proxy import failure
from gateway.proxy.caller import CallerConnection
from gateway.proxy.chunk_hooks import (
    CALLER_STALLED,
    INCOMPLETE,
    STOPPING,
    AnswerHooks,
    ChunkHooks,
    EndReason,
    run_response_hooks,
)
from gateway.proxy.ending import conclude, is_complete, meter, meter_stream
from gateway.proxy.failure import CallerGone, UpstreamFailure, read_body
from gateway.proxy.kept_answers import Keeper
from gateway.proxy.pool import Endpoint, UpstreamPool
from gateway.proxy.relay import SSE, Gathering, Relay
from gateway.proxy.translation import DialectCalls, DialectFailed, Translation, foreign_parts
from gateway.proxy.upstream import InvalidResponse, UpstreamConnection, kept_id, trace_lines
from gateway.store.channels import fingerprint_of
from gateway.store.kept_ids import KeptIds

CHUNKS: Final = "a stream of chat completion chunks"


class UpstreamCall:
    """The attempt at one candidate. `gathering`: its stream is gathered, for a caller that did not ask for one."""

    def __init__(
        self,
        exchange: Exchange,
        chain: Chain,
        caller: CallerConnection,
        wire: WireFormat,
        body: Body,
        candidate: Candidate,
        route: Route,
    ) -> None:
        self.exchange = exchange
        self.wire = wire
        self.chain = chain
        self.caller = caller
        self.body = body
        self.candidate = candidate
        self.route = route
        self.breaker = route.breaker
        self.kept_ids: KeptIds | None = None
        self.keeper: Keeper | None = None
        """Remembers the ids of the answer. None where no upstream keeps it."""
        self.events: EventStream | None = None
        """Of an answer whose ids are remembered."""
        self.upstream: UpstreamConnection | None = None
        self.pace: Pace
        self.parts: list[BodyPart] = []
        self.message: list[BodyPart] = []
        self.began = monotonic()
        self.attempt = Attempt(candidate.name, candidate.model, cost=candidate.cost, began=self.began)
        self.attempt.dialect = candidate.channel.dialect or ""
        timers = candidate.channel.timers
        name = candidate.channel.dialect
        self.dialect = None if name is None else chain.dialects[name]
        gathered = wire.gathers and not body.stream and (candidate.channel.upstream_stream or name is not None)
        self.gathering = Gathering(caller) if gathered else None
        self.streamed = body.stream or self.gathering is not None
        first_s = timers.first_byte if self.streamed else timers.total
        self.deadline = min(self.began + first_s, exchange.started + timers.total)

    async def run(self, pool: UpstreamPool, relays: set[Relay]) -> UpstreamFailure | None:
        """Call the upstream, with the channel's next credential where one is refused.

        Return None when the caller has a response, else why there is none. Raises `CallerGone`.
        """
        self.exchange.attempts.append(self.attempt)
        crash_points.point("upstream.before")
        name = self.exchange.channel = self.candidate.name
        channel, ceiling = self.candidate.channel, self.candidate.max_output_tokens
        endpoint = pool.endpoint(channel, self.chain.generation, self.dialect)
        self.pace = endpoint.paces[self.candidate.model]
        if self.dialect is None:
            self.parts = self.body.upstream(
                self.candidate.model,
                channel.ceiling_name,
                ceiling,
                ask_usage=channel.ask_usage,
                stream=self.streamed,
                fields=channel.fields,
            )
        else:
            try:
                self.parts = await foreign_parts(
                    DialectCalls(self.dialect, self.exchange.id), self.body, self.candidate
                )
            except Refused as refused:
                refused.__traceback__ = refused.__context__ = (
                    None  # they hold the body, which the next attempt is to free
                )
                return UpstreamFailure(refused, unfit=True)
            except DialectFailed as broken:
                return failure.of_dialect(broken.plugin)
        streams = SSE if self.dialect is None else self.dialect.streams
        accept = streams[0] if self.streamed else self.wire.accept
        account = caller.account if (caller := self.exchange.get(Caller)) else ""
        trace = self.exchange.get(Trace)
        given = self.exchange.request.headers
        lines = trace_lines(given if trace is None else trace.headers()) + self.wire.lines(given, channel)
        if isinstance(self.body, CheckedBody) and self.body.media:
            lines += f"Content-Type: {self.body.media}\r\n"
        session = self.route.session
        if session and channel.session_header:
            lines += f"{channel.session_header}: {session}\r\n"
        credentials = endpoint.credentials
        rejected: list[str] = []
        while True:
            credential = credentials.next(name, account, session, self.candidate.credential)
            if self.kept_ids is not None:
                self.keeper = self._keeper(self.kept_ids, account, credential)
            self.message = endpoint.message(self.wire, self.parts, credential, accept, lines)
            failed = await self._send(endpoint, relays)
            if failed is None:
                credentials.worked(credential, name, rejected)
                return None
            if not credentials.another(credential, name, account, failed) or self.candidate.credential:
                if (failed.credential_refused or failed.forbidden) and credentials.all_refused(name):
                    return msgspec.structs.replace(failed, not_the_request=True, cool_s=0)
                return failed
            if failed.why == "401":
                rejected.append(credential)

    def _keeper(self, ids: KeptIds, account: str, credential: str) -> Keeper | None:
        if not (account and isinstance(self.body, CheckedBody) and self.body.keeps):
            return None
        origin = (self.candidate.name, fingerprint_of(credential), self.body.model)
        fields = self.candidate.channel.fields
        truncates = self.body.truncates or (fields is not None and fields.replaces(TRUNCATION))
        return Keeper(ids, account, origin, truncates=truncates)

    async def _send(self, endpoint: Endpoint, relays: set[Relay]) -> UpstreamFailure | None:
        """Send the request; again on a new connection where a pooled one turned out to be closed before any response."""
        for fresh in (False, True):
            reused = not (fresh or self.caller.gone or self.exchange.stopped)
            at_hand = endpoint.at_hand() if reused else None
            opened = (at_hand, True) if at_hand is not None else await self._open(endpoint, fresh=fresh, reused=reused)
            if opened is None:
                timers, now = self.candidate.channel.timers, monotonic()
                hurried = now >= self.deadline and now - self.began < min(timers.connect, timers.first_byte)
                return failure.out_of_time() if hurried else failure.unreachable()
            upstream, used = opened
            self.upstream = upstream
            try:
                relay = self._relay(upstream)
            except DialectFailed as broken:
                upstream.release()
                return failure.of_dialect(broken.plugin)
            relays.add(relay)
            self.exchange.on_stop = relay.stop
            try:
                upstream.send(self.message)
                crash_points.point("upstream.sent")
                return await self._answer(upstream, relay)
            except InvalidResponse:
                return failure.invalid_response()
            except ConnectionError:
                if upstream.answered or not used:
                    break
            finally:
                self.exchange.on_stop = None
                relays.discard(relay)
                relay.close()
                relay.failure = upstream.failure = None  # a traceback refers to both
        return failure.dropped()

    def _relay(self, upstream: UpstreamConnection) -> Relay:
        exchange, channel, gathering = self.exchange, self.candidate.channel, self.gathering
        named = () if gathering is not None else self.chain.on_chunk + crash_points.on_event
        deltas = self.chain.on_delta if gathering is None and self.wire.rewrites else ()
        hooks = ChunkHooks(exchange, named, deltas) if named or deltas else None
        events = self.wire.events(self.body, channel, gathered=gathering is not None, watched=hooks is not None)
        if self.keeper is not None:
            self.events = events
        translation = None
        if self.dialect is not None:
            model = exchange.requested_model or exchange.model
            translation = Translation(self.dialect, events.usage, exchange.id, model)
        relay = Relay(exchange, events, channel, gathering or self.caller, upstream, self._begin, hooks, translation)
        if gathering is not None:
            relay.max_prelude = channel.max_response_bytes
            gathering.on_invalid = partial(relay.end, EndReason.OTHER)
        relay.streamed = self.streamed
        upstream.on_head = relay.on_head
        return relay

    async def _open(self, endpoint: Endpoint, *, fresh: bool, reused: bool) -> tuple[UpstreamConnection, bool] | None:
        """Return a connection, or None where the upstream cannot be reached. The wait ends when the caller leaves."""
        if reused and (idle := await endpoint.idle()) is not None:
            return idle, True
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(loop.time() + self.deadline - monotonic()) as timeout:
                self.caller.on_gone = lambda: None if timeout.expired() else timeout.reschedule(loop.time())
                self.exchange.on_stop = self.caller.on_gone
                upstream, used = await endpoint.open(fresh=fresh)
        except (TimeoutError, ClientError, OSError) as error:
            if self.caller.gone:
                raise CallerGone from None
            if self.exchange.stopped is not None:
                raise self.exchange.stopped from None
            log.warning("upstream_unreachable", channel=self.candidate.name, error=type(error).__name__)
            return None
        finally:
            self.caller.on_gone = self.exchange.on_stop = None
        if self.caller.gone or self.exchange.stopped is not None:
            upstream.release()
            raise self.exchange.stopped or CallerGone
        return upstream, used

    async def _answer(self, upstream: UpstreamConnection, relay: Relay) -> UpstreamFailure | None:
        attempt, credentials = self.attempt, self.candidate.channel.scrubbed
        relay.limit_first_event(self.deadline)
        reason = await relay.ended
        if upstream.status:
            attempt.status = upstream.status
            if upstream.named:
                attempt.upstream_request_id = failure.scrubbed(kept_id(upstream.headers), credentials)
            attempt.completion_id = failure.scrubbed(relay.events.completion_id, credentials)
        if not relay.begun:
            return await self._not_begun(upstream, relay, reason)
        crash_points.point("stream.ended")
        if self.gathering is not None:
            return finish_gathering(self, self.gathering, relay, reason)
        error = relay.events.error
        if relay.hooks is not None and relay.hooks.withheld:
            reason, error = relay.hooks.reason, None
        self.meter_stream(relay, reason)
        if self.keeper is not None:
            ids = self.wire.item_ids(relay.events)
            await self.keeper.end(relay.events.completion_id, ids, attempt.usage)
        whole = is_complete(relay, reason)
        last = conclude(self.exchange, self.caller, relay, reason, whole, error, self._failed)
        if last is not None:
            await self.caller.cut(last)
        return None

    async def _not_begun(self, upstream: UpstreamConnection, relay: Relay, reason: EndReason) -> UpstreamFailure | None:
        """Handle an answer of which the caller has had nothing when its relay ended."""
        if reason in (EndReason.CALLER, STOPPING):
            return self.interrupted()
        if relay.failure is not None:
            raise relay.failure
        if relay.events.error is not None and relay.events.first_error:
            status = relay.translation.status if relay.translation else 0
            return failure.of_event(relay.events.error, self.candidate.channel.scrubbed, status, upstream.headers)
        match reason:
            case EndReason.OTHER:
                return await self._not_a_stream(upstream, relay)
            case EndReason.LATE:
                return failure.timed_out() if self.streamed else failure.timed_out("answer")
            case EndReason.BROKEN:
                return failure.dropped()
            case EndReason.SIZE if relay.events.started:
                return failure.too_large()
            case _:
                return failure.invalid_response()

    async def _not_a_stream(self, upstream: UpstreamConnection, relay: Relay) -> UpstreamFailure | None:
        """Handle a response that is not an event stream."""
        if upstream.failure is not None:
            raise upstream.failure
        ended = relay.wait_again()
        if upstream.status == 200:
            return failure.invalid_response() if self.body.stream else await pass_on(self, upstream, ended)
        read = await read_body(upstream, failure.MAX_ERROR_BODY, self.remaining_s(), ended)
        if ended.done():
            return self.interrupted()
        status, text = upstream.status, b"" if upstream.encoded else read.data
        if self.dialect is not None:
            with suppress(DialectFailed):
                status, text = DialectCalls(self.dialect, self.exchange.id).error(status, text)
        failed = failure.of_answer(status, upstream.headers, text, self.candidate.channel.scrubbed)
        if failed.final:
            self.answered()
        return failed

    def _begin(self) -> dict[str, str]:
        """Return the headers of the response: the first event has arrived. An answer that is gathered gets none yet."""
        self.answered()
        if self.gathering is not None:
            return {}
        if self.chain.on_response:
            run_response_hooks(self.exchange, self.chain.on_response)
        if self.keeper is not None and self.events is not None:
            self.keeper.begin(self.events.completion_id)
        self.exchange.drop_body()  # no retry follows
        self.parts.clear()
        self.message.clear()
        if self.upstream is not None:
            self.upstream.keep_only_id()
        return self.exchange.response_headers

    def _failed(self, code: str) -> None:
        """Tell the circuit breaker that the answer ended before it was whole."""
        self.breaker.failed(self.candidate, self.exchange.id, code, None)

    def answered(self) -> None:
        """Tell the circuit breaker that the answer has begun."""
        self.breaker.answered(self.candidate, self.exchange.id, monotonic() - self.began)

    def remaining_s(self) -> float:
        """Return how long the call may still take."""
        return max(0.0, self.deadline - monotonic())

    def interrupted(self) -> UpstreamFailure:
        """Return why the exchange ends before the first event: the gateway stops or ends it. Raises `CallerGone`."""
        self.attempt.usage = Usage(self.body.prompt_tokens_estimate, 0, "estimated")
        if self.caller.gone:
            meter(self.attempt, ReportedUsage(), self.tokens_by_time, self.body, self.candidate)
            raise CallerGone
        return UpstreamFailure(self.exchange.stopped or unavailable(), final=True)

    def tokens_by_time(self) -> int:
        """Return the output tokens of the time since the call began, at the pace of the model, that no text shows."""
        return self.pace.tokens(monotonic() - self.began, streamed=self.streamed)

    def meter_stream(self, relay: Relay, reason: EndReason) -> None:
        """Set the usage of a stream that has ended, and learn from it. The time counts where the end is the caller's doing."""
        left = self.caller.gone or reason is CALLER_STALLED
        meter_stream(self.attempt, relay, self.body, self.candidate, self.tokens_by_time() if left else 0)
        if not (left or relay.slowed):
            self.pace.learn(self.attempt.usage, relay.events.output.tokens, self.began)

    def prepare_json(self, text: bytes, media_type: str = JSON) -> UpstreamFailure | None:
        """Prepare an answer in JSON or of another type, which is written once it is charged.

        Return why there is none: a plugin ended the exchange. Of such an answer the output is not charged, and nothing where a
        plugin fails.
        """
        exchange = self.exchange
        text = failure.scrubbed_bytes(text, self.candidate.channel.scrubbed)
        used, self.attempt.usage = self.attempt.usage, Usage()
        try:
            text = AnswerHooks(self.chain.on_response, deltas=self.chain.on_delta).whole(exchange, text)
        except Refused as refused:
            self.attempt.usage = without_output(used)
            return UpstreamFailure(refused.with_traceback(None), final=True)
        self.caller.prepare(200, {"Content-Type": media_type, **exchange.response_headers}, text)
        self.attempt.usage = used
        exchange.first_byte, exchange.bytes = monotonic(), len(text)
        exchange.status, exchange.outcome = 200, COMPLETED
        return None


def without_output(usage: Usage) -> Usage:
    """Return the usage to charge for an attempt whose output the caller did not get."""
    return Usage(usage.prompt_tokens, 0, usage.source, usage.cached_tokens, usage.cache_write_tokens)


async def pass_on(
    call: UpstreamCall, upstream: UpstreamConnection, ended: asyncio.Future[EndReason]
) -> UpstreamFailure | None:
    """Read a JSON response, and prepare and charge it. Return why there is none."""
    channel = call.candidate.channel
    call.deadline = call.exchange.started + channel.timers.total
    response = await _read(upstream, call.wire, channel, call.remaining_s(), ended)
    if ended.done():
        return call.interrupted()
    if isinstance(response, UpstreamFailure):
        return response
    call.answered()
    call.attempt.completion_id = failure.scrubbed(response.completion_id, channel.scrubbed)
    meter(call.attempt, response.usage, response.estimate_output, call.body, call.candidate)
    call.pace.learn(call.attempt.usage, response.estimate_output, call.began)
    if call.keeper is not None:
        await call.keeper.end(response.completion_id, call.wire.item_ids(response), call.attempt.usage)
    if call.caller.gone:
        raise CallerGone
    kind = JSON if upstream.media_type == JSON else failure.scrubbed(upstream.headers["Content-Type"], channel.scrubbed)
    return call.prepare_json(response.text, kind)


async def _read(
    upstream: UpstreamConnection,
    wire: WireFormat,
    channel: Channel,
    timeout_s: float,
    ended: asyncio.Future[EndReason],
) -> Response | UpstreamFailure:
    """Return the response, or why there is none. A body is not complete where `ended` was done first."""
    if not upstream.media_type.startswith(wire.media):
        return failure.invalid_response("JSON" if wire.media[0] == JSON else wire.answer)
    read = await read_body(upstream, channel.max_response_bytes, timeout_s, ended)
    if not read.whole:
        if read.long:
            return failure.too_large()
        return failure.truncated() if read.broken else failure.timed_out("answer")
    try:
        response = wire.read(read.data)
    except ValueError:
        return failure.invalid_response("valid JSON") if upstream.framed else failure.truncated()
    if response is None:
        return failure.invalid_response(wire.answer)
    return failure.of_event(response.facts, channel.scrubbed) if response.error else response


def finish_gathering(
    call: UpstreamCall, gathering: Gathering, relay: Relay, reason: EndReason
) -> UpstreamFailure | None:
    """Charge a gathered stream that has ended, and prepare the answer. Return why there is none. Raises `CallerGone`."""
    exchange, attempt, events = call.exchange, call.attempt, relay.events
    exchange.first_byte, exchange.bytes, exchange.events = None, 0, 0
    call.meter_stream(relay, reason)
    if call.caller.gone:
        raise CallerGone
    credentials, usage = call.candidate.channel.scrubbed, attempt.usage
    if events.error is None and is_complete(relay, reason) and (text := gathering.encode()):
        return call.prepare_json(text)
    attempt.usage = without_output(usage)
    if reason is STOPPING:
        return UpstreamFailure(exchange.stopped or unavailable(), final=True)
    failed = _failure_of(gathering, reason, events.error, usage, credentials)
    attempt.usage = attempt.usage if failed.maybe_billed else Usage()
    return failed


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
