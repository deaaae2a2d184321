"""One request and its response, from arrival to end."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

from gateway.chat.deltas import Delta, DeltaReader, WholeAnswer
from gateway.chat.edit import changed
from gateway.chat.request import Body
from gateway.errors import GatewayError, Refused
from gateway.exchange_charge import ChargedExchange, read_only
from gateway.exchange_hooks import RunningHooks, dropped_body, nothing, unchecked
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


class Exchange(ChargedExchange):
    """One request on its way through the chain, and its response.

    **Facts** are what plugins share: one sets `exchange[Caller] = Caller(...)`, and those below read `exchange[Caller]`. The
    type is the key. **`body()`** reads and checks the body when it is first needed. **`before_upstream(future)`** lets the
    chain continue while something is written that must have succeeded before an upstream is called.

    A plugin may set facts and `response_headers`; the one that charges says so with `charge`. One that authenticates may set
    `account`, `token_id` and `group`, for the record of what it refuses. All else is set by the gateway and may be read by every
    plugin.
    """

    __slots__ = (
        *(
            "_body",
            "_body_refusal",
            "_facts",
            "_id",
            "_on_body_dropped",
            "outcome",
            "_pending",
            "_read_body",
            "account",
        ),
        *("answered_by", "arrived_at", "bytes", "changed_by", "channel", "check_body", "ended", "error", "events"),
        *("first_byte", "generation", "group", "hooks", "kept", "longest_gap_s", "model", "on_stop", "refused_by"),
        *("request", "requested_model", "response_headers", "started", "status", "stopped", "texts", "token_id"),
    )
    id: str = read_only("_id")
    """UUIDv7. The store, the log and the caller know the request by it, so it never changes."""

    def __init__(
        self,
        request: Request,
        read_body: Callable[[], Awaitable[Body]],
        *,
        on_body_dropped: Callable[[], None] = nothing,
        generation: int = 0,
        id: str = "",  # noqa: A002
    ) -> None:
        super().__init__()
        self._id = id or new_id()
        self.request = request
        self.arrived_at = time.time()
        """UTC, seconds since 1970. For records only: durations are measured from `started`."""
        self.started = time.monotonic()
        self.generation = generation
        """The generation of the configuration that serves this exchange."""
        self.account = ""
        """Whose request it is, for the record of one that is refused before there is a `Caller`."""
        self.token_id = self.group = ""
        self.model = ""
        """The model that the body names. Set when the body was read, and when a plugin changed it."""
        self.requested_model = ""
        """The model that the caller named, where a plugin changed it."""
        self.changed_by: tuple[str, ...] = ()
        """The names of the plugins that changed the request."""
        self.channel = ""
        self.status = 0
        self.outcome: Outcome | None = None
        self.error: Refused | None = None
        self.refused_by = ""
        """The plugin that refused the request, or ended its stream."""
        self.answered_by = ""
        """The plugin that answered in place of an upstream."""
        self.response_headers: dict[str, str] = {}
        self.first_byte: float | None = None
        self.ended: float | None = None
        self.longest_gap_s = 0.0
        self.events = self.bytes = 0
        self.stopped: Refused | None = None
        """Why the gateway or a plugin ends this exchange, from `stop` on."""
        self.on_stop: Callable[[], None] | None = None
        """Called by `stop`: what waits sets it to end its wait."""
        self.hooks: RunningHooks | None = None
        """What runs the request hooks, as long as they run."""
        self.check_body: Callable[[bytes], Awaitable[Body]] = unchecked
        """Returns the checked body of what a plugin has made of it."""
        self._read_body = read_body
        self._on_body_dropped = on_body_dropped
        self._body: Body | None = None
        self._body_refusal: Refused | None = None
        self.texts: DeltaReader | WholeAnswer | None = None  # of the answer
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

    async def edit(self, fields: Mapping[str, object], *, drop: Collection[str] = ()) -> Body:
        """Set and drop top-level fields of the body, and return the body as it is now. Only for `on_request` and `explain`.

        Values are what JSON can say, or `msgspec.Raw`. The plugin declares `edits = True`. What the chain has below it, and the
        upstream, get the body as changed. It is checked like that of a caller. A change that is not valid fails the request with an
        internal error that names the plugin, and leaves the body as it was; one that makes it too large raises `Refused`.
        """
        if self.hooks is None:
            raise GatewayError(
                "a plugin changes the request outside of `on_request`, where nothing can count the change"
            )
        editor, before = self.hooks.editor(), await self.body()
        body = await changed(before, fields, drop, self.check_body, editor)
        if body is None:
            return before
        if body.model != self.model:
            self.requested_model = self.requested_model or self.model
        self._body, self.model = body, body.model
        if editor not in self.changed_by:
            self.changed_by += (editor,)
        return body

    @property
    def answer(self) -> Any:
        """The answer in JSON, decoded, from `on_response` on. None for one that is streamed, or no JSON."""
        return None if self.texts is None else self.texts.value

    def deltas(self, chunk: bytes | None = None) -> tuple[Delta, ...]:
        """Return what the events of a chunk add to the texts of the answer. For `on_chunk`: ask for each chunk, or for none.

        Without a chunk, in `on_response`: the texts of an answer that is not streamed.
        """
        if self.texts is None:
            self.texts = DeltaReader()
        return self.texts.read(chunk)

    def stop(self, error: Refused, *, keep: int = 0) -> None:
        """End the exchange with this error, which the caller gets. Called again, it changes nothing, but may keep less.

        From `on_chunk`: the caller still gets the events of the chunk that end within its first `keep` bytes, but never `[DONE]`.
        """
        if not isinstance(error, Refused):
            raise TypeError(f"an exchange is stopped with a Refused, not with {error!r}")
        if self.stopped is None:
            self.stopped, self.kept = error, keep
            if self.on_stop is not None:
                self.on_stop()
        else:
            self.kept = min(self.kept, keep)

    def drop_values(self) -> None:
        """Free the values of the body. Its numbers stay."""
        if self._body is not None:
            self._body.drop_values()

    def drop_body(self) -> None:
        """Free the values of the body, which no upstream is sent any more, and what was needed to receive it."""
        self.drop_values()
        on_dropped, self._on_body_dropped, self._read_body = self._on_body_dropped, nothing, dropped_body
        self.check_body = unchecked
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
