"""A relay of an answer, and all that can be seen of it: with the compiled modules and in pure Python, the same.

Everything is the gateway's own except the two transports, the clock and the queue of turns, which the caller moves.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal

from multidict import CIMultiDict

from gateway.chat.dialect import Dialect
from gateway.chat.events import EventStream
from gateway.chat.prompt import PromptBound
from gateway.chat.request import Body
from gateway.config.channel import Channel
from gateway.domain.exchange import Exchange, Request
from gateway.operations.chat_completions import ChatFormat
from gateway.operations.operation import Operation
from gateway.proxy.caller import CallerConnection
from gateway.proxy.chunk_hooks import ChunkHook, ChunkHooks
from gateway.proxy.relay import Relay
from gateway.proxy.translation import Translation
from gateway.proxy.upstream import UpstreamConnection

KEY: Final = "sk-a-credential-of-the-channel"
DATE: Final = re.compile(rb"Date: [^\r]+")
NOT_COMPARED: Final = {"_at_mark", "_head", "_long", "output", "template"}
"""Of an event stream: what it remembers of earlier events, only to be faster or to count them again; its output is compared."""


class Clock(asyncio.SelectorEventLoop):
    """An event loop whose time is moved by the caller."""

    now = 1000.0

    def time(self) -> float:
        return self.now


class Transport(asyncio.Transport):
    """Both transports: what was written, and what else was called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[object] = []
        self.protocol = asyncio.BaseProtocol()

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self.protocol

    def write(self, data: object) -> None:
        self.calls.append(data)

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def abort(self) -> None:
        self.calls.append("abort")

    def get_write_buffer_size(self) -> int:
        return 0


class Pooled:
    """The connection of the pool, and the protocol that it has there."""

    def __init__(self) -> None:
        self.transport = Transport()
        self.protocol = self
        self.calls: list[str] = []

    def release(self) -> None:
        self.calls.append("release")

    def close(self) -> None:
        self.calls.append("close")

    def connection_lost(self, exc: Exception | None) -> None:
        pass


class Queue:
    """What waits for a turn."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []
        self.spent = False

    def is_spent(self, now: float) -> bool:
        return self.spent

    def count(self, began: float) -> None:
        pass

    def wait(self, serve: Callable[[], None]) -> None:
        self.waiting.append(serve)

    def run(self) -> None:
        while self.waiting:
            self.waiting.pop(0)()


class Owner:
    """The protocol of the caller's connection."""

    caller: CallerConnection | None = None
    cut_off = False


async def _no_body() -> Body:
    raise AssertionError


REQUEST: Final = Request("POST", "/v1/chat/completions", CIMultiDict(), "127.0.0.1", Operation.CHAT)


class Twin:
    """One relay with all around it."""

    def __init__(
        self,
        *,
        max_bytes: int,
        choices: int = 1,
        asked_usage: bool = False,
        http_1_1: bool = True,
        hooked: bool = False,
        hook: ChunkHook | None = None,
        dialect: Dialect | None = None,
        credential: str = KEY,
        drain: bool = False,
        empty_choices: Literal["drop", "pass"] = "drop",
        events: EventStream | None = None,
    ) -> None:
        read_body: Callable[[], Awaitable[Body]] = _no_body
        self.body = Body("m", PromptBound(100), True, None, choices, asked_usage, 100, 1, 10)
        self.channel = Channel(
            base_url="http://upstream/v1",
            api_key=credential,
            max_response_bytes=max_bytes,
            empty_choices=empty_choices,
            on_caller_gone="drain" if drain else "cancel",
            dialect=dialect.name if dialect else None,
        )
        self.exchange = Exchange(REQUEST, read_body, id="one")
        self.exchange.started = 1000.0
        self.to_caller = Transport()
        self.caller = CallerConnection(Owner(), self.to_caller, http_1_1=http_1_1, keep_alive=True)
        self.pooled, self.turns = Pooled(), Queue()
        self.upstream = UpstreamConnection(self.pooled, self.turns)  # type: ignore[arg-type]
        self.hooked: list[bytes] = []
        seen = hook or (lambda _, data: self.hooked.append(data))
        hooks = ChunkHooks(self.exchange, [("hook", seen)]) if hooked or hook else None
        if events is None:
            events = ChatFormat().events(self.body, self.channel, gathered=False, watched=hooks is not None)
        translation = None if dialect is None else Translation(dialect, events.usage, self.exchange.id)
        self.relay = Relay(self.exchange, events, self.channel, self.caller, self.upstream, dict, hooks, translation)
        self.upstream.on_head = self.relay.on_head

    def read(self, data: bytes) -> None:
        """Let the upstream's transport read."""
        buffer = self.upstream.get_buffer(-1)
        buffer[: len(data)] = data
        self.upstream.buffer_updated(len(data))

    @property
    def reading(self) -> bool:
        """Whether the transport would read now."""
        return bool(self.upstream._reading)

    def seen(self) -> list[object]:
        """Return everything that the rest of the gateway could see, and what decides about the next read."""
        relay, connection, exchange, events = self.relay, self.upstream, self.exchange, self.relay.events
        return [
            *(DATE.sub(b"", call) if isinstance(call, bytes) else call for call in self.to_caller.calls),
            *self.pooled.transport.calls,
            self.hooked,
            (exchange.bytes, exchange.events, exchange.longest_gap_s, exchange.first_byte is None),
            (
                relay.state,
                relay.failure,
                relay._received,
                relay._last_read_at,
                relay._deadline,
                b"".join(relay._collected),
            ),
            (relay.ended.done(), relay.ended.done() and not relay.ended.cancelled() and relay.ended.result()),
            (connection._state, connection._pieces, connection._paused, connection._backlog, connection.queued),
            (connection._reading, connection.status, str(connection.failure)),
            _slots(events),
            _slots(events.output),
        ]

    def close(self) -> None:
        """End the relay, as an attempt does."""
        if not self.relay.ended.done():
            self.relay.ended.cancel()
        for timer in (self.relay._deadline_timer, self.relay._stall_timer, self.relay._drain_timer):
            if timer is not None:
                timer.cancel()
        self.caller.on_gone = self.caller.on_flow = None
        self.upstream.release()


def _slots(value: Any) -> list[object]:
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    names = [name for name in slots if name not in NOT_COMPARED]
    values = [(name, getattr(value, name)) for name in names]
    return [(name, sorted(found) if isinstance(found, frozenset) else found) for name, found in values]
