"""One request and its response, from arrival to end: its body, its facts, its attempts, its charge and its end.

`Attempt` is one call of an upstream, as it is recorded and charged. `RunningHooks` is the interface of the chain that runs the
exchange's request hooks.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from enum import StrEnum
from operator import attrgetter
from typing import Any, Final, Protocol, TypeVar

import msgspec

from gateway.base.errors import GatewayError, Refused
from gateway.base.ids import new_id
from gateway.base.text import printable, without_credentials
from gateway.chat.answers import Delta, DeltaReader, WholeAnswer
from gateway.chat.request import Body, changed
from gateway.chat.usage import Usage
from gateway.domain.prices import LARGEST_COST, Price
from gateway.operations.operation import Operation

Fact = TypeVar("Fact")

FALLBACK: Final = "fallback"
"""In `changed_by` of a request that another model of the catalogue served, or should have."""
LARGEST: Final = (1 << 63) - 1
"""What a record can have."""
TAG: Final = re.compile("[a-z0-9_]{1,32}")
MOST_TAGS: Final = 8
TAG_LENGTH: Final = 64


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

    __hash__ = str.__hash__


COMPLETED: Final = Outcome.COMPLETED
"""Where each request asks for a member of an enum, a name of a module is used: Python 3.11 finds that in a tenth of the time."""


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


def read_only(name: str) -> Any:
    """Return a property with the value of the attribute `name`, which costs no call of Python code."""
    return property(attrgetter(name))


def nothing() -> None:
    """Do nothing."""


class Exchange:
    """One request on its way through the chain, and its response.

    **Facts** are what plugins share: one sets `exchange[Caller] = Caller(...)`, and those below read `exchange[Caller]`. The
    type is the key. **`body()`** reads and checks the body when it is first needed. **`before_upstream(future)`** lets the
    chain continue while something is written that must have succeeded before an upstream is called.

    A plugin may set facts and `response_headers`; the one that charges says so with `charge`. One that authenticates may set
    `account`, `token_id` and `group`, for the record of what it refuses. All else is set by the gateway and may be read by every
    plugin.

    The record, the metrics and the ledger agree on money, since what was charged is said once, by the plugin that has settled it.
    """

    __slots__ = (
        *("_body", "_body_refusal", "_on_body_dropped", "_pending", "_read_body", "account", "answer_tier"),
        *("answer_usage", "answered_by", "arrived_at", "bytes", "calls", "changed_by", "channel", "charged"),
        *("check_body", "ended", "error", "events", "facts", "first_byte", "generation", "group", "hooks", "kept"),
        *("longest_gap_s", "model", "notes", "on_stop", "outcome", "refused_by", "request", "request_id"),
        *("requested_model", "response_headers", "started", "status", "stopped", "texts", "token_id", "whole"),
    )
    id: str = read_only("request_id")
    """UUIDv7. The store, the log and the caller know the request by it, so it never changes."""
    body_refusal: Refused | None = read_only("_body_refusal")
    """Why the body is not valid, once a plugin has asked for it."""
    attempts: list[Attempt] = read_only("calls")
    """The calls of upstreams, in their order. The gateway adds to them."""

    def __init__(
        self,
        request: Request,
        read_body: Callable[[], Body | Awaitable[Body]],
        on_body_dropped: Callable[[], None] = nothing,
        generation: int = 0,
        *,
        id: str = "",  # noqa: A002
    ) -> None:
        # Each request asks for these some times: of an attribute that takes a tenth of what it takes of a property.
        self.calls: list[Attempt] = []
        self.answer_usage: Usage | None = None
        """What the answer of a plugin is charged as."""
        self.answer_tier = ""
        """The service tier that such an answer names."""
        self.charged: Charge | None = None
        self.request_id = id or new_id()
        self.request = request
        self.arrived_at = time.time()
        """UTC, seconds since 1970. For records only: durations are measured from `started`."""
        self.started = time.monotonic()
        self.generation = generation
        """The generation of the configuration that serves this exchange."""
        self.account = ""
        """Whose request it is, for the record of one that is refused before there is a `Caller`."""
        self.token_id = self.group = self.channel = ""
        self.model = ""
        """The model that the body names. Set when the body was read, and when a plugin changed it."""
        self.requested_model = ""
        """The model that the caller named, where a plugin changed it."""
        self.changed_by: tuple[str, ...] = ()
        """The names of the plugins that changed the request, or the text of its answer."""
        self.outcome: Outcome | None = None
        self.error: Refused | None = None
        self.refused_by = ""
        """The plugin that refused the request, or ended its stream."""
        self.whole = False  # Whether the body, which is small, has arrived with the head.
        self.answered_by = ""
        """The plugin that answered in place of an upstream."""
        self.notes: dict[str, str] | None = None  # see `note`
        self.response_headers: dict[str, str] = {}
        self.first_byte: float | None = None
        self.ended: float | None = None
        self.longest_gap_s = 0.0
        self.events = self.bytes = self.status = 0
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
        self.facts: dict[type, Any] = {}  # What `exchange[Caller]` reads. Plans use it itself, which costs less.
        self._pending: list[Awaitable[object]] = []

    def __getitem__(self, fact: type[Fact]) -> Fact:
        return self.facts[fact]  # type: ignore[no-any-return]

    def __setitem__(self, fact: type[Fact], value: Fact) -> None:
        self.facts[fact] = value

    def __delitem__(self, fact: type) -> None:
        self.facts.pop(fact, None)

    def __contains__(self, fact: type) -> bool:
        return fact in self.facts

    def get(self, fact: type[Fact]) -> Fact | None:
        """Return the fact, or None where no plugin provided it."""
        return self.facts.get(fact)

    async def body(self) -> Body:
        """Return the checked body. It is read on the first call. Raises `Refused` for a body that is not valid.

        From the first byte of the answer on its `top` is empty.
        """
        if self._body is None:
            if self._body_refusal is not None:  # it can be read only once
                raise self._body_refusal
            try:
                read = self._read_body()
                self._body = read if isinstance(read, Body) else await read
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

    def serve_by(self, model: str) -> Body:
        """Serve the request by another model of the catalogue, and return the body for it: no channel of the one before is left."""
        if self._body is None:
            raise RuntimeError("a request falls back before its body was read")
        self.requested_model = self.requested_model or self.model
        if FALLBACK not in self.changed_by:
            self.changed_by += (FALLBACK,)
        self._body, self.model = msgspec.structs.replace(self._body, model=model), model
        return self._body

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

    def note(self, name: str, value: str) -> None:
        """Put a tag into the record of the request, such as the tenant that a header names. Called again, it replaces the value.

        A request has up to 8 tags. `name` is 1 to 32 of a-z, 0-9 and _; of the value the first 64 characters are kept, without
        credentials. Lists, sums and exports of the usage log select by tags. Raises `ValueError`.
        """
        if not TAG.fullmatch(name):
            raise ValueError(f"a tag is named by 1 to 32 of a-z, 0-9 and _, not {name!r}")
        notes = self.notes if self.notes is not None else {}
        if len(notes) == MOST_TAGS and name not in notes:
            raise ValueError(f"a request has at most {MOST_TAGS} tags")
        notes[name] = printable(without_credentials(value))[:TAG_LENGTH]
        self.notes = notes

    def drop_values(self) -> None:
        """Free the values of the body. Its numbers stay."""
        if self._body is not None:
            self._body.drop_values()

    def drop_body(self) -> None:
        """Free the body, the function that reads it, and its share of the memory budget: no upstream is called any more."""
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

    def charge(
        self, by: object, micros: int, price: Mapping[str, object] | None = None, usage: Usage | None = None
    ) -> None:
        """Set what is charged, in micros, what it was computed from, and the usage. Only for the plugin that charges, `by`.

        It settles the same with the store. Called again by this plugin, what is left out stays as it was. Raises `RuntimeError`
        where another plugin charges, and `TypeError` or `ValueError` for values that no record can have.
        """
        if type(micros) is not int:
            raise TypeError(f"a charge is a whole number of micros, not {micros!r}")
        if not 0 <= micros <= LARGEST:
            raise ValueError(f"a charge is from 0 to {LARGEST} micros, not {micros}")
        if price is not None:
            price = dict(price)
        before = self.charged
        if before is None:
            self.charged = Charge(by, micros, price or {}, usage)
        elif before.by is by:
            self.charged = Charge(by, micros, before.price if price is None else price, usage or before.usage)
        else:
            raise RuntimeError(f"{type(by).__name__} charges a request that {type(before.by).__name__} charges")

    @property
    def charge_micros(self) -> int:
        """What was charged, in micros. See `charge`."""
        return 0 if self.charged is None else self.charged.micros

    @property
    def price(self) -> dict[str, object]:
        """The prices from which the charge was computed, as the record has them."""
        return {} if self.charged is None else dict(self.charged.price)

    @property
    def usage(self) -> Usage:
        """The usage of all attempts together, or of the answer that a plugin gave. Once it is charged, what was charged."""
        if self.charged is not None and self.charged.usage is not None:
            return self.charged.usage
        if len(self.calls) == 1:
            return self.calls[0].usage
        total = self.answer_usage or Usage()
        for attempt in self.calls:
            total += attempt.usage
        return total

    @property
    def cost_micros(self) -> int | None:
        """What the exchange costs the operator, in micros; None where one of its attempts has a cost that is not known."""
        total = 0
        for attempt in self.calls:
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


class Charge(msgspec.Struct, frozen=True):
    """What one plugin has charged: `micros`, what it was computed from, and the usage, if that is final."""

    by: object
    micros: int
    price: Mapping[str, object]
    usage: Usage | None


class UpstreamWords(msgspec.Struct, frozen=True):
    """An upstream's own words about an error: for operators, never for callers. They may quote the request."""

    message: str = ""
    code: str = ""
    type: str = ""


NOTHING_SAID: Final = UpstreamWords()


class Attempt(msgspec.Struct):
    """One call of an upstream. `error` is the code that the caller would get, had this been the last attempt.

    `upstream_request_id` is from the head of its answer, `completion_id` from the completion itself; bills name either.
    `cost`: what the channel bills, None where that is not known. `reported`: the upstream's own usage object, as it came, and
    `stated_micros` the cost that it states, `service_tier` the one that its answer names. `dialect`: of an upstream with another
    API; the answer is written anew then, and else passes byte for byte. `began`, and `failed` where another may follow:
    `time.monotonic()`. `said`: the upstream's own words about its error.
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
    service_tier: str = ""
    said: UpstreamWords = NOTHING_SAID

    @property
    def cost_micros(self) -> int | None:
        """Return what the call costs the operator, by the upstream's own word if it states it; None where that is not known."""
        if self.stated_micros is not None:
            return self.stated_micros
        if self.usage.source == "none":
            return 0
        return None if self.cost is None else min(self.cost.of(self.usage), LARGEST_COST)


class RunningHooks(Protocol):
    """What runs the request hooks of an exchange."""

    async def before_body(self) -> None:
        """Send the steps that are planned so far, before a body is read that has not arrived or is large."""

    def editor(self) -> str:
        """Return the name of the plugin that changes the request. Raises `GatewayError` for one that may not."""


async def dropped_body() -> Body:
    """Raise an error: there is no body any more."""
    raise RuntimeError("the body was dropped before it was read")


async def unchecked(_: bytes) -> Body:
    """Raise an error: no body can be changed here."""
    raise RuntimeError("nothing checks a changed body here")
