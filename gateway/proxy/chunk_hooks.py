"""The plugins that look at a stream: they see its events before they are written to the caller, and may end it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.chain.failures import origin_of
from gateway.chat.sse import whole_events
from gateway.chat.withheld import END, WatchedEvents, whole_up_to
from gateway.errors import Refused
from gateway.exchange import Exchange
from gateway.log import Logger
from gateway.proxy.end_reason import EndReason
from gateway.proxy.redaction import Redaction

log = Logger("gateway.proxy.chunk_hooks")

ChunkHook = Callable[[Exchange, bytes], None]
Named = tuple[str, ChunkHook]
"""A hook, and the name of its plugin."""


class ChunkHooks:
    """The hooks of one stream, until one ends it: what that plugin does not let pass is neither delivered nor counted."""

    __slots__ = ("_exchange", "_hooks", "at_boundary", "failure", "withheld")

    def __init__(self, exchange: Exchange, hooks: Sequence[Named]) -> None:
        self._exchange = exchange
        self._hooks = hooks
        self.withheld = False
        """A plugin ended the stream, or failed: what follows is not delivered."""
        self.failure: Exception | None = None
        self.at_boundary = True
        """What was delivered ends with a complete event."""

    @property
    def reason(self) -> EndReason:
        """Why the stream ended, once something is withheld."""
        return EndReason.STOPPING if self.failure is None else EndReason.PLUGIN

    def deliverable(self, chunk: bytes, events: WatchedEvents, secrets: Redaction | None = None) -> bytes:
        """Return what the plugins let pass of the whole events that `events` relayed last. It may be nothing.

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
