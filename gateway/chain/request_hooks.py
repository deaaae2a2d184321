"""The request hooks of one exchange, and the steps that they plan.

A request goes one of two ways. Where `chain/plan.py` has a plan for its token and model, `run_plan` does all at once. Every other
request, and one that its plan leaves for any reason, goes by `run`, which decides everything. The effects are the same.

Hooks run in the order of the list. Steps are collected, and sent together before the next `on_request`, and when all hooks have
run. What a plugin decides in `request_step` itself counts only once the steps above it have let the request pass. A plugin that
says so may change the request, in its `on_request` or its `explain`.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Coroutine, Sequence
from functools import partial
from typing import Any, cast

import msgspec

from gateway.base.errors import GatewayError, Refused, StoreAway
from gateway.base.log import log
from gateway.chain.entry import PLUGIN_ERRORS, Entry, is_cancellation, origin_of, place_of_hook
from gateway.chain.plan import PlannedChain
from gateway.chain.plugin import PlanParts, StalePlan, took_nothing
from gateway.chat.request import Body
from gateway.domain.exchange import Exchange
from gateway.domain.reply import Reply
from gateway.store.client.client import Argument, Client
from gateway.store.client.steps import (
    FAILED,
    RAN,
    STOPPED,
    Step,
    error_in,
    forget,
    in_one_slot,
    planned,
    retried,
    run_steps,
)


class PlanAgain(Exception):
    """Ends a `request_step` that waits for the body, because a step above it says that plugins must plan again."""


class RequestHooks(msgspec.Struct, eq=False):
    """One run through the request hooks of `entries`. Each entry is appended to `entered` before its hook is called.

    While a plugin explains itself, it is the one that was entered: there are no others, and no steps to be sent.
    """

    _exchange: Exchange
    _entries: Sequence[Entry]
    _entered: list[Entry]
    _client: Client = cast(Client, None)
    _steps: list[Step] = []
    _places: list[int] = []
    """The place of each planned step's entry in the list."""
    _again: int | None = None
    _refusal: BaseException | None = None
    _planning: Entry | None = None
    """The plugin that is asked for its step."""
    _begun: Sequence[Entry] = ()
    """Those of which a plan has done what their `on_request` does."""
    _spent_s: float = 0.0
    """How long a plan waited for the store in vain."""

    async def run_plan(self, plan: PlannedChain, body: Body) -> int:
        """Run the parts of a plan. Return the place in the list from which the hooks are to run, and all that is to be decided.

        Raises `StalePlan`, when nothing was done, and what a part raises that does not let the request pass.
        """
        exchange, client, command = self._exchange, self._client, _command(plan, self._exchange, body)
        if command is None:
            return 0
        exchange.facts[PlanParts] = plan.parts
        for begin in plan.begins:
            begin(exchange)
        self._begun = plan.begun
        self._entered += plan.entries
        replies: Sequence[Any] = ()
        if plan.request is not None:
            began = time.monotonic()
            try:
                replies = await client.send(command, plan.request.script)
            except GatewayError as error:  # the script may have run; the steps of the hooks have the same effect then
                self._spent_s = time.monotonic() - began
                if self._spent_s >= client.timeout_s and not self._ignores(plan.reads[0][1], "prepare", error):
                    raise
        if 0 < len(replies) < len(plan.reads):  # a step stopped the script
            for _, entry, _ in plan.reads[len(replies) :]:
                took_nothing(entry.plugin, exchange)
        for number, (place, entry, read) in enumerate(plan.reads):
            status, value = replies[number] if number < len(replies) else (FAILED, None)
            if status == FAILED or isinstance(value, Exception):
                return place
            try:
                reading = read(exchange, value)
            except BaseException as error:
                if not self._ignores(entry, "prepare", error):
                    raise
                continue
            if (reading is not None or status != RAN) and await self._again_after(entry, status, reading):
                return place + 1
        return len(plan.entries)

    async def run(self, place: int = 0) -> Reply | None:
        """Run the hooks from a place in the list on, each once; `request_step` again where a step above it says so.

        Return the reply of a plugin, if any. Raises what the first plugin raises that does not let the request pass.
        """
        entries, entered, exchange = self._entries, self._entered, self._exchange
        exchange.hooks = self
        try:
            while True:
                entry = entries[place] if place < len(entries) else None
                if self._steps and (entry is None or not entry.plans_request):
                    await self._send()
                    if self._again is not None:
                        place, self._again = self._again, None
                        continue
                if entry is None:
                    return None
                if place >= len(entered):
                    entered.append(entry)
                if entry.plans_request or entry in self._begun:
                    place = await self._plan(entry, place)
                    continue
                try:
                    reply = await entry.plugin.on_request(exchange)
                    if reply is not None:
                        _check_reply(entry, reply)
                except BaseException as error:
                    if not self._ignores(entry, "on_request", error):
                        raise
                else:
                    if reply is not None:
                        exchange.refused_by = entry.name if reply.status >= 400 else ""
                        exchange.answered_by = entry.name
                        return reply
                place += 1
        finally:
            exchange.hooks = None

    async def _plan(self, entry: Entry, place: int) -> int:
        """Ask one plugin for its step. Return the place in the list at which to go on."""
        if entry in self._begun:
            return place + 1
        self._planning = entry
        try:
            step = await entry.plugin.request_step(self._exchange)
            if step is not None:
                step = planned(step)
        except BaseException as error:
            if is_cancellation(error):
                raise
            step = None
            if self._steps and self._refusal is None and self._again is None:
                await self._send()
            decided = self._refusal is None and self._again is None
            if decided and not self._ignores(entry, "request_step", error):
                raise
        finally:
            self._planning = None
        if self._refusal is not None:  # found before the body was read: the plugin may have caught it
            try:
                raise self._refusal
            finally:
                self._refusal = None
        if self._again is not None:
            again, self._again = self._again, None
            return again
        if step is not None:
            self._steps.append(step)
            self._places.append(place)
        return place + 1

    def editor(self) -> str:
        """Return the name of the plugin that changes the request. Raises `GatewayError` where it may not, or does not say so."""
        if self._planning is not None:
            raise GatewayError(
                f"'{self._planning.name}' changes the request in `request_step`: use `on_request`, which is called once"
            )
        entry = self._entered[-1]
        if not entry.plugin.edits:
            kind = type(entry.plugin).__name__
            raise GatewayError(
                f"'{entry.name}' changes the request without declaring it: write `edits = True` in {kind}"
            )
        return entry.name

    async def before_body(self) -> None:
        """Send the steps that are planned so far, before a body is read that has not arrived or is large."""
        if self._steps:
            try:
                await self._send()
            except BaseException as error:
                self._refusal = error
                raise
            if self._again is not None:
                raise PlanAgain

    async def _send(self) -> None:
        """Send the planned steps and read their replies. Raises the error of the first step that stops the request.

        Sets `_again` to the place in the list from which the plugins must plan again.
        """
        steps, self._steps = self._steps, []
        places, self._places = self._places, []
        most = len(steps)
        while steps:
            count = min(most, in_one_slot(self._client, steps))
            replies = await self._replies(steps[:count], places[:count])
            if replies is None:
                most = 1
                continue
            for step, place, (status, value) in zip(steps, places, replies, strict=False):
                reading = _reading(step, status, value)
                forget(step)
                if await self._again_after(self._entries[place], status, reading):
                    self._again = place + 1
                    return
            count = len(replies) or count
            steps, places = steps[count:], places[count:]

    async def _replies(self, steps: list[Step], places: list[int]) -> list[Any] | None:
        """Return the replies of the steps that ran; none after an error that all these entries ignore.

        None where one of several steps cannot be run, so that the script of all of them cannot: then each is sent by itself.
        """
        try:
            return await retried(partial(run_steps, self._client, steps), self._client.timeout_s - self._spent_s)
        except BaseException as error:
            if is_cancellation(error):
                raise
            if len(steps) > 1 and not isinstance(error, StoreAway):
                return None
            for place in places:
                if not self._ignores(self._entries[place], "request_step", error):
                    raise
            return []

    async def _again_after(self, entry: Entry, status: int, reading: Awaitable[bool | None] | None) -> bool:
        """Wait for what a plugin does about its step's reply. Return whether the plugins below must plan again."""
        try:
            again = reading is not None and await reading
            if again and status == RAN:
                raise RuntimeError("`read` wants plugins to plan again whose steps have run")
            if status == STOPPED and not again:
                raise RuntimeError(
                    "its step did not let those after it run, and `read` neither raised nor returned True"
                )
        except BaseException as error:
            if not self._ignores(entry, "request_step", error):
                raise
            return False
        return bool(again)

    def _ignores(self, entry: Entry, hook: str, error: BaseException) -> bool:
        """Return whether the entry ignores an error, which is then logged. The caller raises any other.

        It is not raised here: with this frame in its traceback, only the garbage collector would free it.
        """
        if is_cancellation(error):
            return False
        if entry.on_error == "ignore" and not isinstance(error, Refused):
            where = origin_of(error, entry.name, hook)
            log.error("plugin_failed", **where, request_id=self._exchange.id, exc_info=error)
            return True
        if error is not self._exchange.body_refusal:  # of which the plugin that reads the body first decides nothing
            self._exchange.refused_by = entry.name
        if not isinstance(error, Exception):
            raise RuntimeError(f"'{entry.name}' raised {type(error).__name__}") from error
        return False


def _command(plan: PlannedChain, exchange: Exchange, body: Body) -> bytes | None:
    """Return what a plan sends for a request; None where a part declines. Raises `StalePlan`."""
    values: list[Argument] = []
    try:
        for fill in plan.fills:
            filled = fill(exchange, body)
            if type(filled) is not tuple:
                if isinstance(filled, Coroutine):
                    filled.close()
                    return None
                if filled is None:
                    return None
            values += filled
        return b"" if plan.request is None else plan.request.command(exchange.request_id, values)
    except PLUGIN_ERRORS as error:
        if isinstance(error, StalePlan):
            raise
        return None  # the hooks fail, or find the request in order


async def _failing(error: GatewayError) -> bool:
    raise error


def _reading(step: Step, status: int, value: Any) -> Awaitable[bool | None] | None:
    """Return what a step does about its reply."""
    if (error := error_in(status, value)) is not None:
        return _failing(error)
    return None if step.read is None else step.read(value)


def _check_reply(entry: Entry, reply: object) -> None:
    if not isinstance(reply, Reply):
        place = place_of_hook(type(entry.plugin), "on_request")
        raise TypeError(
            f"`on_request` of '{entry.name}' returned a {type(reply).__name__}: return a Reply, or None{place}"
        )
