"""The contract between the gateway and a plugin.

The gateway guarantees:

1. **Before the first byte of the response and after the last, a plugin may wait.** Hooks that run in between must not wait.
   They may end the stream, and change its text (`on_delta`).
2. Request hooks run in the order of the YAML list, end hooks in the reverse order.
3. `on_end` is called exactly once for each plugin whose request hook was entered, whatever happened: refused by a later plugin,
   caller gone, upstream failed, plugin raised. `on_end` must release what the request hook reserved.
4. A caller that disconnects stops the relay of bytes. It never cancels a plugin.
5. An exchange keeps the chain that it began with, also when the configuration is reloaded.
6. A hook that a plugin does not define costs nothing.

A plugin that only needs the store to run a function has `prepare` in place of `on_request` and `on_end`: it returns a `PlanPart`,
whose steps the gateway sends together with those of the other plugins. The order of the list decides as before. What a part cannot
do has `request_step` and `end_step`, which return a `Step`.

A plugin says for which version of this contract it is made: `API = 1` in its module or in its class.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Sequence
from functools import partial
from typing import Any, ClassVar, Final, TypeVar, cast

import msgspec

from gateway.chain.services import Services
from gateway.chat.answers import Delta
from gateway.chat.dialect import Dialect
from gateway.chat.request import Body
from gateway.domain.exchange import Exchange
from gateway.domain.reply import Reply
from gateway.store.client.client import Argument
from gateway.store.client.steps import Declared, Step, forget

Fact = TypeVar("Fact")

NO_BODY: Final = cast(Body, None)
"""What `fill` is given of a part that does not read the body."""

PLUGIN_API: Final = 1
"""The version of this contract. It changes when a plugin that kept the contract before would break."""


class BodyUnread(Exception):
    """Raised by `Plan.model` before the body is read. The gateway reads it, and calls `prepare` again."""


class Plan:
    """What a part is made for: all requests of one caller for one model, or one request alone.

    `request`: that one request; None for a part that is kept, which may not rest on anything that its next request has otherwise.
    """

    def __init__(self, exchange: Exchange, *, kept: bool = False) -> None:
        self.operation = exchange.request.operation
        self.generation = exchange.generation
        self.request = None if kept else exchange.request
        self._exchange = exchange

    @property
    def model(self) -> str:
        """The model that the body names. A part that needs none is made before the body is read."""
        if not self._exchange.model:
            raise BodyUnread
        return self._exchange.model

    def __getitem__(self, fact: type[Fact]) -> Fact:
        return self._exchange[fact]


class StalePlan(Exception):
    """Raised by `PlanPart.fill` where the part rests on something that has changed. Another one is made for the request."""


Values = Sequence[Argument] | None
"""What fills the holes of a step; None for no step."""


class PlanPart:
    """What a plugin does before a request and at its end, without waiting. A method that a class does not define costs nothing.

    `request` and `end` are the steps, None for none. `fill` and `read` see requests in the order of the list, `fill_end` and
    `read_end` in the reverse order. A part is kept for many requests, so what belongs to one of them is a fact of its exchange.
    `reads_body`: whether `fill` reads the body, which is else not waited for, and may be missing.
    """

    request: Declared | None = None
    end: Declared | None = None
    reads_body: bool = True

    def fill(self, exchange: Exchange, body: Body) -> Values | Coroutine[Any, Any, Values]:
        """Return what fills the holes of `request`, None where this request needs no step, or a coroutine where that must wait.

        May raise `Refused`. May be called again for the same request: do nothing yet that must happen once.
        """
        return ()

    def begin(self, exchange: Exchange) -> None:
        """Do what is to be done once, when all parts are filled and nothing is sent yet."""

    def read(self, exchange: Exchange, reply: Any) -> Awaitable[bool | None] | None:
        """Read the reply of `request`. Return None where the request may pass, or what `Step.read` does then."""

    def fill_end(self, exchange: Exchange) -> Values:
        """Return what fills the holes of `end`, or None where this request needs no step. May be called again."""
        return ()

    def read_end(self, exchange: Exchange, reply: Any) -> bool | None:
        """Read the reply of `end`. Return True where the plugins above must do their ends by what this has changed."""

    async def lost_end(self, exchange: Exchange, error: Exception) -> None:
        """Do what is to be done where `end` failed, or may have."""


class PlanParts(dict["Plugin", tuple[PlanPart, Step | None]]):
    """The parts of an exchange, by their plugins, each with the step of its request; None where a plan sent it."""


def took_nothing(plugin: Plugin, exchange: Exchange) -> None:
    """Say that the step of a plugin's part did not run, or took nothing: its end is not run, as there is nothing to give back."""
    parts = exchange[PlanParts]
    part, _ = parts[plugin]
    if part.request is not None:
        exchange[PlanParts] = PlanParts({**parts, plugin: (part, Step(part.request.script, part.request.keys))})


class Plugin(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, dict=True, eq=False):
    """The base class of plugins. Annotated fields are settings: what an operator may write under `with:`.

    `provides` and `requires` are facts: types that `on_request` puts into the exchange, or expects to find there.
    `dialects`: the APIs of upstreams that it adds, for the `dialect:` of channels.
    `sees_misdirected`: whether the hooks also run for requests that the path table refuses. `edits`: whether `on_request` changes
    the request, by `exchange.edit`. `counts`: whether it counts, holds money or decides by what the request says, so that no plugin
    below it may change the request. `API`: the version of the contract that the plugin is made for; may stand in its module, too.
    """

    API: ClassVar[int | None] = None
    provides: ClassVar[tuple[type, ...]] = ()
    requires: ClassVar[tuple[type, ...]] = ()
    dialects: ClassVar[tuple[type[Dialect], ...]] = ()
    sees_misdirected: ClassVar[bool] = False
    edits: ClassVar[bool] = False
    counts: ClassVar[bool] = False

    async def start(self, services: Services) -> None:
        """Prepare. Called once, before the first exchange. Raise `ValueError`, saying what to change, to stop the start."""

    async def stop(self) -> None:
        """Clean up. Called once, after the last exchange that began with this instance."""

    async def on_request(self, exchange: Exchange) -> Reply | None:
        """Decide about a request. Raise `Refused` to refuse it; return a `Reply` to answer in place of the upstream."""

    async def request_step(self, exchange: Exchange) -> Step | None:
        """Return the step that decides about a request, or None where none is needed. Raise `Refused` to refuse it.

        In place of `on_request`. What the plugins above have planned has not happened yet, and may refuse the request. Called again
        where one of them finds that its plan rested on something that has changed: do nothing here that must happen once.
        Of a plugin with `prepare`, this is the step of its part.
        """
        try:
            part = self.prepare(Plan(exchange))
        except BodyUnread:
            await exchange.body()
            part = self.prepare(Plan(exchange))
        if part is None:
            return None
        reads = part.reads_body and defines(part, PlanPart, "fill")
        body = await exchange.body() if reads else NO_BODY
        try:
            values = part.fill(exchange, body)
        except StalePlan:  # between two lines, as at midnight
            return await self.request_step(exchange)
        if isinstance(values, Coroutine):
            values = await values
        if values is None:
            return None
        parts = exchange.get(PlanParts) or PlanParts()
        if self not in parts:
            part.begin(exchange)
        step = None if part.request is None else part.request.step(exchange.id, values, partial(part.read, exchange))
        exchange[PlanParts] = PlanParts({**parts, self: (part, step)})
        return step

    def prepare(self, plan: Plan) -> PlanPart | None:
        """Return what this plugin does for the requests of one caller and one model, with the facts of the first: `plan[Caller]`.

        Called for a request alone (`plan.request`), and once for all of a plan, whose parts are kept. None: nothing is done for the
        request; in a plan, its requests run the hooks from here on.
        """

    async def explain(self, exchange: Exchange) -> str | None:
        """Return what `on_request` or the step would do, in words, for `gateway explain`. Take, count and write nothing.

        Raise `Refused` as `on_request` would, and provide what it provides. Return None where the answer is not known.
        """

    async def on_failover(self, exchange: Exchange) -> None:
        """Prepare for a further attempt after one that failed, the last of `exchange.attempts`. Raise `Refused` to prevent it.

        The caller then gets the error of the failed attempt. Not called before the first attempt.
        """

    def on_response(self, exchange: Exchange) -> None:
        """Read the answer before anything is sent: the last chance to add to `response_headers`.

        One that is not streamed is there as a whole: `exchange.answer`. `exchange.stop` sends an error in its place, and so does
        raising `Refused`.
        """

    def on_chunk(self, exchange: Exchange, chunk: bytes) -> None:
        """Read complete events before they are written to the caller. They cannot be changed here.

        `exchange.stop` ends the stream before them, or after some of them; so does raising `Refused`.
        """

    def on_delta(self, exchange: Exchange, delta: Delta, last: bool) -> tuple[str, str] | None:
        """Change the text of a chat completion or completion. Return what is sent, and what is held back; None to send all.

        `delta.text` is what was held back of this text before, and its next piece. What is held back comes again with the piece
        after it, and is not sent before; if it is `last`, nothing is, since no more comes. An answer that is not streamed is
        given whole, with the same call for each text. Tool calls and sounds are not given. Called after `on_response` and
        `on_chunk` of all plugins, which see what the upstream sent, and what is charged is counted of that.

        `exchange.stop` in `on_chunk` ends the stream; raising `Refused` here does. The record names the plugin in `changed_by`.
        """

    async def on_end(self, exchange: Exchange) -> None:
        """Release what `on_request` reserved. Called once, in reverse order, whatever happened."""

    async def end_step(self, exchange: Exchange) -> Step | None:
        """Return the step that releases what the request hook reserved, or None. In place of `on_end`.

        Called again where the step of a plugin below says so, before this one's step has run. Of a plugin with `prepare`, this is
        the step of its part, where that of the request has run, or may have.
        """
        parts = exchange.get(PlanParts)
        if parts is None or self not in parts:
            return None
        part, asked = parts[self]
        if asked is not None:
            forget(asked)
            if not asked.may_have_run:
                return None
        values = part.fill_end(exchange)
        if values is None or part.end is None:
            return None

        async def read(reply: Any) -> bool | None:
            return part.read_end(exchange, reply)

        failed = partial(part.lost_end, exchange) if defines(part, PlanPart, "lost_end") else None
        return part.end.step(exchange.id, values, read, failed)


def defines(one: object, base: type, method: str) -> bool:
    """Return whether the class of an object overrides a method of its base class."""
    return getattr(type(one), method) is not getattr(base, method)
