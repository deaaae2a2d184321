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

A plugin that only needs the store to run a function has `request_step` in place of `on_request`, and `end_step` in place of
`on_end`: they return a `Step`, and the gateway sends those of all plugins together. The order of the list decides as before.

A plugin says for which version of this contract it is made: `API = 1` in its module or in its class.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, ClassVar, Final, TypeVar

import msgspec

from gateway.chain.services import Services
from gateway.chat.answers import Delta
from gateway.chat.dialect import Dialect
from gateway.chat.request import Body
from gateway.domain.exchange import Exchange
from gateway.domain.reply import Reply
from gateway.store.client.client import Argument
from gateway.store.client.steps import Declared, Step

Fact = TypeVar("Fact")

PLUGIN_API: Final = 1
"""The version of this contract. It changes when a plugin that kept the contract before would break."""


class Plan:
    """What all requests of one caller for one model have in common, given to `prepare`, with the facts of the first of them."""

    def __init__(self, exchange: Exchange) -> None:
        self.operation = exchange.request.operation
        self.model = exchange.model
        self.generation = exchange.generation
        self._exchange = exchange

    def __getitem__(self, fact: type[Fact]) -> Fact:
        return self._exchange[fact]


class StalePlan(Exception):
    """Raised by `PlanPart.fill` where the plan rests on something that has changed. The request runs the hooks."""


class PlanPart:
    """What a plugin does for each request of a plan, in place of its hooks. A method that a class does not define costs nothing.

    `request` and `end` are the steps, None for none. No method waits. `fill` and `read` see requests in the order of the list,
    `fill_end` and `read_end` in the reverse order. The end is the plan's where the request was answered whole; otherwise, and where
    a part declines, the end hooks run, so a part leaves what they need.
    """

    request: Declared | None = None
    end: Declared | None = None

    def fill(self, exchange: Exchange, body: Body) -> Sequence[Argument] | None:
        """Return what fills the holes of `request`, or None where this request is to run the hooks. Do nothing that counts yet."""
        return ()

    def begin(self, exchange: Exchange) -> None:
        """Do what is to be done once, when all parts are filled and nothing is sent yet."""

    def read(self, exchange: Exchange, reply: Any) -> Awaitable[bool | None] | None:
        """Read the reply of `request`, None without one. Return None where the request may pass, or what `Step.read` does then."""

    def fill_end(self, exchange: Exchange) -> Sequence[Argument] | None:
        """Return what fills the holes of `end`, or None where the end hooks are to run."""
        return ()

    def read_end(self, exchange: Exchange, reply: Any) -> None:
        """Read the reply of `end`."""


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
        """

    def prepare(self, plan: Plan) -> PlanPart | None:
        """Return what stands for the hooks of a request and its end in the requests of one token and model, or None for the hooks.

        Called once a plan, with the facts of a request that the hooks have admitted: `plan[Caller]`. The requests of the plan run
        the hooks from the first plugin on that returns None, as where this returns nothing.
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

        Called again where the step of a plugin below says so, before this one's step has run.
        """
