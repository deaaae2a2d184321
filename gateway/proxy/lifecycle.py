"""One exchange from its arrival to its end: the request hooks, the upstream, the end hooks.

Every exchange ends here, once, with an outcome. `on_end` of each plugin that was entered runs in the task of the exchange, which
a disconnecting caller does not cancel and for which a stop of the gateway waits. The end of a stream is written only after
`on_end`, so a caller that has a complete answer has been charged for it, even if the process is killed right after.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from itertools import takewhile
from typing import Any, Final

import msgspec

from gateway.base import crash_points
from gateway.base.errors import GatewayError, Refused, StoreAway, StoreError, as_refused
from gateway.base.log import log
from gateway.chain.chain import Chain
from gateway.chain.entry import Entry, is_cancellation, note_failure
from gateway.domain.exchange import COMPLETED, Exchange, Outcome
from gateway.domain.reply import Reply
from gateway.metrics.registry import Metrics
from gateway.operations.operation import errors_of
from gateway.proxy.caller import CallerConnection, InvalidHeader, valid_headers
from gateway.proxy.chunk_hooks import AnswerHooks
from gateway.proxy.failover import Failover
from gateway.proxy.failure import CallerGone
from gateway.proxy.plugin_streams import answer_with_events

END_LIMIT_S: Final = 5.0
"""How long a stop waits for the ends of exchanges. A settlement that the store does not answer takes less."""
GIVE_UP_TRIES: Final = 2
GIVE_UP_S: Final = 1.5


LocalHandler = Callable[[Exchange], Awaitable[Reply]]
"""Answers an exchange that needs no upstream."""


class ExchangeRunner:
    """Runs exchanges, and waits for those in progress when the gateway stops."""

    def __init__(self, failover: Failover, metrics: Metrics) -> None:
        self.failover = failover
        self.metrics = metrics
        self._ending: dict[asyncio.Task[Any], tuple[Exchange, list[Entry]]] = {}
        self.open = 0
        """Exchanges in progress."""
        self.exchanges: set[Exchange] = set()
        """Those that have not ended. An exchange whose end hooks run is not among them."""
        self._idle = asyncio.Event()

    async def run(self, exchange: Exchange, chain: Chain, caller: CallerConnection, local: LocalHandler) -> None:
        """Run one exchange. It raises only when cancelled. When it returns, `on_end` of its plugins has run."""
        entered: list[Entry] = []
        caller.request_id = exchange.request_id
        self.open += 1
        self.exchanges.add(exchange)
        try:
            reply = await chain.request(exchange, entered)
            if reply is not None and reply.events is not None:
                hooks = AnswerHooks(*chain.hooks_of(entered))
                await answer_with_events(exchange, caller, reply, reply.events, hooks, self.failover.relays)
            else:
                await exchange.settle_pending()
                if exchange.stopped is not None:
                    raise exchange.stopped
                wire = exchange.request.operation.wire
                if reply is None and wire is not None:
                    await self.failover.run(exchange, wire, chain, caller)
                else:
                    await _answer(exchange, chain, caller, local, entered, reply)
        except BaseException as error:
            if is_cancellation(error):
                exchange.outcome = Outcome.STOPPED
                raise
            await _settle_refused(exchange)
            if isinstance(error, CallerGone) or (isinstance(error, ConnectionError) and caller.gone):
                exchange.outcome = Outcome.CALLER_GONE
                # Its frames hold the part of the body that was read, and the reader of the body holds the error.
                error.__traceback__ = error.__context__ = None
            else:
                _refuse(exchange, caller, error)
        finally:
            self.exchanges.discard(exchange)
            exchange.ended = time.monotonic()
            await self._end(exchange, chain, entered)
        if exchange.outcome is COMPLETED:
            caller.finish()
            crash_points.point("answer.finished")

    async def wait_ended(self, limit_s: float = END_LIMIT_S) -> None:
        """Wait until no exchange is in progress, for `limit_s` at most; then give up the end hooks that have not finished."""
        await self.wait_idle(limit_s)
        # Each cancellation gives up one hook: those of the plugins above it still run.
        for _ in range(GIVE_UP_TRIES):
            for task in self._ending:
                task.cancel()
            if self._ending:
                await asyncio.wait(self._ending, timeout=GIVE_UP_S)
        if self._ending:
            log.error("ends_abandoned", exchanges=len(self._ending))

    async def wait_idle(self, timeout_s: float, cut: asyncio.Event | None = None) -> None:
        """Wait until no exchange is in progress, for `timeout_s` at most, and not once `cut` is set."""
        if self.open:
            self._idle.clear()
            ends = [asyncio.ensure_future(event.wait()) for event in (self._idle, cut) if event is not None]
            await asyncio.wait(ends, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            for end in ends:
                end.cancel()

    def hanging(self, limit_s: float) -> list[tuple[str, str]]:
        """Return the ids of exchanges that ended longer ago than `limit_s`, each with the plugin whose end hook still runs."""
        before = time.monotonic() - limit_s
        old = takewhile(lambda ending: (ending[0].ended or before) < before, self._ending.values())
        return [(exchange.id, entered[-1].name) for exchange, entered in old if entered]

    async def _end(self, exchange: Exchange, chain: Chain, entered: list[Entry]) -> None:
        task: Any = asyncio.current_task()
        while task.cancelling():
            task.uncancel()  # what cancelled the exchange does not give up its end hooks
        self._ending[task] = exchange, entered
        try:
            await chain.end(exchange, entered)
            self.metrics.ended(exchange)
        except Exception:  # a plugin left a value of a wrong type on the exchange
            log.exception("request_not_counted", request_id=exchange.id)
        finally:
            del self._ending[task]
            exchange.drop_values()  # an error of a library that refers to itself may keep the exchange
            self.open -= 1
            if not self.open:
                self._idle.set()


async def _answer(
    exchange: Exchange,
    chain: Chain,
    caller: CallerConnection,
    local: LocalHandler,
    entered: list[Entry],
    reply: Reply | None,
) -> None:
    """Answer without an upstream: by the reply of a plugin, or by `local`."""
    if reply is None:
        reply = await local(exchange)
    elif reply.status < 400 and exchange.request.operation.wire is not None:
        body = AnswerHooks(*chain.hooks_of(entered)).whole(exchange, reply.body)
        reply = msgspec.structs.replace(reply, body=body)
    headers = {"Content-Type": reply.content_type, **exchange.response_headers, **reply.headers}
    caller.reply(reply.status, headers, reply.body)
    exchange.status = reply.status
    exchange.outcome = COMPLETED if reply.status < 400 else Outcome.REFUSED
    exchange.bytes = len(reply.body)


async def _settle_refused(exchange: Exchange) -> None:
    """Wait for the pending work of a refused exchange. Its errors are only logged: the caller gets the refusal."""
    try:
        await exchange.settle_pending()
    except BaseException as error:
        if is_cancellation(error):
            raise
        _log(exchange, error)


def _log(exchange: Exchange, error: BaseException) -> None:
    """Log an error that is no decision about the request."""
    if isinstance(error, Refused):
        return
    if isinstance(error, StoreAway):
        log.warning(error.event, request_id=exchange.id, reason=str(error))
    elif isinstance(error, GatewayError):
        event = "store_error" if isinstance(error, StoreError) else "internal_error"
        log.error(event, request_id=exchange.id, by=exchange.refused_by, reason=str(error))
    else:
        note_failure("internal_error", exchange, error)


def _refuse(exchange: Exchange, caller: CallerConnection, error: BaseException) -> None:
    refusal = as_refused(error)
    _log(exchange, error)
    if isinstance(error, InvalidHeader):
        exchange.response_headers = valid_headers(exchange.response_headers)
    # Its frames hold the exchange and the body: with them, only the garbage collector would free both.
    refusal.__traceback__ = refusal.__context__ = refusal.__cause__ = None
    exchange.error = refusal
    if error is exchange.stopped and not (exchange.attempts or exchange.answered_by):
        exchange.refused_by = ""  # a plugin that waited for the body raised it
    exchange.status = refusal.status
    if refusal.status == 500:
        exchange.outcome = Outcome.INTERNAL_ERROR
    elif exchange.attempts or refusal.unavailable:
        exchange.outcome = Outcome.STOPPED if error is exchange.stopped else Outcome.UPSTREAM_FAILED
    else:
        exchange.outcome = Outcome.REFUSED
    if caller.started:
        caller.abort()
        return
    try:
        caller.refuse(refusal, exchange.id, exchange.response_headers, errors_of(exchange.request.path))
    except InvalidHeader as invalid:
        _refuse(exchange, caller, invalid)
    except (AttributeError, TypeError, ValueError) as unusable:  # a plugin left something else than headers
        exchange.response_headers = {}
        _refuse(exchange, caller, unusable)
