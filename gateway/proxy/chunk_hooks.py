"""The hooks that see an answer: plugins see the events of a stream before they are written to the caller, and may end it.

An answer as a whole they read before anything of it is sent, and may end the exchange with an error in its place.

Before that, the channel's credentials are replaced wherever they occur in the bytes of events, however reads split them
(`Redaction`), in the forms of `Channel.scrubbed`. One that an upstream changes otherwise is not recognised: in another case, with
letters written as `\\uXXXX`, or split over the texts of two events.

`EndReason` is why a relay ended, and what that means for a caller that has had the first byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import lru_cache
from typing import Final

import msgspec

from gateway.base.errors import Refused
from gateway.base.log import log
from gateway.chain.entry import origin_of
from gateway.chat.events import END, EventStream, WatchedEvents, whole_up_to
from gateway.chat.sse import QUOTE, whole_events
from gateway.chat.tokens import ALL
from gateway.domain.exchange import Exchange, Outcome
from gateway.proxy import failure

ChunkHook = Callable[[Exchange, bytes], None]
Named = tuple[str, ChunkHook]
"""A hook, and the name of its plugin."""

NamedResponse = tuple[str, Callable[[Exchange], None]]
"""`on_response`, and the name of its plugin."""

REDACTED: Final = failure.REDACTED.encode()

STREAM_HEADERS: Final = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
"""The headers of a stream that begins."""


class ChunkHooks:
    """The hooks of one stream, until one ends it: events that this plugin withholds are neither delivered nor counted."""

    __slots__ = ("_exchange", "_hooks", "at_boundary", "failure", "withheld")

    def __init__(self, exchange: Exchange, hooks: Sequence[Named]) -> None:
        self._exchange = exchange
        self._hooks = hooks
        self.withheld = False
        """A plugin ended the stream, or failed: later events are not delivered."""
        self.failure: Exception | None = None
        self.at_boundary = True
        """The delivered bytes end with a complete event."""

    @property
    def reason(self) -> EndReason:
        """Why the stream ended, once something is withheld."""
        return EndReason.STOPPING if self.failure is None else EndReason.PLUGIN

    def deliverable(self, chunk: bytes, events: WatchedEvents, secrets: Redaction | None = None) -> bytes:
        """Return the part that the plugins let pass of the whole events that `events` relayed last. It may be empty.

        `secrets` has replaced some of their bytes, and holds an end of them back.
        """
        exchange, passed = self._exchange, chunk
        for name, hook in self._hooks:
            try:
                hook(exchange, passed)
            except Refused as refused:
                exchange.stop(refused)
            except BaseException as error:
                where = origin_of(error, name, "on_chunk")
                log.error("plugin_failed", **where, request_id=exchange.id, exc_info=error)
                self.failure = (
                    error if isinstance(error, Exception) else RuntimeError(f"a plugin raised {type(error).__name__}")
                )
            if exchange.stopped is not None or self.failure is not None:
                if not self.withheld:
                    self.withheld, exchange.refused_by = True, name
                passed = b"" if self.failure is not None else whole_up_to(passed, exchange.kept)
                if not passed:
                    break
        if self.withheld:
            events.withdraw(sum(1 for _ in whole_events(passed + END)) if passed else 0)
            self.at_boundary = bool(passed) or self.at_boundary
        else:
            events.deliver(0 if secrets is None else secrets.held)
            self.at_boundary = events.at_boundary
        return passed


def run_response_hooks(exchange: Exchange, hooks: Sequence[NamedResponse]) -> None:
    """Run `on_response` of the plugins. Raises the exception of a plugin, and the error with which one ends the exchange."""
    for name, hook in hooks:
        try:
            hook(exchange)
        except Refused as refused:
            exchange.stop(refused)
        except BaseException:
            exchange.refused_by = name
            raise
        if exchange.stopped is not None:
            exchange.refused_by = name
            raise exchange.stopped


@lru_cache(16)
def _secrets_of(credentials: tuple[str, ...]) -> tuple[tuple[bytes, ...], int]:
    """Return the secrets, and how many novel bytes of a text may contain one. One with a quote may begin before the text."""
    secrets = tuple([credential.encode() for credential in credentials])
    return secrets, min([0 if QUOTE in secret else len(secret) for secret in secrets], default=ALL + 1)


class Redaction:
    """Replaces the credentials of a channel in one stream of events, which are called secrets here."""

    __slots__ = ("_events", "_tail", "secrets", "shortest")

    def __init__(self, credentials: Iterable[str], events: EventStream) -> None:
        self._events = events
        self._tail = b""
        self.secrets, self.shortest = _secrets_of(tuple(credentials))

    @property
    def held(self) -> int:
        """How many bytes are held back."""
        return len(self._tail)

    def redact_whole(self, whole: bytes) -> bytes:
        """Replace the secrets in `whole`, and hold back an end of it in which one may be split. That end is not counted yet."""
        whole = self._redact(self._take_held() + whole)
        if not self._events.at_boundary:
            # Part of an event that is too long to wait for: a secret may be split here.
            keep = max(1, *(len(secret) - 1 for secret in self.secrets))
            whole, self._tail = whole[:-keep], whole[-keep:]
            self._events.output.add_unread(-len(self._tail))
        return whole

    def redact_rest(self, rest: bytes) -> bytes:
        """Replace the secrets in the rest of the stream, after the bytes that were held back."""
        return self._redact(self._take_held() + rest)

    def _take_held(self) -> bytes:
        held, self._tail = self._tail, b""
        if held:
            self._events.output.add_unread(len(held))
        return held

    def _redact(self, data: bytes) -> bytes:
        for secret in self.secrets:
            if data.find(secret) >= 0:  # `in` would raise and drop an exception
                data = data.replace(secret, REDACTED)
                self._events.template.forget()
        return data


class EndReason(Enum):
    """Why a relay ended."""

    OTHER = "the answer is no event stream, or there is none"
    REFUSED = "the first event is an error"
    LATE = "no event arrived in time"
    COMPLETE = "the answer is complete"
    UPSTREAM = "the upstream ended its answer"
    BROKEN = "the upstream's connection broke"
    IDLE = "the upstream sent nothing for too long"
    TOTAL = "the answer took too long"
    SIZE = "the answer grew too large"
    CALLER = "the caller left"
    CALLER_STALLED = "the caller stopped reading"
    STOPPING = "the gateway is stopping, or it stopped this exchange"
    PLUGIN = "a plugin failed"


class Incomplete(msgspec.Struct, frozen=True):
    """An answer that ended without being complete: its outcome, and the error event that the caller gets."""

    outcome: Outcome
    type: str
    code: str
    message: str

    def error(self) -> Refused:
        """Return the error for the event."""
        return Refused(500, self.code, self.message, type=self.type)


INCOMPLETE: Final = {
    EndReason.UPSTREAM: Incomplete(
        Outcome.UPSTREAM_TRUNCATED,
        "upstream_error",
        "upstream_truncated",
        "The upstream ended the answer before it was whole.",
    ),
    EndReason.BROKEN: Incomplete(
        Outcome.UPSTREAM_TRUNCATED,
        "upstream_error",
        "upstream_truncated",
        "The upstream's connection broke before the answer was whole.",
    ),
    EndReason.IDLE: Incomplete(
        Outcome.UPSTREAM_STALLED,
        "upstream_error",
        "upstream_timeout",
        "The upstream fell silent in the middle of the answer.",
    ),
    EndReason.TOTAL: Incomplete(
        Outcome.STOPPED, "upstream_error", "upstream_timeout", "The answer took longer than this gateway allows."
    ),
    EndReason.SIZE: Incomplete(
        Outcome.STOPPED, "upstream_error", "upstream_error", "The answer is larger than this gateway allows."
    ),
    EndReason.STOPPING: Incomplete(
        Outcome.STOPPED,
        "service_error",
        "service_unavailable",
        "The gateway is stopping; send the request again.",
    ),
    EndReason.PLUGIN: Incomplete(Outcome.INTERNAL_ERROR, "service_error", "internal_error", ""),
}
"""The outcome and the error event for each reason that leaves a started answer incomplete. `attempt` handles the others."""
