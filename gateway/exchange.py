"""One request and its response, from arrival to end."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import Final, TypeVar

import msgspec

from gateway.chat.request import Body
from gateway.chat.usage import Usage
from gateway.errors import Refused, check_headers, check_status, check_text
from gateway.prices import LARGEST_COST, Price
from gateway.request_id import new_id

Fact = TypeVar("Fact")


class Operation(StrEnum):
    """What a path asks for. A plugin that concerns only generated text checks for `CHAT`."""

    CHAT = "chat.completions"
    MODELS = "models"
    ACCOUNT = "account"
    LEDGER = "ledger"
    USAGE = "usage"
    REQUESTS = "requests"
    MISDIRECTED = "misdirected"


class Outcome(StrEnum):
    """How an exchange ended. Every exchange ends once, with one of these.

    `STOPPED`: the gateway ended it: it was stopping, or the answer was too long or too large, or the caller did not read, or its
    token or account was revoked.
    """

    COMPLETED = "completed"
    REFUSED = "refused"
    CALLER_GONE = "caller_gone"
    UPSTREAM_FAILED = "upstream_failed"
    UPSTREAM_TRUNCATED = "upstream_truncated"
    UPSTREAM_STALLED = "upstream_stalled"
    UPSTREAM_ERROR_IN_STREAM = "upstream_error_in_stream"
    STOPPED = "stopped"
    GATEWAY_CRASHED = "gateway_crashed"
    INTERNAL_ERROR = "internal_error"


class Attempt(msgspec.Struct):
    """One call of an upstream. `error` is the code that the caller would get, had this been the last attempt.

    `upstream_request_id` is from the head of its answer, `completion_id` from the completion itself; bills name either.
    `cost`: what the channel bills, None where that is not known. `reported`: the upstream's own usage object, as it came, and
    `stated_micros` the cost that it states. `dialect`: of an upstream with another API; the answer is written anew then, and else
    passes byte for byte. `began`, and `failed` where another may follow: `time.monotonic()`.
    """

    channel: str
    model: str
    status: int = 0
    error: str = ""
    upstream_request_id: str = ""
    usage: Usage = Usage()
    cost: Price | None = None
    reported: str = ""
    stated_micros: int | None = None
    completion_id: str = ""
    dialect: str = ""
    began: float = 0.0
    failed: float = 0.0

    @property
    def cost_micros(self) -> int | None:
        """Return what the call costs the operator: 0 where it used nothing, None where that is not known."""
        if self.usage.source == "none":
            return 0
        return None if self.cost is None else min(self.cost.of(self.usage), LARGEST_COST)


class Request(msgspec.Struct, frozen=True):
    """The head of a request. `headers` is case-insensitive.

    `peer` is the caller's address: of the connection, or what a trusted proxy says of whom it forwards. `path` is raw and has no
    query. `query` is raw, too: only lists read it, and no upstream gets it.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    peer: str
    operation: Operation
    argument: str = ""
    query: str = ""


_BODYLESS: Final = (204, 205, 304)


class Reply(msgspec.Struct, frozen=True):
    """A complete response that a plugin gives in place of the upstream.

    Raises `TypeError` or `ValueError` for values that no caller could be sent.
    """

    status: int = 200
    body: bytes = b""
    content_type: str = "application/json; charset=utf-8"
    headers: Mapping[str, str] = {}

    def __post_init__(self) -> None:
        check_status(self.status, 200)
        if not isinstance(self.body, bytes):
            raise TypeError(f"body is bytes, not {type(self.body).__name__}")
        if self.body and self.status in _BODYLESS:
            raise ValueError(f"a response with the status {self.status} has no body")
        check_text("content_type", self.content_type)
        check_headers({"Content-Type": self.content_type, **self.headers})


def _nothing() -> None:
    return None


async def _dropped() -> Body:
    raise RuntimeError("the body was dropped before it was read")


class Exchange:
    """One request on its way through the chain, and its response.

    **Facts** are what plugins share: one sets `exchange[Caller] = Caller(...)`, and those below read `exchange[Caller]`. The
    type is the key. **`body()`** reads and checks the body when it is first needed. **`before_upstream(future)`** lets the
    chain continue while something is written that must have succeeded before an upstream is called.

    A plugin may set facts, `response_headers`, and, where it charges, `charge_micros` and `price`. One that authenticates may
    set `account`, `token_id` and `group`, for the record of what it refuses. All else is set by the gateway and may be read by
    every plugin.
    """

    __slots__ = (
        "_body",
        "_body_refusal",
        "_facts",
        "_on_body_dropped",
        "_pending",
        "_read_body",
        "account",
        "arrived_at",
        "attempts",
        "before_body",
        "bytes",
        "channel",
        "charge_micros",
        "ended",
        "error",
        "events",
        "first_byte",
        "generation",
        "group",
        "id",
        "longest_gap_s",
        "model",
        "on_stop",
        "outcome",
        "price",
        "refused_by",
        "request",
        "response_headers",
        "started",
        "status",
        "stopped",
        "token_id",
    )

    def __init__(
        self,
        request: Request,
        read_body: Callable[[], Awaitable[Body]],
        *,
        on_body_dropped: Callable[[], None] = _nothing,
        generation: int = 0,
        id: str = "",  # noqa: A002
    ) -> None:
        self.id = id or new_id()
        self.request = request
        self.arrived_at = time.time()
        """UTC, seconds since 1970. For records only: durations are measured from `started`."""
        self.started = time.monotonic()
        self.generation = generation
        """The generation of the configuration that serves this exchange."""
        self.account = ""
        """Whose request it is, for the record of a request that is refused before there is a `Caller`, which is used otherwise."""
        self.token_id = ""
        self.group = ""
        self.model = ""
        """The model as the caller named it. Set when the body was read."""
        self.channel = ""
        self.attempts: list[Attempt] = []
        self.status = 0
        self.outcome: Outcome | None = None
        self.error: Refused | None = None
        self.refused_by = ""
        self.response_headers: dict[str, str] = {}
        self.charge_micros = 0
        self.price: dict[str, object] = {}
        """What the charge was computed from, as it is stored in the record."""
        self.first_byte: float | None = None
        self.ended: float | None = None
        self.longest_gap_s = 0.0
        self.events = 0
        self.bytes = 0
        self.stopped: Refused | None = None
        """Why the gateway ends this exchange, from `stop` on."""
        self.on_stop: Callable[[], None] | None = None
        """Called by `stop`: what waits sets it to end its wait."""
        self.before_body: Callable[[], Awaitable[None]] | None = None
        """What the gateway awaits before it reads a body that has not arrived or is large: the steps that are planned so far."""
        self._read_body = read_body
        self._on_body_dropped = on_body_dropped
        self._body: Body | None = None
        self._body_refusal: Refused | None = None
        self._facts: dict[type, object] = {}
        self._pending: list[Awaitable[object]] = []

    def __getitem__(self, fact: type[Fact]) -> Fact:
        return self._facts[fact]  # type: ignore[return-value]

    def __setitem__(self, fact: type[Fact], value: Fact) -> None:
        self._facts[fact] = value

    def __delitem__(self, fact: type) -> None:
        self._facts.pop(fact, None)

    def __contains__(self, fact: type) -> bool:
        return fact in self._facts

    def get(self, fact: type[Fact]) -> Fact | None:
        """Return the fact, or None where no plugin provided it."""
        return self._facts.get(fact)  # type: ignore[return-value]

    async def body(self) -> Body:
        """Return the checked body. It is read on the first call. Raises `Refused` for a body that is not valid.

        From the first byte of the answer on its `top` is empty.
        """
        if self._body is None:
            if self._body_refusal is not None:  # it can be read only once
                raise self._body_refusal
            try:
                self._body = await self._read_body()
            except Refused as refusal:
                self._body_refusal = refusal
                raise
            self.model = self._body.model
        return self._body

    def stop(self, error: Refused) -> None:
        """End the exchange with this error, which the caller gets. Called again, it changes nothing."""
        if self.stopped is None:
            self.stopped = error
            if self.on_stop is not None:
                self.on_stop()

    def drop_values(self) -> None:
        """Free the values of the body. Its numbers stay."""
        if self._body is not None:
            self._body.drop_values()

    def drop_body(self) -> None:
        """Free the values of the body, which no upstream is sent any more, and what was needed to receive it."""
        self.drop_values()
        on_dropped, self._on_body_dropped, self._read_body = self._on_body_dropped, _nothing, _dropped
        on_dropped()

    def before_upstream(self, future: Awaitable[object]) -> None:
        """Require that `future` succeeds before an upstream is called. Its error refuses the request.

        It is awaited when the chain has admitted or refused the request.
        """
        self._pending.append(future)

    async def settle_pending(self) -> None:
        """Wait for all futures of `before_upstream`. Raises the first error."""
        pending, self._pending = self._pending, []
        for future in pending:
            await future

    @property
    def usage(self) -> Usage:
        """The usage of all attempts together."""
        if len(self.attempts) == 1:
            return self.attempts[0].usage
        total = Usage()
        for attempt in self.attempts:
            total += attempt.usage
        return total

    @property
    def cost_micros(self) -> int | None:
        """What the exchange costs the operator, in micros; None where one of its attempts has a cost that is not known."""
        total = 0
        for attempt in self.attempts:
            cost = attempt.cost_micros
            if cost is None:
                return None
            total += cost
        return total

    @property
    def first_byte_ms(self) -> float | None:
        """From arrival to the first byte of the response's body, or None when there was none."""
        return None if self.first_byte is None else (self.first_byte - self.started) * 1000

    @property
    def duration_ms(self) -> float:
        """From arrival to the end, or to now."""
        return ((self.ended or time.monotonic()) - self.started) * 1000

    def __repr__(self) -> str:
        outcome = self.outcome or "in progress"
        account = f" of {self.account}" if self.account else ""
        return f"<Exchange {self.id} {self.request.method} {self.request.path}{account}: {outcome}>"
