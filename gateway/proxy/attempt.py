"""One call of one upstream: connection, credential, response, and what of it reaches the caller.

Of a failure before the first byte, the caller gets nothing. After that byte, see `gateway.proxy.ending`.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from functools import partial

from aiohttp import ClientError

from gateway import crash_points
from gateway.errors import Refused
from gateway.facts import Caller, Trace
from gateway.log import Logger
from gateway.proxy import failure
from gateway.proxy.body import read_body
from gateway.proxy.call import Call
from gateway.proxy.chunk_hooks import ChunkHooks
from gateway.proxy.dialect_calls import DialectCalls, DialectFailed
from gateway.proxy.end_reason import STREAM_HEADERS, EndReason
from gateway.proxy.ending import conclude, meter_stream
from gateway.proxy.failure import CallerGone, UpstreamFailure
from gateway.proxy.foreign_request import foreign_parts
from gateway.proxy.gathered_answer import finish_gathering
from gateway.proxy.json_answer import pass_on
from gateway.proxy.pool import Target, UpstreamPool
from gateway.proxy.relay import Relay
from gateway.proxy.relay_state import RelayState
from gateway.proxy.reply_stream import ReplyStream
from gateway.proxy.response_hooks import run_response_hooks
from gateway.proxy.translated_relay import TranslatedRelay
from gateway.proxy.upstream import UpstreamConnection
from gateway.proxy.upstream_headers import keep_only_id, kept_id, trace_lines
from gateway.proxy.upstream_state import InvalidResponse

log = Logger("gateway.proxy.attempt")


class UpstreamCall(Call):
    """The attempt at one candidate."""

    async def run(self, pool: UpstreamPool, relays: set[Relay | ReplyStream]) -> UpstreamFailure | None:
        """Call the upstream, with the channel's next credential where one is refused.

        Return None when the caller has a response, else why there is none. Raises `CallerGone`.
        """
        self.exchange.attempts.append(self.attempt)
        crash_points.point("upstream.before")
        name = self.exchange.channel = self.candidate.name
        channel, ceiling = self.candidate.channel, self.candidate.max_output_tokens
        target = pool.target(channel, self.chain.generation, self.dialect)
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
        accept = "text/event-stream" if self.streamed else "application/json"
        account = caller.account if (caller := self.exchange.get(Caller)) else ""
        trace = self.exchange.get(Trace)
        lines = trace_lines(self.exchange.request.headers if trace is None else trace.headers())
        while True:
            credential = target.credentials.next(name, account)
            self.message = target.message(self.parts, credential=credential, accept=accept, trace=lines)
            failed = await self._send(target, relays)
            if not target.credentials.another(credential, name, account, failed):
                return failed

    async def _send(self, target: Target, relays: set[Relay | ReplyStream]) -> UpstreamFailure | None:
        """Send the request; again on a new connection where a pooled one turned out to be closed before any response."""
        for fresh in (False, True):
            opened = await self._open(target, fresh=fresh)
            if opened is None:
                return failure.unreachable()
            upstream, used = opened
            self.upstream = upstream
            try:
                relay = self._relay(upstream)
            except DialectFailed as broken:
                upstream.release()
                return failure.of_dialect(broken.plugin)
            relays.add(relay)
            self.exchange.on_stop = partial(relay.end, EndReason.STOPPING)
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
        exchange, body, channel = self.exchange, self.body, self.candidate.channel
        make = Relay if self.dialect is None else partial(TranslatedRelay, self.dialect)
        if self.gathering is None:
            named = self.chain.on_chunk + crash_points.on_event
            hooks = ChunkHooks(exchange, named) if named else None
            return make(exchange, body, channel, self.caller, upstream, self._begin, hooks)
        relay = make(exchange, body, channel, self.gathering, upstream, self.begin_gathering)
        self.gathering.on_invalid = partial(relay.end, EndReason.OTHER)
        return relay

    async def _open(self, target: Target, *, fresh: bool) -> tuple[UpstreamConnection, bool] | None:
        """Return a connection, or None where the upstream cannot be reached. The wait ends when the caller leaves."""
        if not (fresh or self.caller.gone or self.exchange.stopped) and (idle := await target.idle()) is not None:
            return idle, True
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(loop.time() + self.deadline - time.monotonic()) as timeout:
                self.caller.on_gone = lambda: None if timeout.expired() else timeout.reschedule(loop.time())
                self.exchange.on_stop = self.caller.on_gone
                upstream, used = await target.open(fresh=fresh)
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
        relay.limit_first_event(self.remaining_s())
        reason = await relay.ended
        if upstream.status:
            attempt.status = upstream.status
            attempt.upstream_request_id = failure.scrubbed(kept_id(upstream.headers), credentials)
            attempt.completion_id = failure.scrubbed(relay.events.completion_id, credentials)
        if relay.state is not RelayState.COLLECTING:
            crash_points.point("stream.ended")
            if self.gathering is not None:
                return finish_gathering(self, self.gathering, relay, reason)
            await self._conclude(relay, reason)
            return None
        if self.caller.gone or reason is EndReason.STOPPING:
            return self.interrupted()
        if relay.failure is not None:
            raise relay.failure
        if relay.events.error is not None and relay.events.first_error:
            status = relay.translation.status if relay.translation else 0
            return failure.of_event(relay.events.error, credentials, status, upstream.headers)
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
        """Return the headers of the response: the first event has arrived."""
        self.answered()
        if self.chain.on_response:
            run_response_hooks(self.exchange, self.chain.on_response)
        self.exchange.drop_body()  # no retry follows
        self.parts.clear()
        self.message.clear()
        if self.upstream is not None:
            keep_only_id(self.upstream.headers)
        return {**STREAM_HEADERS, **self.exchange.response_headers}

    async def _conclude(self, relay: Relay, reason: EndReason) -> None:
        """Charge a stream that has ended, set its outcome, and write what the caller gets of it."""
        if reason is EndReason.UPSTREAM and (rest := relay.rest()):
            self.caller.write(rest)
        if relay.hooks is not None and relay.hooks.withheld:
            reason = relay.hooks.reason
        meter_stream(self.attempt, relay, self.body, self.candidate)

        def on_failed(code: str) -> None:
            self.breaker.failed(self.candidate, self.exchange.id, code, None)

        await conclude(self.exchange, self.caller, relay, reason, on_failed)
